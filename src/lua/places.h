// Where a script wrote the methods of its strategy, beside the plain data that they are.
#pragma once

#include <lua.hpp>
#include <string>

namespace perigee::lua {

// Keeps the user's line for the table on top of the stack, as long as that lives.
void keep_place(lua_State* L);

// Returns what was kept for the value on top of the stack, "FILE:LINE: ", or "".
std::string kept_place(lua_State* L);

// Returns where the table that the function at `index` returns begins, else where the function
// does, or "".
std::string result_place(lua_State* L, int index);

}  // namespace perigee::lua
