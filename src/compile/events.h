// Where the runs of a step keep what they start.
#pragma once

#include <vector>

#include "compile/program.h"

namespace perigee::compile {

// Returns by event whether at most one run of the step starts it: whichever section waits for it,
// it has one place. Events of others have one for each copy of the frame of the section's part.
std::vector<bool> started_once(const Program& program);

}  // namespace perigee::compile
