// The compiler's passes in the order they run. compile/rank.cc runs these lists, and DESIGN.md
// documents them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compile/draft/sections.h"
#include "compile/draft/source.h"
#include "compile/gradients/gathers.h"
#include "compile/gradients/gradients.h"
#include "compile/graph/microbatch.h"
#include "compile/overlap/bulk.h"
#include "compile/rank.h"

namespace perigee::compile {

template <class State>
struct Pass {
  const char* name;
  const char* purpose;  // one line
  void (*run)(State&);
};

template <class State>
void run_passes(const std::vector<Pass<State>>& passes, State& state) {
  for (const auto& pass : passes) pass.run(state);
}

// State of the passes of the captured graph.
struct GraphState {
  const StepSpec& spec;
  graph::Graph graph;
  plan::Plan plan;              // with placements under the names of `graph`'s values
  StageTransfers* transfers;    // of stages of unequal submeshes, or null
  bool lowers_precision;        // the plan has a precision
  graph::Graph before_casts{};  // if lowers_precision
  shard::LossKind loss = shard::LossKind::mean;
  shard::Sharding sharding{};
};
const std::vector<Pass<GraphState>>& graph_passes();

// State of the passes of a rank's graph, which has all stages.
struct RankState {
  const Common& common;
  const plan::Plan& plan;
  int64_t rank;
  bool recomputes;  // the plan's recompute regions
  shard::LocalGraph local{};
};
const std::vector<Pass<RankState>>& rank_passes();

// State of the passes from a rank's graph to its program.
struct DraftState {
  const Common& common;
  const plan::Plan& plan;
  const StepSpec& spec;
  int64_t rank;
  TraceSource& traces;
  Local local;
  std::vector<plan::FlatUnit> flats{};  // of the plan's units, on this rank
  std::vector<Gather> gathers{};
  Microbatches microbatches{};
  std::vector<MicroSection> sections{};
  std::optional<Source> source{};  // of the above
  Draft draft{};
  std::vector<ValueId> inputs{};  // like the local graph's inputs
  Gradients gradients{};
  Accumulated accumulated{};
  WholeCollectives waited{};
  Program program{};

  const Stage* stage() const { return local.stage ? &*local.stage : nullptr; }
};
const std::vector<Pass<DraftState>>& draft_passes();

// Returns "graph: NAME: PURPOSE", "rank: ..." and "draft: ..." of all passes, in order.
std::vector<std::string> list_passes();

}  // namespace perigee::compile
