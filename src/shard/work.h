// What a node's work costs beside what is moved for it.
#pragma once

#include <cstdint>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "shard/choose.h"
#include "shard/rule.h"

namespace perigee::shard {

// What work costs, in the unit of redistributing: bytes that a rank moves to others. By default
// that of a GPU of a data centre, of an H100: half of 989e12 operations and 3.35e12 bytes of its
// memory a second, and 450e9 bytes to its neighbours.
struct WorkPrices {
  double per_flop = 1.0 / 1100;
  double per_byte = 1.0 / 7.4;  // read from or written to the rank's memory
};

// Returns the share of a tensor that the rank with the most of it holds.
double share_of(const std::vector<int64_t>& shape, const mesh::Placements& placements,
                const mesh::Mesh& mesh);

// Returns the operations of the rank that has the most of the node: an axis on which something is
// sharded shares them out; Partial operands are whole.
double arithmetic(const Call& call, const Choice& choice, const mesh::Mesh& mesh);

// Returns the work of a node that runs so, on the rank that has the most of it.
double work_of(const Call& call, const Choice& choice, const mesh::Mesh& mesh,
               const WorkPrices& prices);

}  // namespace perigee::shard
