// Storage of the events of a step's runs.
#pragma once

#include <vector>

#include "compile/program.h"

namespace perigee::compile {

// Returns, by event, whether at most one run of the step starts it. Such an event has one entry.
// Other events have one for each copy of the microbatch frame of their section's part.
std::vector<bool> started_once(const Program& program);

}  // namespace perigee::compile
