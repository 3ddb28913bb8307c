// The groups of a rank's program, connected before its first step.
#pragma once

#include "compile/program.h"
#include "exec/comm/communicator.h"
#include "mesh/mesh.h"

namespace perigee::exec {

// Makes the program's groups, and connects the pairs of ranks that its messages need. All ranks do
// so in one order, that of names and positions, since connecting waits for the other ranks. Throws
// Error where they do not connect within the time-out.
void connect_groups(const compile::Program& program, Communicator& communicator,
                    const mesh::Mesh& mesh);

}  // namespace perigee::exec
