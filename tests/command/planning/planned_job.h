// A small job to plan, profile and simulate.
#pragma once

#include <string>

#include "tests/command/support.h"

namespace perigee::test {

inline constexpr const char* kPlannedJob = R"(
[model]
kind = "gpt"
layers = 4
width = 64
heads = 2
[data]
synthetic = true
sequence = 32
[batch]
global = 8
[train]
steps = 2
validate_every = 0
[cluster]
device = "cpu"
)";

// Writes a job of the model on synthetic data.
inline std::string write_job(const Folder& folder, const std::string& model,
                             const std::string& data = "") {
  return folder.write("job.toml", "[model]\n" + model + "[data]\nsynthetic = true\n" + data +
                                      "[batch]\nglobal = 8\n[cluster]\ndevice = \"cpu\"\n");
}

// Options of a command with a profile folder of its own.
inline How own_cache(const Folder& folder) {
  return {.environment = {{"XDG_CACHE_HOME", folder / "cache"}}};
}

}  // namespace perigee::test
