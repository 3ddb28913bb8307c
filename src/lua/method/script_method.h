// Methods that a script defines with perigee.methods.define.
#pragma once

#include <lua.hpp>

#include "methods/method.h"

namespace perigee::lua {

// Checks the definition at `index`, adds the method to its state and returns it. Throws Error.
const methods::Method* define_method(lua_State* L, int index);

}  // namespace perigee::lua
