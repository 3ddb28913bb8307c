// `kind = "lua"`: a script that builds the model (runtime/lua_models.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "capture/models/models.h"
#include "lua/state.h"

namespace perigee::binding {

struct LuaModelSettings {
  std::string file;
  nlohmann::json job;  // resolved: `model.options` are the script's, `model.dtype` its parameters'
  lua::Options lua;    // limits and the runtime folder, which holds perigee.nn
};

// Runs the script and builds its model without memory for its parameters. `batch` is empty where
// the script does not declare the batch. Throws Error at the script's line.
BuiltInModel load_lua(const LuaModelSettings& settings);

// Runs the script up to its declaration of the batch.
std::vector<BatchField> lua_batch(const LuaModelSettings& settings);

}  // namespace perigee::binding
