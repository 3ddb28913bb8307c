// Which ranks the simulator need not tell apart.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "cost/cluster.h"
#include "mesh/mesh.h"

namespace perigee::search {

// Ranks that are alike: those with one program on one kind of device, in whose every group the same
// ones stand, at the same places in their programs and as far apart. What two of them meet is then
// alike too.
struct Classes {
  std::vector<int32_t> of;  // by position
  // With stages of unequal submeshes: for the stream of each message that of the first one between
  // ranks of the same classes, at the same places in their programs.
  std::map<std::string, std::string> messages;
};
Classes classes_of(const compile::Programs& programs, const mesh::Mesh& mesh,
                   const cost::Cluster& cluster);

// Returns for each rank, by position, its stage: its position on the axis ("": 0), on each kind of
// device.
std::vector<int32_t> stages_of(const compile::Programs& programs, const mesh::Mesh& mesh,
                               const std::string& axis, const cost::Cluster& cluster);

// Returns for each class of ranks, by stream, a rank of the group that takes the longest, where
// that is another than the group of the first of them: groups that straddle nodes.
std::vector<std::map<std::string, int64_t>> slowest_groups(const compile::Programs& programs,
                                                           const mesh::Mesh& mesh,
                                                           const cost::Cluster& cluster,
                                                           const std::vector<int32_t>& classes);

}  // namespace perigee::search
