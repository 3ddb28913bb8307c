// Helpers for tests of meshes.
#pragma once

#include <string>
#include <vector>

#include "mesh/mesh.h"

namespace perigee::mesh {

using Groups = std::vector<std::vector<int64_t>>;

// Returns the groups over axes given as text.
inline Groups of(const Mesh& mesh, const std::string& axes) {
  return groups(mesh, AxisSet::parse(axes));
}

}  // namespace perigee::mesh
