// Which ranks the simulator need not tell apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "cost/cluster.h"
#include "mesh/mesh.h"

namespace perigee::search {

// Returns for each rank, by position, which of them it is alike: those with one program on one kind
// of device, in whose every group the same ones stand. What two of them meet is then alike too.
std::vector<int32_t> classes_of(const compile::Programs& programs, const mesh::Mesh& mesh,
                                const cost::Cluster& cluster);

// Returns for each rank, by position, its stage: its position on the axis ("": 0), on each kind of
// device.
std::vector<int32_t> stages_of(const compile::Programs& programs, const mesh::Mesh& mesh,
                               const std::string& axis, const cost::Cluster& cluster);

}  // namespace perigee::search
