#include "lua/sandbox/sandbox.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "lua/api.h"
#include "lua/sandbox/pattern.h"
#include "lua/state.h"

namespace perigee::lua {
namespace {

// Registry keys are the addresses of these.
const char kEnvironment = 0;
const char kReal = 0;  // stand-in -> real table
constexpr size_t kMostRepeat = 16 << 20;

void push_registry_table(lua_State* L, const char* key) {
  lua_pushlightuserdata(L, const_cast<char*>(key));
  lua_rawget(L, LUA_REGISTRYINDEX);
}

std::vector<std::string> string_keys(lua_State* L, int table) {
  std::vector<std::string> keys;
  lua_pushnil(L);
  while (lua_next(L, table) != 0) {
    lua_pop(L, 1);
    if (lua_type(L, -1) == LUA_TSTRING) keys.emplace_back(lua_tostring(L, -1));
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

// Pushes "..., did you mean ...?" for the key at `key` among the string keys of `table`.
void push_suggestion(lua_State* L, int key, int table) {
  std::string text;
  if (lua_type(L, key) == LUA_TSTRING)
    text = did_you_mean(lua_tostring(L, key), string_keys(L, table));
  lua_pushlstring(L, text.data(), text.size());
}

// Upvalues: real table, what it is called.
int read_missing(lua_State* L) {
  lua_pushvalue(L, 2);
  lua_gettable(L, lua_upvalueindex(1));
  if (!lua_isnil(L, -1)) return 1;
  push_suggestion(L, 2, lua_upvalueindex(1));
  return luaL_error(L, "%s has no field \"%s\"%s", lua_tostring(L, lua_upvalueindex(2)),
                    lua_isstring(L, 2) ? lua_tostring(L, 2) : luaL_typename(L, 2),
                    lua_tostring(L, -1));
}

int refuse_write(lua_State* L) {
  return luaL_error(L, "%s is read-only, but the script sets its field \"%s\"",
                    lua_tostring(L, lua_upvalueindex(1)),
                    lua_isstring(L, 2) ? lua_tostring(L, 2) : luaL_typename(L, 2));
}

// Pushes the remedy for a missing global at `key`: the module of that name, or the nearest name.
void push_remedy(lua_State* L, int key, int table) {
  std::string module;
  if (lua_type(L, key) == LUA_TSTRING) module = module_named(L, lua_tostring(L, key));
  if (module.empty()) return push_suggestion(L, key, table);
  const auto text = ": write local " + module.substr(module.find('.') + 1) + " = require \"" +
                    module + "\" before it";
  lua_pushlstring(L, text.data(), text.size());
}

int read_global(lua_State* L) {
  push_remedy(L, 2, lua_upvalueindex(1));
  return luaL_error(L, "a script can use only names that exist, but \"%s\" does not%s",
                    lua_isstring(L, 2) ? lua_tostring(L, 2) : luaL_typename(L, 2),
                    lua_tostring(L, -1));
}

int write_global(lua_State* L) {
  return luaL_error(L, "a script has no global variables, but it assigns \"%s\": write local %s",
                    lua_isstring(L, 2) ? lua_tostring(L, 2) : luaL_typename(L, 2),
                    lua_isstring(L, 2) ? lua_tostring(L, 2) : "NAME");
}

// A table that the script may write to.
void check_writable(lua_State* L, int index) {
  luaL_checktype(L, index, LUA_TTABLE);
  push_real(L, index);
  if (!lua_rawequal(L, -1, index))
    luaL_error(L, "a module is read-only, but the script changes it");
  lua_pop(L, 1);
}

// Calls the library's own function (upvalue 1) with the arguments on the stack; its errors get the
// script's line.
int call_original(lua_State* L) {
  const int count = lua_gettop(L);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  if (lua_pcall(L, count, LUA_MULTRET, 0) == 0) return lua_gettop(L);
  if (!State::of(L).exhausted() && lua_type(L, -1) == LUA_TSTRING) {
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

int call_on_writable(lua_State* L) {
  check_writable(L, 1);
  return call_original(L);
}

int to_string(lua_State* L) {
  luaL_checkany(L, 1);
  const auto text = describe(L, 1);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

int print(lua_State* L) {
  std::string* line = new std::string;  // freed below; nothing in between raises
  for (int i = 1; i <= lua_gettop(L); ++i) {
    if (i > 1) *line += '\t';
    *line += describe(L, i);
  }
  State::of(L).options().print(*line);
  delete line;
  return 0;
}

// pcall and xpcall hold no error once the script's time or memory is used up.
int protected_call(lua_State* L) {
  luaL_checkany(L, 1);
  const int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
  if (status != 0 && (status == LUA_ERRMEM || State::of(L).exhausted())) return lua_error(L);
  lua_pushboolean(L, status == 0);
  lua_insert(L, 1);
  return lua_gettop(L);
}

// The handler runs once the error has unwound, not where it was raised: there the hook that ends
// scripts does not fire.
int protected_call_with_handler(lua_State* L) {
  luaL_checkany(L, 2);
  lua_pushvalue(L, 2);
  lua_insert(L, 1);
  lua_remove(L, 3);  // handler, function, arguments
  const int status = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 0);
  if (status == 0) {
    lua_pushboolean(L, 1);
    lua_replace(L, 1);
    return lua_gettop(L);
  }
  if (status == LUA_ERRMEM || State::of(L).exhausted()) return lua_error(L);
  const int handler_status = lua_pcall(L, 1, 1, 0);
  if (handler_status == LUA_ERRMEM || State::of(L).exhausted()) return lua_error(L);
  lua_pushboolean(L, 0);
  lua_insert(L, -2);
  return 2;
}

// Upvalues: table, sorted keys, position.
int next_pair(lua_State* L) {
  for (;;) {
    const auto at = lua_tointeger(L, lua_upvalueindex(3)) + 1;
    lua_pushinteger(L, at);
    lua_replace(L, lua_upvalueindex(3));
    lua_rawgeti(L, lua_upvalueindex(2), at);
    if (lua_isnil(L, -1)) return 1;
    lua_pushvalue(L, -1);
    lua_rawget(L, lua_upvalueindex(1));
    if (!lua_isnil(L, -1)) return 2;
    lua_pop(L, 2);  // removed during the traversal
  }
}

bool key_before(lua_State* L, int a, int b) {
  const int type_a = lua_type(L, a), type_b = lua_type(L, b);
  if (type_a != type_b)
    return type_a == LUA_TNUMBER || (type_a == LUA_TSTRING && type_b != LUA_TNUMBER);
  if (type_a == LUA_TNUMBER) return lua_tonumber(L, a) < lua_tonumber(L, b);
  if (type_a == LUA_TBOOLEAN) return lua_toboolean(L, a) < lua_toboolean(L, b);
  size_t size_a, size_b;
  const char* text_a = lua_tolstring(L, a, &size_a);
  const char* text_b = lua_tolstring(L, b, &size_b);
  const int order = std::memcmp(text_a, text_b, std::min(size_a, size_b));
  return order != 0 ? order < 0 : size_a < size_b;
}

int compare_keys(lua_State* L) {
  lua_pushboolean(L, key_before(L, 1, 2));
  return 1;
}

// Numbers ascending, then strings by bytes, then booleans; other keys have no order that
// two runs share.
int sorted_pairs(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  push_real(L, 1);
  lua_replace(L, 1);
  lua_newtable(L);
  int count = 0;
  lua_pushnil(L);
  while (lua_next(L, 1) != 0) {
    lua_pop(L, 1);
    const int type = lua_type(L, -1);
    if (type != LUA_TNUMBER && type != LUA_TSTRING && type != LUA_TBOOLEAN) {
      return luaL_error(L, "pairs gives keys in order, but a %s as a key has none",
                        lua_typename(L, type));
    }
    lua_pushvalue(L, -1);
    lua_rawseti(L, 2, ++count);
  }
  lua_pushvalue(L, lua_upvalueindex(1));  // table.sort
  lua_pushvalue(L, 2);
  lua_pushcfunction(L, compare_keys);
  lua_call(L, 2, 0);
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, next_pair, 3);
  return 1;
}

int string_rep(lua_State* L) {
  size_t size;
  luaL_checklstring(L, 1, &size);
  const auto count = luaL_checknumber(L, 2);
  if (count > 0 && static_cast<double>(size) * count > static_cast<double>(kMostRepeat)) {
    return luaL_error(L, "string.rep makes at most %d bytes", int(kMostRepeat));
  }
  return call_original(L);
}

// string.format without addresses: %p is refused, tables and functions print as their type.
int string_format(lua_State* L) {
  const char* format = luaL_checkstring(L, 1);
  for (const char* at = format; (at = std::strchr(at, '%')); ++at) {
    ++at;
    if (*at == '%') continue;
    at += std::strspn(at, "-+ #0123456789.");
    if (*at == 'p')
      return luaL_error(L, "string.format has no %%p: addresses differ from run to run");
    if (*at == '\0') break;
  }
  const int count = lua_gettop(L);
  for (int i = 2; i <= count; ++i) {
    const int type = lua_type(L, i);
    if (type == LUA_TNUMBER || type == LUA_TSTRING || type == LUA_TNIL || type == LUA_TBOOLEAN)
      continue;
    lua_pushstring(L, lua_typename(L, type));
    lua_replace(L, i);
  }
  return call_original(L);
}

// Sets table[name] of the table on top to a closure of `function` over the library's own `name`.
void wrap(lua_State* L, const char* name, lua_CFunction function) {
  lua_getfield(L, -1, name);
  lua_pushcclosure(L, function, 1);
  lua_setfield(L, -2, name);
}

// Pushes a table with the named fields of the library on top, which it replaces.
void keep_fields(lua_State* L, std::initializer_list<const char*> names) {
  lua_newtable(L);
  for (const char* name : names) {
    lua_getfield(L, -2, name);
    lua_setfield(L, -2, name);
  }
  lua_remove(L, -2);
}

void push_library(lua_State* L, lua_CFunction open, const char* name) {
  lua_pushcfunction(L, open);
  lua_pushstring(L, name);
  lua_call(L, 1, 0);
  lua_getglobal(L, name);
}

}  // namespace

std::string describe(lua_State* L, int index) {
  switch (lua_type(L, index)) {
    case LUA_TNUMBER:
    case LUA_TSTRING: {
      lua_pushvalue(L, index);  // lua_tolstring changes a number in place
      size_t size;
      const char* text = lua_tolstring(L, -1, &size);
      std::string result(text, size);
      lua_pop(L, 1);
      return result;
    }
    case LUA_TBOOLEAN:
      return lua_toboolean(L, index) ? "true" : "false";
    default:
      if (luaL_callmeta(L, index, "__tostring")) {
        std::string result = lua_tostring(L, -1);
        lua_pop(L, 1);
        return result;
      }
      return luaL_typename(L, index);
  }
}

void push_environment(lua_State* L) { push_registry_table(L, &kEnvironment); }

void push_real(lua_State* L, int index) {
  lua_pushvalue(L, index);
  push_registry_table(L, &kReal);
  lua_pushvalue(L, -2);
  lua_rawget(L, -2);
  lua_remove(L, -2);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
  } else {
    lua_remove(L, -2);
  }
}

void make_read_only(lua_State* L, const char* what) {
  lua_newtable(L);  // the stand-in
  push_registry_table(L, &kReal);
  lua_pushvalue(L, -2);
  lua_pushvalue(L, -4);
  lua_rawset(L, -3);
  lua_pop(L, 1);
  lua_newtable(L);  // its metatable
  lua_pushvalue(L, -3);
  lua_pushstring(L, what);
  lua_pushcclosure(L, read_missing, 2);
  lua_setfield(L, -2, "__index");
  lua_pushstring(L, what);
  lua_pushcclosure(L, refuse_write, 1);
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, -2);
  lua_remove(L, -2);
}

int open_sandbox(lua_State* L) {
  lua_pushlightuserdata(L, const_cast<char*>(&kReal));
  lua_newtable(L);
  lua_rawset(L, LUA_REGISTRYINDEX);

  lua_newtable(L);  // the environment's real content
  const int environment = lua_gettop(L);

  push_library(L, luaopen_base, "_G");
  for (const char* name : {"assert", "error", "ipairs", "select", "tonumber", "type", "unpack"}) {
    lua_getfield(L, -1, name);
    lua_setfield(L, environment, name);
  }
  lua_pop(L, 1);
  lua_pushcfunction(L, to_string);
  lua_setfield(L, environment, "tostring");
  lua_pushcfunction(L, print);
  lua_setfield(L, environment, "print");
  lua_pushcfunction(L, protected_call);
  lua_setfield(L, environment, "pcall");
  lua_pushcfunction(L, protected_call_with_handler);
  lua_setfield(L, environment, "xpcall");
  lua_pushcfunction(L, require_module);
  lua_setfield(L, environment, "require");

  push_library(L, luaopen_table, LUA_TABLIBNAME);
  lua_getfield(L, -1, "sort");
  lua_pushcclosure(L, sorted_pairs, 1);
  lua_setfield(L, environment, "pairs");
  keep_fields(L, {"concat", "insert", "maxn", "remove", "sort"});
  wrap(L, "insert", call_on_writable);
  wrap(L, "remove", call_on_writable);
  wrap(L, "sort", call_on_writable);
  make_read_only(L, "table");
  lua_setfield(L, environment, "table");

  push_library(L, luaopen_math, LUA_MATHLIBNAME);
  lua_getfield(L, -1, "randomseed");
  lua_pushnumber(L, static_cast<lua_Number>(State::of(L).options().seed));
  lua_call(L, 1, 0);
  keep_fields(L,
              {"abs",   "acos", "asin",  "atan",   "atan2", "ceil", "cos",   "cosh", "deg", "exp",
               "floor", "fmod", "frexp", "huge",   "ldexp", "log",  "log10", "max",  "min", "modf",
               "pi",    "pow",  "rad",   "random", "sin",   "sinh", "sqrt",  "tan",  "tanh"});
  make_read_only(L, "math");
  lua_setfield(L, environment, "math");

  push_library(L, luaopen_string, LUA_STRLIBNAME);
  keep_fields(L, {"byte", "char", "format", "len", "lower", "rep", "reverse", "sub", "upper"});
  wrap(L, "rep", string_rep);
  wrap(L, "format", string_format);
  const luaL_Reg patterns[] = {{"find", string_find},
                               {"match", string_match},
                               {"gmatch", string_gmatch},
                               {"gsub", string_gsub}};
  for (const auto& [name, function] : patterns) {
    lua_pushcfunction(L, function);
    lua_setfield(L, -2, name);
  }
  make_read_only(L, "string");
  lua_pushliteral(L, "");  // methods of strings are the sandbox's, too
  lua_getmetatable(L, -1);
  lua_pushvalue(L, -3);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 2);
  lua_setfield(L, environment, "string");

  // Chunks see a stand-in of the environment, so that assigning even an existing name is an error.
  lua_newtable(L);
  lua_newtable(L);
  lua_newtable(L);  // __index: the real content, which in turn refuses names it lacks
  lua_pushvalue(L, environment);
  lua_pushcclosure(L, read_global, 1);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, environment);
  lua_pushvalue(L, environment);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, write_global);
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, -2);
  lua_pushlightuserdata(L, const_cast<char*>(&kEnvironment));
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);

  // Lua code can reach nothing else of Lua's libraries.
  lua_newtable(L);
  lua_replace(L, LUA_GLOBALSINDEX);
  return 0;
}

}  // namespace perigee::lua
