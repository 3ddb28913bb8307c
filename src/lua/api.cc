#include "lua/api.h"

#include "base/fail.h"
#include "lua/guard.h"
#include "lua/sandbox/sandbox.h"
#include "methods/method.h"

namespace perigee::lua {

// One function a module, each in its own file.
Module methods_module();
Module plan_module();
std::vector<Module> plan_classes();     // tables that functions of a plan take
std::vector<Module> request_classes();  // tables that a method's functions read
std::vector<Module> job_classes();      // the job, as these and strategy functions read it
Module mesh_module();
Module shard_module();
Module strategy_module();
Module solver_module();
Module profiler_module();
Module torch_module();
Module nn_module();
Module host_module();

namespace {

bool fits(lua_State* L, int index, std::string_view type) {
  if (type.ends_with('?')) {
    if (lua_isnoneornil(L, index)) return true;
    type.remove_suffix(1);
  }
  if (type.starts_with("perigee.")) type = "table";
  if (type == "any") return !lua_isnone(L, index);
  if (type == "integer") {
    return lua_type(L, index) == LUA_TNUMBER &&
           lua_tonumber(L, index) == static_cast<lua_Number>(lua_tointeger(L, index));
  }
  return type == luaL_typename(L, index);
}

// Upvalue: the Function.
int call_checked(lua_State* L) {
  const auto& function = *static_cast<const Function*>(lua_touserdata(L, lua_upvalueindex(1)));
  return guarded(L, [&] {
    check_arguments(L, function);
    return function.run(L, function);
  });
}

}  // namespace

const std::vector<Module>& api() {
  static const std::vector<Module> modules = [] {
    std::vector<Module> list = {
        methods_module(),  plan_module(),     mesh_module(), shard_module(), solver_module(),
        profiler_module(), strategy_module(), host_module(), torch_module(), nn_module()};
    const auto add = [&](const std::vector<Module>& classes) {
      list.insert(list.begin() + 2, classes.begin(), classes.end());
    };
    add(job_classes());
    add(request_classes());
    add(plan_classes());
    return list;
  }();
  return modules;
}

void check_arguments(lua_State* L, const Function& function, const Caller& caller) {
  const int most = static_cast<int>(function.parameters.size());
  if (lua_gettop(L) > most) {
    fail(caller.area, "{}{} takes at most {} arguments, but got {}", caller.object, function.name,
         most, lua_gettop(L));
  }
  for (int i = 0; i < most; ++i) {
    const auto& parameter = function.parameters[i];
    if (fits(L, i + 1, parameter.type)) continue;
    fail(caller.area, "{}{}: argument {} must be of type {}, but got {}", caller.object,
         function.name, parameter.name, parameter.type,
         lua_isnone(L, i + 1) ? "nothing" : luaL_typename(L, i + 1));
  }
}

void push_function(lua_State* L, const Function& function) {
  lua_pushlightuserdata(L, const_cast<Function*>(&function));
  lua_pushcclosure(L, call_checked, 1);
}

bool push_module(lua_State* L, std::string_view name) {
  for (const auto& module : api()) {
    if (module.name != name || module.elsewhere || module.is_class) continue;
    lua_createtable(L, 0, static_cast<int>(module.functions.size()));
    for (const auto& function : module.functions) {
      push_function(L, function);
      lua_setfield(L, -2, function.name.c_str());
    }
    make_read_only(L, module.name.c_str());
    return true;
  }
  return false;
}

namespace {

// "mesh, axes"
std::string names_of(const Function& function) {
  std::string names;
  for (const auto& parameter : function.parameters) {
    names += (names.empty() ? "" : ", ") + parameter.name;
  }
  return names;
}

// A parameter or field as LuaCATS has it: "name? type doc".
std::string annotation(const Parameter& parameter) {
  std::string_view type = parameter.type;
  const bool optional = type.ends_with('?');
  if (optional) type.remove_suffix(1);
  return fmt::format("{}{} {} {}", parameter.name, optional ? "?" : "", type, parameter.doc);
}

std::string listed(const Parameter& parameter) {
  return fmt::format("- `{}` ({}): {}\n", parameter.name, parameter.type, parameter.doc);
}

}  // namespace

std::string editor_types() {
  std::string text =
      "---@meta\n-- Editor types of Perigee's Lua API, made by `perigee lua --types`. Do not "
      "edit.\n";
  for (const auto& module : api()) {
    const auto local = module.name.substr(module.name.rfind('.') + 1);
    text += module.types;
    text += fmt::format("\n---{}\n---@class {}\n", module.doc, module.name);
    for (const auto& field : module.fields) text += "---@field " + annotation(field) + "\n";
    if (module.is_class && module.functions.empty()) continue;
    text += fmt::format("local {} = {{}}\n", local);
    for (const auto& function : module.functions) {
      text += fmt::format("\n---{}\n", function.doc);
      for (const auto& parameter : function.parameters) {
        text += "---@param " + annotation(parameter) + "\n";
      }
      if (!function.returns.empty()) text += fmt::format("---@return {}\n", function.returns);
      text += fmt::format("function {}{}{}({}) end\n", local, module.is_class ? ":" : ".",
                          function.name, names_of(function));
    }
  }
  return text;
}

std::string reference_page() {
  std::string text =
      "# Lua reference\n\nMade by `perigee lua --reference` from the one table that also checks "
      "arguments. Do not "
      "edit.\n";
  for (const auto& module : api()) {
    text += fmt::format("\n## {}\n\n{}\n", module.name, module.doc);
    if (!module.fields.empty()) text += "\n";
    for (const auto& field : module.fields) text += listed(field);
    for (const auto& function : module.functions) {
      text += fmt::format("\n### {}{}({})\n\n{}\n", module.is_class ? "plan:" : "", function.name,
                          names_of(function), function.doc);
      if (!function.parameters.empty()) text += "\n";
      for (const auto& parameter : function.parameters) text += listed(parameter);
      if (!function.returns.empty()) text += fmt::format("\nReturns {}.\n", function.returns);
    }
  }
  return text;
}

}  // namespace perigee::lua
