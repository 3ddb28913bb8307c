// The whole Lua API as one table: argument checks, editor types (LuaCATS) and the reference page
// come from it.
#pragma once

#include <lua.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::lua {

// Types: string, number, integer, boolean, table, function, any, and classes of tables
// (perigee.Recompute, perigee.Unit[]); a trailing "?" makes the parameter optional.
struct Parameter {
  std::string name;
  std::string type;
  std::string doc;
};

struct Function {
  std::string name;
  std::vector<Parameter> parameters;
  std::string returns;  // a LuaCATS type, "" for nothing
  std::string doc;
  // Runs with checked arguments; a std::exception becomes a Lua error at the caller's line.
  int (*run)(lua_State*, const Function&);
};

struct Module {
  std::string name;  // "perigee.mesh"
  std::string doc;
  std::vector<Function> functions = {};
  // Further lines of the editor types: classes that the functions return.
  std::string types = {};
  // Documentation only: the module is made by the host or written in Lua (runtime/perigee).
  bool elsewhere = false;
  // A class of tables or objects, which no script requires: its fields, and functions that are
  // called with a colon.
  bool is_class = false;
  std::vector<Parameter> fields = {};
};

// Returns every module in the order of the reference page. `perigee.methods` has one function per
// built-in method, made from the methods' own tables of fields.
const std::vector<Module>& api();

// Returns the functions of perigee.Plan; they run on its object (method/plan_object.h).
const std::vector<Function>& plan_functions();

// How errors name a function: "[area] OBJECT NAME: ...".
struct Caller {
  std::string_view area = "lua";
  std::string_view object = "";  // "plan:"
};

// Throws Error unless the arguments on the stack, from index 1, are those of the function.
void check_arguments(lua_State* L, const Function& function, const Caller& caller = {});

// Pushes a checked closure of the function.
void push_function(lua_State* L, const Function& function);

// Pushes the module as a read-only table. Returns false, with nothing pushed, where there is none
// of that name.
bool push_module(lua_State* L, std::string_view name);

// Returns the module that a script may have meant by a global name: "perigee.methods" for "perigee"
// and "methods"; "" where there is none.
std::string module_named(lua_State* L, const std::string& global);

// The sandbox's `require`.
int require_module(lua_State* L);

// Returns the text of runtime/perigee.d.lua (editor types) and runtime/lua.md (reference).
std::string editor_types();
std::string reference_page();

}  // namespace perigee::lua
