// Assigns each op to a part of the pipeline.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::plan {

// The part of an op that each part which uses its result computes for itself: an op that depends on
// parameters only (a transposed weight) or on no parameter (a mask), and draws no random numbers.
constexpr int kEveryPart = -1;

// Returns the part of every node of a global or local graph. Throws Error when the forward pass
// does not reach the pipeline's starts in their order.
std::vector<int> parts_of(const graph::Graph& graph, const Pipeline& pipeline);

// Returns for each value the first part that uses it, directly or through ops of kEveryPart;
// kEveryPart where no part does.
std::vector<int> first_users(const graph::Graph& graph, const Pipeline& pipeline);

// The op for a value's transfer to another stage of unequal submeshes
// (compile/stages/stage_transfers.h), from the part `from_part`, that makes it, to the part
// `to_part`, that uses it and has this op.
inline constexpr const char* kCross = "perigee::cross";

// Returns the plan on the mesh that the ranks of a stage see (mesh::of_stage).
Plan of_stage(const Plan& plan, int64_t stage);

// Returns whether any stage shards more than the batch over its ranks.
bool splits_more_than_batch(const Plan& plan);

// Returns the number of ranks over which a microbatch's samples are sharded; with submeshes of
// unequal sizes, the least common multiple of the stages' numbers.
int64_t batch_ranks(const Plan& plan);

// Throws Error for a plan with submeshes of unequal sizes whose pipeline is not over them, or that
// uses a feature which requires homogeneous stages: copies, clipping per rank, sums over the
// batch's ranks, interleaved expert exchanges, FP8 histories per rank.
void verify_submeshes(const Plan& plan);

}  // namespace perigee::plan
