// The lines of tail calls, which leave no frame behind, and of what a function returns.
#pragma once

#include <lua.hpp>

namespace perigee::lua {

// Returns the line of the function on top of the stack at which its tail call begins; 0 where it
// makes none, or several on different lines.
int tail_call_line(lua_State* L);

// Returns the line of the function on top of the stack at which the table that it returns begins; 0
// where it returns none that it writes out, or several on different lines.
int result_line(lua_State* L);

}  // namespace perigee::lua
