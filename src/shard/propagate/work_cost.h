// The cost of a node's arithmetic and memory traffic, in the unit of redistributes.
#pragma once

#include <cstdint>
#include <vector>

#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "shard/propagate/node_sharding.h"
#include "shard/rules/rule.h"

namespace perigee::shard {

// Prices of work in bytes that a rank moves to others. Defaults: an H100 at half of 989e12
// operations and 3.35e12 bytes of memory a second, with 450e9 bytes a second to its neighbours.
struct WorkPrices {
  double per_flop = 1.0 / 1100;
  double per_byte = 1.0 / 7.4;  // read from or written to the rank's memory
};

// Returns the largest fraction of a tensor that any rank holds.
double largest_share(const std::vector<int64_t>& shape, const mesh::Placements& placements,
                     const mesh::Mesh& mesh);

// Returns the most operations that any rank computes: those of the node times the smallest share of
// its tensors. Partial operands count as whole.
double rank_flops(const Call& call, const NodeSharding& choice, const mesh::Mesh& mesh);

// Returns the cost of the node's work on the rank that has the most.
double work_cost(const Call& call, const NodeSharding& choice, const mesh::Mesh& mesh,
                 const WorkPrices& prices);

}  // namespace perigee::shard
