// The way a C++ function enters Lua: a std::exception becomes a Lua error at the user's line,
// raised outside the catch.
#pragma once

#include <cstdio>
#include <exception>
#include <lua.hpp>

namespace perigee::lua {

// Pushes "file:line: " of the innermost script that is no module of the runtime folder, so that a
// mistake shows where the user made it.
void push_user_line(lua_State* L);

// Runs f() -> int. Lua errors pass through untouched.
template <class F>
int guarded(lua_State* L, F f) {
  char text[2048];
  try {
    return f();
  } catch (const std::exception& error) {
    std::snprintf(text, sizeof text, "%s", error.what());
  }
  push_user_line(L);
  lua_pushstring(L, text);
  lua_concat(L, 2);
  return lua_error(L);
}

}  // namespace perigee::lua
