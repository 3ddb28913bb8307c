// One stage of a pipeline: the parts of the local graph that a rank runs, what it sends and
// receives, and in which order it runs them (plan::Pipeline).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/crossings.h"
#include "compile/part.h"
#include "compile/rendezvous.h"
#include "cost/schedule.h"
#include "cost/schedule_turns.h"
#include "plan/plan.h"
#include "shard/partition.h"

namespace perigee::compile {

// What sends rows to experts, or back.
inline bool is_exchange(const std::string& op) { return op == "comm::exchange"; }

// Returns whether a rank's graph is cut into sections that alternate over microbatches: those of a
// pipeline, or one stage where microbatches run in turns or weight gradients wait.
inline bool has_stages(const plan::Plan& plan, bool evaluation) {
  return plan.pipeline.cuts() || ((plan.overlap.experts || plan.overlap.weights) && !evaluation);
}

// Returns the plan's schedule, of one stage where it has no pipeline; one op a microbatch and stage
// where `evaluation` is set: the forward pass alone. Throws Error for a schedule that does not
// exist for the plan's counts.
Schedule schedule_of(const plan::Plan& plan, bool evaluation);

// A rank's graph, cut.
struct Stage {
  int64_t index = 0;       // position on the axis
  std::vector<int> parts;  // that it runs, ascending
  // What it runs as a whole for a microbatch, in the order of one microbatch, and by node of the
  // graph which of them it belongs to; the graph's nodes stand in that order.
  struct Section {
    PartId part;
    PipelineKind kind = PipelineKind::forward;
  };
  std::vector<Section> sections;
  std::vector<int> section;
  std::map<PartId, PartId> frames;   // whose frame a part has, where it is not its own
  std::map<PartId, int64_t> copies;  // of its parts' frames, and of kept ones: copies_of_parts
  std::vector<bool> kept;   // by microbatch: keeps what others run again; empty: none, or all, do
  std::vector<Span> turns;  // by position in its order: what runs in turns (find_turns)
  int64_t deferred = 0;  // of so many microbatches deferred weight gradients run behind the others
  std::vector<graph::Node> messages;  // its sends and receives, in their order, without operands
  // Parameters that several stages have, and those stages. Each adds up the gradient that it makes;
  // the first one counts in the gradients' norm.
  std::map<std::string, std::vector<int64_t>> shared;
};

// Returns how many of the microbatches on the rank's stage keep their results.
enum class Kept : uint8_t { none, some, all };
Kept kept_on_stage(const plan::Plan& plan, const Schedule& schedule, int64_t rank);

// Leaves in the local graph what the rank's stage runs: sends and receives stand for what crosses
// between stages, in the order in which both ends come to it; inputs that no part of the stage uses
// go, and outputs that it does not make have no value. In training, what no part uses stays on the
// first stage. Where several parts make a parameter's gradient it has that many outputs, in the
// order of the backward pass. `pools`: of graphs in which the plan's recompute regions run again,
// and do not. `crossings`: of stages of unequal submeshes; a value that crosses is then sent in
// boxes and put together where it arrives. `rendezvous`: of all stages of the schedule.
Stage cut_stage(shard::LocalGraph& local, const plan::Plan& plan, const Schedule& schedule,
                int64_t rank, PoolsOfFrames pools, Rendezvous& rendezvous,
                const Crossings* crossings = nullptr);

}  // namespace perigee::compile
