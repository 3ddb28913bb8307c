// Calls of any op of LibTorch's dispatcher by its name: overloads, arguments, defaults and results
// are those of its schema, so that ops need no code here.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <lua.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "binding/context.h"

namespace perigee::binding {

struct Overloads {
  std::string name;  // as scripts write it: "softmax", "my::op"
  std::vector<c10::OperatorHandle> handles;
};

// Returns the overloads of an op of aten, or, with "::" in its name, of another library; nullptr
// where there is none.
const Overloads* find_op(std::string_view name);

// Returns ", did you mean softmax?" or "".
std::string nearest_op(std::string_view name);

// Pushes a function that calls the op: arguments by position, a table with names last.
void push_op(lua_State* L, const Overloads& op);

// Calls the op with the `count` arguments from `first` on and pushes its results. Returns how many.
// Throws Error that names the op, and the argument that fits no overload.
int call_op(Context& context, lua_State* L, const Overloads& op, int first, int count);

}  // namespace perigee::binding
