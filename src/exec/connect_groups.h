// The groups of a rank's program, connected before its first step.
#pragma once

#include <memory>
#include <vector>

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

// Registers the arena's memory of collectives with each of the program's groups, whose collectives
// then need no copies where all ranks have the same layout (Group::register_memory). All ranks call
// it. Returns the registrations. Throws Error where a group does.
std::vector<std::shared_ptr<void>> register_memory(const compile::Program& program,
                                                   Communicator& communicator,
                                                   const mesh::Mesh& mesh, const Arena& arena);

// Gives frames of one copy the memory that all ranks of their groups map. All ranks call it. Throws
// Error where they cannot map it: on several hosts, or on a GPU.
void place_one_copies(const compile::Program& program, Communicator& communicator,
                      const mesh::Mesh& mesh, const Device& device, Arena& arena);

}  // namespace perigee::exec
