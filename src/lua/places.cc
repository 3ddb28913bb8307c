#include "lua/places.h"

#include <fmt/format.h>

#include "lua/guard.h"
#include "lua/sandbox/tail_call.h"

namespace perigee::lua {
namespace {

const char kPlaces = 0;  // its address is the registry's key of a table by table, which holds none

}  // namespace

void keep_place(lua_State* L) {
  lua_pushlightuserdata(L, const_cast<char*>(&kPlaces));
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_istable(L, -1)) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_createtable(L, 0, 1);
    lua_pushliteral(L, "k");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_pushlightuserdata(L, const_cast<char*>(&kPlaces));
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  lua_pushvalue(L, -2);
  push_user_line(L);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

std::string kept_place(lua_State* L) {
  std::string place;
  if (!lua_istable(L, -1)) return place;
  lua_pushlightuserdata(L, const_cast<char*>(&kPlaces));
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_istable(L, -1)) {
    lua_pushvalue(L, -2);
    lua_rawget(L, -2);
    if (lua_isstring(L, -1)) place = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return place;
}

std::string result_place(lua_State* L, int index) {
  lua_Debug about;
  lua_pushvalue(L, index);
  const int line = result_line(L);
  lua_getinfo(L, ">S", &about);
  const int first = line > 0 ? line : about.linedefined;
  if (first <= 0 || about.source[0] != '@') return "";
  return fmt::format("{}:{}: ", about.source + 1, first);
}

}  // namespace perigee::lua
