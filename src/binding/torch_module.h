// `perigee.torch`: every op of LibTorch, and functions for literals, parameters, classes
// and scopes.
#pragma once

#include <lua.hpp>

namespace perigee::binding {

// Pushes the module as a read-only table.
void push_torch_module(lua_State* L);

}  // namespace perigee::binding
