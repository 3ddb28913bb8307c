// Compilation in three steps: data common to all ranks, one rank's graph, its program.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "compile/stages/stage.h"
#include "compile/stages/stage_inputs.h"
#include "compile/stages/stage_transfers.h"
#include "shard/loss/classify_loss.h"
#include "shard/partition.h"

namespace perigee::compile {

// The input of every rank's program.
struct Common {
  const graph::Graph& captured;  // parameters in the types that they are stored in
  graph::Graph graph;
  shard::Sharding sharding;
  shard::LossKind loss = shard::LossKind::mean;
  // Of a pipeline.
  std::optional<Schedule> schedule;
  std::shared_ptr<Rendezvous> rendezvous = std::make_shared<Rendezvous>();  // of its stages
  std::optional<StageInputs> inputs;
  // Where its stages have unequal submeshes.
  std::shared_ptr<const StageTransfers> transfers;
  bool slices_elsewhere = false;  // some stages have products whose sums are reduced
};

// The Common of each rank: one for all ranks or, where stages have unequal submeshes, one per class
// of stages, as if all stages had that submesh (plan::of_stage). Throws Error as compile() does. It
// does not depend on recompute: plans that differ only in recompute have the same Commons. Keeps
// references to `graph` and `plan`.
class Views {
 public:
  Views(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec);
  const plan::Plan& plan() const { return plan_; }  // the constructor's
  const Common& common(int64_t rank) const { return *views_[at(rank)].common; }
  // Returns the plan as the rank sees it: on a mesh that is a rectangle.
  const plan::Plan& plan(int64_t rank) const;
  // Returns another plan, which differs from plan() in recompute only, as the rank sees it.
  plan::Plan plan(const plan::Plan& other, int64_t rank) const;

 private:
  struct View {
    std::optional<plan::Plan> plan;  // nothing: the constructor's
    std::shared_ptr<Common> common;
  };
  size_t at(int64_t rank) const;
  void see_stages(const graph::Graph& graph, const StepSpec& spec);

  const plan::Plan& plan_;
  std::vector<View> views_;  // by stage, or one
};

// A rank's graph and, with a pipeline, its stage.
struct Local {
  shard::LocalGraph graph;
  std::optional<Stage> stage;
  // The graph of microbatches that keep results which others recompute (Stage::kept); may be null.
  std::shared_ptr<const Local> kept;
};

// A rank's graphs of all stages, made on demand. Thread-safe. Keeps common and plan by reference.
class WholeGraphs {
 public:
  WholeGraphs(const Common& common, const plan::Plan& plan, int64_t rank)
      : common_(common), plan_(plan), rank_(rank) {}
  // `recomputes`: with the plan's recompute regions in the backward pass.
  const shard::LocalGraph& get(bool recomputes);
  // Returns the parts of stages that share frames, identical on all ranks.
  const PoolsOfFrames& pools();

 private:
  const Common& common_;
  const plan::Plan& plan_;
  int64_t rank_;
  std::mutex making_;
  std::array<std::optional<shard::LocalGraph>, 2> graphs_;
  std::optional<PoolsOfFrames> pools_;
};

Local localize(const Common& common, const plan::Plan& plan, int64_t rank);
// As above, for a rank whose graphs of all stages are `whole`.
Local localize(const Common& common, const plan::Plan& plan, WholeGraphs& whole, int64_t rank);

Program lower(const Common& common, Local given, const plan::Plan& plan, const StepSpec& spec,
              int64_t rank, TraceSource& traces);

// The ranks of the mesh, in its order, and for each the first rank with an equivalent local graph
// (the offset of a rank's random block does not count). Ranks are compared without making each
// graph: by their stage, by the lengths of unevenly cut tensors, and by whether they are the first
// on an axis where first ranks do more; with stages of unequal submeshes also by the boxes that
// they send and receive, and by whether they contribute to sums for their stage.
struct EquivalentRanks {
  std::vector<int64_t> ranks;
  std::vector<int64_t> representative;
  std::map<int64_t, Local> locals;  // of the representatives
  // With stages of unequal submeshes: the streams of each rank's messages, in the same order for
  // equivalent ranks.
  std::vector<std::vector<Stream>> streams;
};
EquivalentRanks find_equivalent_ranks(const Views& views);

}  // namespace perigee::compile
