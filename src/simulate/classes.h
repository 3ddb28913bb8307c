// Equivalent ranks: the simulator runs one of each class.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "cost/cluster.h"
#include "mesh/mesh.h"

namespace perigee::simulate {

// Two ranks are equivalent if they run one program on one kind of device, and the groups of each
// stream of theirs consist of equivalent ranks, at the same positions of their programs and at the
// same network levels.
struct RankClasses {
  std::vector<int32_t> of;  // by position
  // With stages of unequal submeshes: by stream of a message, the stream of the first equivalent
  // message (same classes, same positions of their programs).
  std::map<compile::Stream, compile::Stream> messages;
};
RankClasses rank_classes(const compile::Programs& programs, const mesh::Mesh& mesh,
                         const cost::Cluster& cluster);

// Returns for each rank, by position, a number for its stage (position on `axis`; "": one stage)
// and its kind of device.
std::vector<int32_t> stages_of(const compile::Programs& programs, const mesh::Mesh& mesh,
                               const std::string& axis, const cost::Cluster& cluster);

// Returns for each class, by stream, a rank of the slowest group, where that is not the group of
// the class's first rank: groups that span nodes.
std::vector<std::map<compile::Stream, int64_t>> slowest_groups(const compile::Programs& programs,
                                                               const mesh::Mesh& mesh,
                                                               const cost::Cluster& cluster,
                                                               const std::vector<int32_t>& classes);

}  // namespace perigee::simulate
