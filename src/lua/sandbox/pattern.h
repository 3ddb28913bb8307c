// Lua's string patterns with a bounded amount of work, for string.find, match, gmatch and gsub in
// the sandbox: LuaJIT's own matcher can run without end in C, where no hook fires. Same language
// and results as Lua 5.1 (lstrlib.c).
#pragma once

#include <lua.hpp>

namespace perigee::lua {

// Functions for the sandbox's `string`; each raises a Lua error when one call takes more than ten
// million steps.
int string_find(lua_State* L);
int string_match(lua_State* L);
int string_gmatch(lua_State* L);
int string_gsub(lua_State* L);

}  // namespace perigee::lua
