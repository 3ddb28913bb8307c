// The plan that a script's method edits, as the object that its `apply` receives (perigee.Plan).
#pragma once

#include <lua.hpp>
#include <string>

#include "methods/method.h"
#include "plan/plan.h"

namespace perigee::lua {

struct PlanEdit {
  plan::Plan* plan = nullptr;  // nullptr once apply has returned
  const methods::PlanRequest* request = nullptr;
  std::string method;            // the author of the plan's further decisions
  const void* object = nullptr;  // the Lua table
};

// Pushes the object. Returns its edit, which stays valid while the object is on the stack.
PlanEdit* push_plan(lua_State* L);

// Returns the edit of the object whose function runs; its arguments begin at index 1. Throws Error
// where apply has returned.
PlanEdit& edit_of(lua_State* L);

}  // namespace perigee::lua
