// Jobs that benchmarks have the command train: a model's tables, and the rest of the job.
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

// Returns the job that trains `model` ([model] and [data]) by 16 samples a step on CPUs, and saves
// and validates nothing.
inline std::string job(std::string_view model, int steps) {
  return fmt::format(
      "{}[batch]\nglobal = 16\n[train]\nsteps = {}\nvalidate_every = 0\ncheckpoint_every = 0\n"
      "[cluster]\ndevice = \"cpu\"\n",
      model, steps);
}

}  // namespace perigee::bench
