// The groups of a rank's program, connected before its first step.
#pragma once

#include "compile/program.h"
#include "exec/comm/communicator.h"
#include "exec/device.h"
#include "exec/memory/arena.h"
#include "mesh/mesh.h"

namespace perigee::exec {

// Makes the program's groups, and connects the pairs of ranks that its messages need. All ranks do
// so in one order, that of names and positions, since connecting waits for the other ranks. Throws
// Error where they do not connect within the time-out.
void connect_groups(const compile::Program& program, Communicator& communicator,
                    const mesh::Mesh& mesh);

// Gives frames of one copy the memory that all ranks of their groups map. All ranks call it. Throws
// Error where they cannot map it: on several hosts, or on a GPU.
void place_one_copies(const compile::Program& program, Communicator& communicator,
                      const mesh::Mesh& mesh, const Device& device, Arena& arena);

}  // namespace perigee::exec
