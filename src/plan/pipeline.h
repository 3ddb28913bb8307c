// Which part of a pipeline each op belongs to.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::plan {

// The part of an op that every part runs for itself where it uses it: it needs parameters only (a
// transposed weight), or no parameter (a mask), and draws nothing.
constexpr int kEveryPart = -1;

// Returns the part of every node of a graph, whole or local. Throws Error when the forward pass
// does not come to the pipeline's starts, in their order.
std::vector<int> parts_of(const graph::Graph& graph, const Pipeline& pipeline);

// Returns by value the first part that uses it, itself or through ops of every part; kEveryPart
// where none does.
std::vector<int> first_users(const graph::Graph& graph, const Pipeline& pipeline);

// The op that stands for a value's way to another stage of unequal submeshes (compile/crossings.h),
// from the part `from_part`, that makes it, to the part `to_part`, that uses it and has this op.
inline constexpr const char* kCross = "perigee::cross";

// Returns the plan as the ranks of a stage see it: on mesh::of_stage.
Plan of_stage(const Plan& plan, int64_t stage);

// Returns whether the ranks of any stage split more between them than the batch.
bool splits_more_than_batch(const Plan& plan);

// Returns the ranks that a microbatch's samples are split over: of submeshes of unequal sizes the
// smallest number that each of theirs divides.
int64_t batch_ranks(const Plan& plan);

// Throws Error for a plan with submeshes of unequal sizes whose stages are not these, or that has
// what all stages must have alike: copies, clipping per rank, sums over the batch's ranks,
// exchanges in turns, eight-bit histories of each rank.
void verify_submeshes(const Plan& plan);

}  // namespace perigee::plan
