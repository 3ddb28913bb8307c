// `kind = "lua"`: a script that builds the model (runtime/README.md section 11).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "capture/models.h"
#include "lua/state.h"

namespace perigee::binding {

struct LuaModelSettings {
  std::string file;
  nlohmann::json job;  // resolved: `model.options` are the script's, `model.dtype` its parameters'
  lua::Options lua;    // limits and the runtime folder, which holds perigee.nn
};

// Runs the script and builds its model without memory for its parameters. `batch` is empty where
// the script does not say what a batch holds. Throws Error at the script's line.
BuiltInModel load_lua(const LuaModelSettings& settings);

// Runs the script as far as to know what its batch holds.
std::vector<BatchField> lua_batch(const LuaModelSettings& settings);

}  // namespace perigee::binding
