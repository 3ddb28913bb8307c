// What a script sees: an allow-list environment, read-only libraries, deterministic
// order and texts.
#pragma once

#include <lua.hpp>
#include <string>

namespace perigee::lua {

// Builds the environment and keeps it in the registry. Called once per state, protected.
int open_sandbox(lua_State* L);

// Pushes the environment table that chunks run in.
void push_environment(lua_State* L);

// Replaces the table on top of the stack by a read-only stand-in: reading a field it lacks, writing
// and getmetatable are errors that name `what` ("math", "perigee.methods").
void make_read_only(lua_State* L, const char* what);

// Pushes the table behind a read-only stand-in at `index`, or the value itself.
void push_real(lua_State* L, int index);

// Returns a text without addresses: numbers and strings as they are, else the type's name.
std::string describe(lua_State* L, int index);

}  // namespace perigee::lua
