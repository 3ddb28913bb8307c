// Helpers of the tests in this folder.
#pragma once

#include <string>
#include <vector>

#include "mesh/mesh.h"

namespace perigee::mesh {

using Groups = std::vector<std::vector<int64_t>>;

// Returns the groups over axes as they are typed.
inline Groups of(const Mesh& mesh, const std::string& axes) {
  return groups(mesh, AxisSet::parse(axes));
}

}  // namespace perigee::mesh
