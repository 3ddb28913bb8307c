// What this build has and what the machine offers.
#pragma once

#include <string>
#include <vector>

namespace perigee::train {

// Returns lines for `perigee doctor`: LibTorch, the back ends, the plugins and the GPUs, each with
// what is missing where it cannot be used. The back ends of the CPU are tried out. Opens the CUDA
// part, so call it before LibTorch is asked for CUDA.
std::vector<std::string> describe_machine();

}  // namespace perigee::train
