// One stage of a pipeline: the parts of the local graph that a rank runs, their order, and its
// sends and receives (plan::Pipeline).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/section_role.h"
#include "compile/stages/rendezvous.h"
#include "compile/stages/stage_inputs.h"
#include "compile/stages/stage_transfers.h"
#include "plan/plan.h"
#include "schedule/interleave.h"
#include "schedule/schedule.h"
#include "shard/partition.h"

namespace perigee::compile {

// Returns whether an op is an expert all-to-all: it sends rows to experts, or back.
inline bool is_exchange(const std::string& op) { return op == "comm::exchange"; }

// Returns whether a rank's graph is cut into sections that alternate over microbatches: those of a
// pipeline, or one stage where microbatches are interleaved or weight gradients delayed.
inline bool has_stages(const plan::Plan& plan, bool evaluation) {
  return plan.pipeline.cuts() || ((plan.overlap.experts || plan.overlap.weights) && !evaluation);
}

// Returns the plan's schedule, of one stage where it has no pipeline; with `evaluation` forward
// passes only. Throws Error for a schedule that does not exist for the plan's counts.
Schedule schedule_of(const plan::Plan& plan, bool evaluation);

// A rank's graph, cut.
struct Stage {
  int64_t index = 0;       // position on the axis
  std::vector<int> parts;  // that it runs, ascending
  // The sections of a microbatch, in order, and by node of the graph the section it belongs to; the
  // graph's nodes are in that order.
  std::vector<SectionRole> sections;
  std::vector<int> section;
  std::map<PartId, PartId> frames;   // the owner of a part's frame, where it is another part
  std::map<PartId, int64_t> copies;  // of its parts' frames, and of kept ones: copies_of_parts
  std::vector<bool> kept;            // by microbatch: keeps its results; empty: none or all do
  std::vector<InterleavedRange> interleaved;  // by position in its order: find_interleaved_ops
  int64_t deferred = 0;               // microbatches whose deferred weight gradients run at the end
  std::vector<graph::Node> messages;  // its sends and receives, in their order, without operands
  // Parameters that several stages have, and those stages. Each adds up the gradient that it makes;
  // the first one counts in the gradients' norm.
  std::map<std::string, std::vector<int64_t>> shared;
};

// Reduces the local graph to the rank's stage. Values that cross between stages become sends and
// receives, in the same order on both ends; inputs that no part of the stage uses are removed, and
// outputs that it does not make have no value. In training, inputs that no stage uses stay on those
// that have them in the whole graph (`inputs`, which may be null: the first stage).
// Where several parts make a parameter's gradient, it has one output for each, in the order of the
// backward pass. `pools`: of the graphs with and without recomputed regions. `transfers`: of stages
// of unequal submeshes, whose values are sent in boxes that the receiver assembles. `rendezvous`:
// of all stages of the schedule.
Stage cut_stage(shard::LocalGraph& local, const plan::Plan& plan, const Schedule& schedule,
                int64_t rank, PoolsOfFrames pools, Rendezvous& rendezvous,
                const StageInputs* inputs, const StageTransfers* transfers);

}  // namespace perigee::compile
