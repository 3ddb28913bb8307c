// Lua values as arguments of an op's schema, and results back.
#pragma once

#include <ATen/core/function_schema.h>

#include <lua.hpp>
#include <optional>
#include <string>

#include "binding/context.h"

namespace perigee::binding {

// Returns the value at `index` converted to the argument's type, or nothing where it does not fit.
// A whole number becomes an integer, nil an absent optional, a string a dtype or memory format.
// Lists have keys 1..n (`false`: no tensor); a number stands for a list of fixed size.
std::optional<c10::IValue> read_argument(Context& context, lua_State* L, int index,
                                         const c10::Argument& argument);

// Throws Error where the table at `index` has other keys than 1..n, which a list would drop.
void check_list(lua_State* L, int index);

// Returns whether the argument is a list of integers of any length, which may also be written as
// several arguments: x:view(2, -1).
bool is_open_list(const c10::Argument& argument);

// Returns "an integer", "a list of tensors or nil", ...
std::string expected(const c10::Argument& argument);

// Returns "a string", "float32[2, 3]", ... of the value at `index`.
std::string found(Context& context, lua_State* L, int index);

// Pushes an op's result.
void push_result(Context& context, lua_State* L, const c10::IValue& value);

}  // namespace perigee::binding
