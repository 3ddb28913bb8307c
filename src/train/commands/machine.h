// The parts of this build and the devices of this machine.
#pragma once

#include <string>
#include <vector>

namespace perigee::train {

// Returns lines for `perigee doctor`: LibTorch, the default ranks, the back ends, the plugins and
// the GPUs, each with the missing part where it cannot be used. Runs a collective on each back end
// of the CPU, and products on one thread and on all. Opens perigee_cuda, so call it before LibTorch
// is asked for CUDA.
std::vector<std::string> describe_machine();

}  // namespace perigee::train
