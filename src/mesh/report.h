// The output of `perigee mesh` (runtime/meshes.md).
#pragma once

#include <span>
#include <string>

#include "mesh/mesh.h"

namespace perigee::mesh {

// Returns the sizes of the axes before the last one at a position of it: "data=2,tensor=1".
std::string sizes_of_stage(const Mesh& mesh, int64_t stage);

// Returns the groups of every axis, then those of each set of axes in `extra` ("data,context"), one
// line each; for a ragged mesh the groups within submeshes, and the ranks of each submesh. Throws
// Error for an axis that the mesh lacks.
std::string to_text(const Mesh& mesh, std::span<const std::string> extra);

// Returns the mesh and its groups as JSON (perigee.mesh/1), on one line for each key.
std::string to_json(const Mesh& mesh, std::span<const std::string> extra);

}  // namespace perigee::mesh
