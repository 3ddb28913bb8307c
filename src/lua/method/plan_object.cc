#include "lua/method/plan_object.h"

#include <new>

#include "base/fail.h"
#include "lua/api.h"
#include "lua/guard.h"

namespace perigee::lua {
namespace {

PlanEdit* upvalue_of(lua_State* L) {
  return static_cast<PlanEdit*>(lua_touserdata(L, lua_upvalueindex(2)));
}

// Upvalues: the Function, the PlanEdit.
int call_on_plan(lua_State* L) {
  const auto& function = *static_cast<const Function*>(lua_touserdata(L, lua_upvalueindex(1)));
  return guarded(L, [&] {
    if (lua_topointer(L, 1) != upvalue_of(L)->object) {
      fail("method", "functions of a plan are called with a colon, plan:{}(...), but got a dot",
           function.name);
    }
    edit_of(L);
    lua_remove(L, 1);
    check_arguments(L, function, {.area = "method", .object = "plan:"});
    return function.run(L, function);
  });
}

int destroy(lua_State* L) {
  static_cast<PlanEdit*>(lua_touserdata(L, 1))->~PlanEdit();
  return 0;
}

}  // namespace

PlanEdit* push_plan(lua_State* L) {
  lua_newtable(L);
  const int object = lua_gettop(L);
  auto* edit = new (lua_newuserdata(L, sizeof(PlanEdit))) PlanEdit;
  edit->object = lua_topointer(L, object);
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, destroy);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  for (const auto& function : plan_functions()) {
    lua_pushlightuserdata(L, const_cast<Function*>(&function));
    lua_pushvalue(L, object + 1);
    lua_pushcclosure(L, call_on_plan, 2);
    lua_setfield(L, object, function.name.c_str());
  }
  lua_settop(L, object);
  return edit;
}

PlanEdit& edit_of(lua_State* L) {
  auto* edit = upvalue_of(L);
  if (!edit->plan) fail("method", "a plan is edited inside apply, but apply has returned");
  return *edit;
}

}  // namespace perigee::lua
