// The way a C++ function enters Lua: a std::exception becomes a Lua error at the caller's line,
// raised outside the catch.
#pragma once

#include <cstdio>
#include <exception>
#include <lua.hpp>

namespace perigee::lua {

// Runs f() -> int. Lua errors pass through untouched.
template <class F>
int guarded(lua_State* L, F f) {
  char text[2048];
  try {
    return f();
  } catch (const std::exception& error) {
    std::snprintf(text, sizeof text, "%s", error.what());
  }
  luaL_where(L, 1);
  lua_pushstring(L, text);
  lua_concat(L, 2);
  return lua_error(L);
}

}  // namespace perigee::lua
