// Compiling in three moves: what all ranks have in common, one rank's graph, its program.
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
#include "compile/crossings.h"
#include "compile/stage.h"
#include "compile/stage_inputs.h"
#include "shard/partition.h"

namespace perigee::compile {

// What every rank's program is made from.
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
  std::shared_ptr<const Crossings> crossings;
  bool slices_elsewhere = false;  // some of them have products whose sums are reduced
};

// What ranks have in common, for each of them: the same for all, or where stages have unequal
// submeshes for those of a stage, as if all stages had theirs (plan::of_stage). Throws Error as
// compile() does. Recompute decides nothing here: plans that differ in it alone have the same.
// Keeps references to `graph` and `plan`.
class Views {
 public:
  Views(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec);
  const plan::Plan& plan() const { return plan_; }  // as it was given
  const Common& common(int64_t rank) const { return *views_[at(rank)].common; }
  // Returns the plan as the rank sees it: on a mesh that is a rectangle.
  const plan::Plan& plan(int64_t rank) const;
  // The same of a plan that differs in its recompute alone.
  plan::Plan plan(const plan::Plan& other, int64_t rank) const;

 private:
  struct View {
    std::optional<plan::Plan> plan;  // nothing: as it was given
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
  // Where some microbatches keep what others compute again (Stage::kept): the same of those.
  std::shared_ptr<const Local> kept;
};

// A rank's graphs of all stages, made where they are wanted, by any thread. Common and plan are
// kept by reference.
class WholeGraphs {
 public:
  WholeGraphs(const Common& common, const plan::Plan& plan, int64_t rank)
      : common_(common), plan_(plan), rank_(rank) {}
  // `again`: with what the plan recomputes.
  const shard::LocalGraph& get(bool again);
  // Which parts of stages share frames: alike on all ranks.
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
// The same of a rank whose whole graphs are those of `whole`.
Local localize(const Common& common, const plan::Plan& plan, WholeGraphs& whole, int64_t rank);

Program lower(const Common& common, Local given, const plan::Plan& plan, const StepSpec& spec,
              int64_t rank, TraceSource& traces);

// The ranks of the mesh, in its order, and for each the first of those whose local graphs are
// alike: where a rank's random block begins decides no memory. They are told apart without looking
// at each: by their stage, by the lengths of what is cut unevenly, and by whether they are the
// first on an axis where first ranks do more; with stages of unequal submeshes also by the boxes
// that they send and receive, and by whether they speak for others of their stage.
struct Alike {
  std::vector<int64_t> ranks;
  std::vector<int64_t> like;
  std::map<int64_t, Local> locals;  // of the first ones
  // With stages of unequal submeshes: the streams of each rank's messages, those of ranks that are
  // alike in one order.
  std::vector<std::vector<std::string>> streams;
};
Alike alike(const Views& views);

}  // namespace perigee::compile
