// Lua values to JSON and back.
#pragma once

#include <lua.hpp>
#include <nlohmann/json.hpp>
#include <string_view>

namespace perigee::lua {

// Returns the value at `index`. A table with keys 1..n is an array, an empty one an object; a
// table with both parts has its array part under "1", "2", ... Whole numbers become integers.
// Throws Error for functions, cycles, NaN and nesting deeper than 100; `what` names the value
// in the message.
nlohmann::json to_json(lua_State* L, int index, std::string_view what);

// Pushes the value; null becomes nil.
void push_json(lua_State* L, const nlohmann::json& value);

}  // namespace perigee::lua
