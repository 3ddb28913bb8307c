// Jobs for benchmarks that run the command.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace perigee::bench {

inline constexpr std::string_view kSmallGpt = R"([model]
kind = "gpt"
layers = 4
width = 256
heads = 4
[data]
synthetic = true
sequence = 128
)";

// Returns a job for `model` (its [model] and [data] tables): 16 samples a step on CPUs, without
// checkpoints and validation.
inline std::string job(std::string_view model, int steps) {
  return fmt::format(
      "{}[batch]\nglobal = 16\n[train]\nsteps = {}\nvalidate_every = 0\ncheckpoint_every = 0\n"
      "[cluster]\ndevice = \"cpu\"\n",
      model, steps);
}

}  // namespace perigee::bench
