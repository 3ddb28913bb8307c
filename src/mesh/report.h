// What `perigee mesh` prints (runtime/README.md section 6).
#pragma once

#include <span>
#include <string>

#include "mesh/mesh.h"

namespace perigee::mesh {

// Returns the groups of every axis, then those of each of `extra` ("data,context", as typed), one
// line each. Throws Error for an axis that the mesh lacks.
std::string to_text(const Mesh& mesh, std::span<const std::string> extra);

// Returns the same as JSON (perigee.mesh/1), on one line for each key.
std::string to_json(const Mesh& mesh, std::span<const std::string> extra);

}  // namespace perigee::mesh
