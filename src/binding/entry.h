// Registration of this folder's functions in Lua: a std::exception becomes an error at the
// user's line.
#pragma once

#include "binding/context.h"
#include "lua/guard.h"

namespace perigee::binding {

template <int (*run)(lua_State*, Context&)>
int entry(lua_State* L) {
  return lua::guarded(L, [&] { return run(L, Context::of(L)); });
}

// Sets table[name] of the table on top.
template <int (*run)(lua_State*, Context&)>
void set_entry(lua_State* L, const char* name) {
  lua_pushcfunction(L, entry<run>);
  lua_setfield(L, -2, name);
}

// Pushes the registry's value of the key.
inline void push_registered(lua_State* L, const char* key) {
  lua_pushlightuserdata(L, const_cast<char*>(key));
  lua_rawget(L, LUA_REGISTRYINDEX);
}

// Moves the value on top to the registry.
inline void set_registered(lua_State* L, const char* key) {
  lua_pushlightuserdata(L, const_cast<char*>(key));
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

// Returns whether the value at `index` is a userdata with the metatable of that key.
inline bool is_instance(lua_State* L, int index, const char* key) {
  if (lua_type(L, index) != LUA_TUSERDATA || !lua_getmetatable(L, index)) return false;
  push_registered(L, key);
  const bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same;
}

}  // namespace perigee::binding
