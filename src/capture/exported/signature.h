// An archive's inputs and outputs: which are the batch, the module's tensors and constants.
#pragma once

#include <nlohmann/json.hpp>

#include "capture/exported/archive.h"
#include "capture/exported/arguments.h"
#include "capture/exported/program.h"

namespace perigee::exported {

// Adds the graph's inputs to the program and their slots to `names`. Throws Error as
// read_program does.
void read_inputs(const Archive& archive, Program& program, Names& names);

// Adds the results and the buffers' new values.
void read_outputs(const Archive& archive, const Names& names, Program& program);

}  // namespace perigee::exported
