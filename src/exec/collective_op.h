// How a program's comm:: instruction reads (graph/ops.h).
#pragma once

#include <string>

#include "compile/program.h"
#include "exec/communicator.h"

namespace perigee::exec {

// Returns the collective without its tensors. Throws Error for an unknown op or reduction.
Transfer transfer_of(const compile::Instruction& instruction);

// Returns the mesh axes over which it runs ("data,context").
std::string axis_of(const compile::Instruction& instruction);

}  // namespace perigee::exec
