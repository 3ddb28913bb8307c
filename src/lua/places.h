// The lines at which a script writes the methods of its strategy, kept beside their plain data.
#pragma once

#include <lua.hpp>
#include <string>

namespace perigee::lua {

// Keeps the user's line for the table on top of the stack, as long as the table exists.
void keep_place(lua_State* L);

// Returns what was kept for the value on top of the stack, "FILE:LINE: ", or "".
std::string kept_place(lua_State* L);

// Returns the place where the table begins that the function at `index` returns, else the place of
// the function, or "".
std::string result_place(lua_State* L, int index);

}  // namespace perigee::lua
