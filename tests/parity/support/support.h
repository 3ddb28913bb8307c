// Runs every rank of a partitioned graph in one process, op by op, and assembles the results: the
// definition of sharded execution, without programs and communicators.
#pragma once

#include <vector>

#include "exec/reference/reference.h"
#include "graph/graph.h"
#include "mesh/mesh.h"
#include "plan/plan.h"
#include "shard/partition.h"

namespace perigee::parity {

// Partitions the graph for every rank of the plan's mesh, in mesh order.
std::vector<shard::LocalGraph> partition_all(const graph::Graph& graph, const plan::Plan& plan);

// Runs the ranks' local graphs on the global inputs: each rank gets its part, collectives combine
// the ranks' operands. Returns the global outputs by exec::evaluate's names. Throws if ranks wait
// for different collectives, a result is not of the declared type, or replicas of an output differ.
exec::Tensors evaluate_ranks(const std::vector<shard::LocalGraph>& locals, const mesh::Mesh& mesh,
                             const exec::Tensors& inputs, const exec::Draw& draw = {});

// Returns the piece of the global tensor that `rank` holds.
at::Tensor piece_of(const at::Tensor& global, const mesh::Placements& placements,
                    const mesh::Mesh& mesh, int64_t rank);

// Returns "" when the tensors agree to `tolerance` (relative to the larger of 1 and the largest
// element), else their distance.
std::string difference(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-12);

}  // namespace perigee::parity
