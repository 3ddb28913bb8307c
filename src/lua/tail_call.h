// The lines of tail calls, which leave no frame behind.
#pragma once

#include <lua.hpp>

namespace perigee::lua {

// Returns the line of the function on top of the stack at which its tail call begins; 0 where it
// makes none, or several on different lines.
int tail_call_line(lua_State* L);

}  // namespace perigee::lua
