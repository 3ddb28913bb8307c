// perigee.methods: one function per built-in method, and `define` for the user's own.
#include <fmt/format.h>

#include "base/error.h"
#include "lua/api.h"
#include "lua/convert.h"
#include "lua/guard.h"
#include "lua/method/script_method.h"
#include "lua/places.h"
#include "methods/method.h"

namespace perigee::lua {
namespace {

// Leaves {name, config} on the stack, the method as plain data.
int push_use(lua_State* L, const methods::Method& method) {
  check_config(method, lua_isnoneornil(L, 1) ? nlohmann::json() : to_json(L, 1, method.name()));
  lua_createtable(L, 2, 0);
  lua_pushlstring(L, method.name().data(), method.name().size());
  lua_rawseti(L, -2, 1);
  if (!lua_isnoneornil(L, 1)) {
    lua_pushvalue(L, 1);
    lua_rawseti(L, -2, 2);
  }
  keep_place(L);
  return 1;
}

int use_built_in(lua_State* L, const Function& function) {
  for (const auto& method : methods::all()) {
    if (method->name() == function.name) return push_use(L, *method);
  }
  return 0;
}

// Upvalue: the method, which the state keeps.
int use_defined(lua_State* L) {
  const auto* method = static_cast<const methods::Method*>(lua_touserdata(L, lua_upvalueindex(1)));
  return guarded(L, [&] { return push_use(L, *method); });
}

int define(lua_State* L, const Function&) {
  lua_pushlightuserdata(L, const_cast<methods::Method*>(define_method(L, 1)));
  lua_pushcclosure(L, use_defined, 1);
  return 1;
}

}  // namespace

Module methods_module() {
  Module module{
      "perigee.methods",
      "Optimisation methods. Each call returns {name, config}; a strategy is a list of them.",
      {}};
  for (const auto& method : methods::all()) {
    std::string doc = "config:";
    if (!method->items().empty()) doc += fmt::format(" {};", method->items());
    for (const auto& field : method->fields()) {
      doc += fmt::format(" {};", describe(field));
    }
    doc.back() = '.';
    module.functions.push_back({std::string(method->name()),
                                {{"config", "table?", doc}},
                                "table",
                                std::string(method->doc()),
                                use_built_in});
  }
  module.functions.push_back(
      {"define",
       {{"method", "table",
         "name (string), doc (string), fields (name = type, or {type, doc, required, default}), "
         "check(config, request), apply(plan, config, request), cost(config, request, with, "
         "without). Types of fields: boolean, integer, number, string, list, list of integers, "
         "list of numbers, list of strings, string or list, table, any"}},
       "function",
       "Defines a method. Returns a function of a config that uses the method in a strategy. "
       "`apply` edits a perigee.Plan; `check` may refuse the config first. `cost`, if given, "
       "returns the method's own cost for perigee.profiler's costs: `with` and `without` have the "
       "seconds and bytes of the plans with and without the method (nil where no plan "
       "works without it); it returns a table of seconds and bytes, and a missing field is their "
       "difference.",
       define});
  return module;
}

}  // namespace perigee::lua
