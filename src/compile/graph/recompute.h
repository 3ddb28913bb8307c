// Activation checkpointing on a rank's graph.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::compile {

// Recomputes the plan's regions where the backward pass needs their results: each backward op reads
// a copy of the forward op, inserted just before the first backward op that needs it. `parts`: the
// part of each node in a pipeline (plan::parts_of), or empty. A region that several parts share is
// one region for each part: activations that one part sends to the next are kept.
graph::Graph recompute(const graph::Graph& local, const plan::Recompute& plan,
                       std::vector<int> parts = {});

// Cost and saving of recomputing a region on a rank, per microbatch, independent of other regions.
struct RegionCost {
  double flops = 0;   // of the recomputed ops
  int64_t bytes = 0;  // saved: not kept for the backward pass
};
std::vector<RegionCost> recompute_costs(const graph::Graph& local, const plan::Recompute& plan);

}  // namespace perigee::compile
