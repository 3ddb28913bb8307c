#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/fail.h"
#include "lua/api.h"
#include "lua/guard.h"
#include "lua/sandbox/sandbox.h"
#include "lua/state.h"

namespace perigee::lua {
namespace {

const char kLoaded = 0;

// Pushes the registry's table of loaded modules.
void push_loaded(lua_State* L) {
  lua_pushlightuserdata(L, const_cast<char*>(&kLoaded));
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_isnil(L, -1)) return;
  lua_pop(L, 1);
  lua_newtable(L);
  lua_pushlightuserdata(L, const_cast<char*>(&kLoaded));
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

bool well_formed(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.back() != '.' &&
         name.find("..") == std::string_view::npos &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '_' || c == '.' || c == '-';
         });
}

// Returns the file of a module written in Lua.
std::string module_file(const State& state, const std::string& name) {
  auto relative = name;
  std::replace(relative.begin(), relative.end(), '.', '/');
  const bool ours = name.starts_with("perigee.");
  const auto& folder = ours ? state.options().runtime_folder : state.script_folder();
  if (!folder.empty()) {
    const auto path = (std::filesystem::path(folder) / (relative + ".lua")).string();
    if (std::filesystem::exists(path)) return path;
    if (!ours) fail("lua", "require \"{}\" needs the file {}, but there is none", name, path);
  }
  if (name == "perigee.torch") {
    fail("lua",
         "perigee.torch is for the script of a model (model.kind = \"lua\"), which this is not");
  }
  std::vector<std::string> names;
  for (const auto& module : api()) names.push_back(module.name);
  fail("lua", "require names a perigee module or a file beside the script, but got \"{}\"{}", name,
       did_you_mean(name, names));
}

}  // namespace

std::string module_named(lua_State* L, const std::string& global) {
  if (global == "perigee") return "perigee.methods";
  const auto name = "perigee." + global;
  for (const auto& module : api()) {
    if (module.name == name) return name;
  }
  const auto& folder = State::of(L).options().runtime_folder;
  const bool written = !folder.empty() && std::filesystem::exists(std::filesystem::path(folder) /
                                                                  "perigee" / (global + ".lua"));
  return written ? name : "";
}

int require_module(lua_State* L) {
  size_t size;
  const char* text = luaL_checklstring(L, 1, &size);
  lua_settop(L, 1);
  push_loaded(L);
  lua_pushvalue(L, 1);
  lua_rawget(L, 2);
  if (!lua_isnil(L, -1)) {
    if (lua_type(L, -1) == LUA_TLIGHTUSERDATA) {
      return luaL_error(L, "require \"%s\" runs in a circle: the module requires itself", text);
    }
    return 1;
  }
  lua_pop(L, 1);
  const int status = guarded(L, [&] {
    const std::string name(text, size);
    if (!well_formed(name)) fail("lua", "require takes a module name, but got \"{}\"", name);
    auto& state = State::of(L);
    if (state.options().module && state.options().module(L, name)) return 0;
    if (push_module(L, name)) return 0;
    const auto path = module_file(state, name);
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    state.load(content.str(), path);
    return 1;
  });
  if (status == 1) {
    lua_pushvalue(L, 1);
    lua_pushlightuserdata(L, const_cast<char*>(&kLoaded));
    lua_rawset(L, 2);
    lua_call(L, 0, 1);
    if (lua_isnil(L, -1)) {
      lua_pop(L, 1);
      lua_pushboolean(L, 1);
    } else if (lua_istable(L, -1) && std::string_view(text, size).starts_with("perigee.")) {
      make_read_only(L, text);
    }
  }
  lua_pushvalue(L, 1);
  lua_pushvalue(L, -2);
  lua_rawset(L, 2);
  return 1;
}

}  // namespace perigee::lua
