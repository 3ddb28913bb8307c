// The cost model: time and memory of a choice, from the tables of its layers. The search proves its
// optimum in this model; the best plans are then compiled and simulated.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "search/layers/exchange.h"
#include "search/layers/layers.h"
#include "search/model/pipeline.h"
#include "search/model/rounds.h"
#include "search/model/stage_costs.h"

namespace perigee::search {

// The parts of a step's time, on the slowest stage.
struct Parts {
  double compute = 0;  // forward and backward passes of all microbatches
  double tensor = 0;   // waiting for collectives within layers
  double bubble = 0;   // pipeline bubble
  double data = 0;     // exposed exchange of gradients and weights
  double optimizer = 0;
  double total() const { return compute + tensor + bubble + data + optimizer; }
};

struct Estimate {
  double seconds = 0;
  double lower_bound = 0;  // no cut of the blocks into stages is faster
  double epilogue = 0;     // of `seconds`: per-step epilogue, after the last backward pass
  double bytes = 0;        // of the stage with the largest share of its limit
  double limit = 0;        // of that stage, in bytes
  Parts parts;
  std::vector<int> cuts;      // the first block of each later stage
  std::vector<double> costs;  // of a schedule that splits backward passes: forward, input and
                              // weight gradients and a message, relative to their average
  std::vector<int> recomputed_blocks;  // where a solver chooses them
};

// Limits of the plans that the model may return.
struct Limits {
  std::vector<double> bytes;             // of a rank, by kind of the cluster's devices
  std::string solver = "auto";           // solve::Options's
  std::vector<int> starts;               // the first block of each later part; empty: any
  std::function<double()> seconds_left;  // of solvers; nothing: unlimited
};

class Model {
 public:
  // All kept by reference but the limits.
  Model(const Folded& folded, LayerTables& tables, simulate::OpCosts& costs, Limits limits)
      : folded_(folded), tables_(tables), costs_(costs), limits_(std::move(limits)) {}

  // Times of a microbatch and the whole model that all schedules of a choice's axes share.
  struct Whole {
    Passes passes;
    // Seconds of the units' stream: in the forward pass, in the backward pass, and of the latter to
    // reduce a block's gradients.
    double gathers = 0, exchanges = 0, reduce = 0;
  };
  Whole whole(const Choice& choice, const Layers& layers) const;

  // Returns a lower bound of the seconds of any cut into homogeneous stages; quick. `whole`: of the
  // choice, with any schedule.
  double lower_bound(const Choice& choice, const Whole& whole) const;

  // Returns whether stages are heterogeneous: they have submeshes of different sizes, or several
  // kinds of devices.
  bool is_heterogeneous(const Choice& choice) const;

  // Lower bounds of a stage's seconds in one place: for each of the two passes either its compute or
  // its transfers on the units' stream, in all four combinations.
  struct Rates {
    static constexpr size_t kWays = 4;
    double first[kWays] = {}, block[kWays] = {}, last[kWays] = {};
    double recomputed = 0;  // of a block's backward pass
  };
  Rates rates(const Choice& own, const Layers& layers, int64_t first) const;

  // Returns the lower bound for heterogeneous stages with these rates. `transfer`: seconds of all
  // messages of a microbatch, one after the other.
  double lower_bound(const Choice& choice, const std::vector<const Rates*>& stages,
                     double transfer) const;
  // Returns the lower bound for the choice's own stages; nothing where a stage has no table.
  std::optional<double> lower_bound(const Choice& choice, const Layers& layers) const;

  // Returns the choice with the axes and samples of one stage.
  static Choice of_stage(const Choice& choice, const Submesh& submesh);

  // Returns a representative of the ranks whose groups use the same links.
  int64_t aligned(int64_t rank) const;

  // The seconds of a microbatch's messages between two neighbours.
  struct Hop {
    double forward_seconds = 0, backward_seconds = 0;
    double both() const { return forward_seconds + backward_seconds; }
  };
  // `rank`: the first of `from`. `layers`: of `from`, for its samples a rank.
  Hop transfer(const Choice& choice, const Submesh& from, const Submesh& to, int64_t rank,
               const Layers& layers) const;

  // Returns the best cut of the blocks into the choice's stages under the memory limit, or nothing
  // where no cut fits; `least_bytes` is then the least memory that the choice needs. For homogeneous
  // stages it is the cut with the fastest microbatches (solve/, exact), or, where the per-step
  // epilogue is more than kOnce of a step, a local optimum over moves of blocks. `layers`: of the
  // choice; of any stage where stages are heterogeneous. Estimates above `worth` may be too low.
  static constexpr double kOnce = 1e-3;
  std::optional<Estimate> estimate(const Choice& choice, const Layers& layers, double& least_bytes,
                                   double worth = std::numeric_limits<double>::infinity()) const;

  // Returns the most parts where stages have several: one a block, and one each for the prologue and
  // the epilogue where these have parameters.
  int most_parts(const Layers& layers) const;
  // Whether Limits::starts leaves the first or the last part without a block.
  bool has_bare_ends() const;

  // Returns the smallest memory limit of any rank.
  double limit() const { return *std::min_element(limits_.bytes.begin(), limits_.bytes.end()); }

 private:
  // Everything that the price of a stage's blocks depends on.
  struct Place {
    Choice choice;  // of_stage
    const Layers* layers = nullptr;
    Ground ground;
    double limit = 0;  // bytes of a rank
    int stage = 0;     // the first that has this place
  };
  // The places of all stages.
  struct Places {
    std::vector<Place> list;
    std::vector<int> of;  // by stage: into the list
    const Place& at(int stage) const { return list[static_cast<size_t>(of[stage])]; }
  };
  // Returns nothing where there is no table for a stage.
  std::optional<Places> places(const Choice& choice, const Layers& layers) const;
  Submesh submesh_of(const Choice& choice, int stage) const;

  // Returns the number of recomputed blocks with which one stage of all blocks is fastest (an option
  // for each block: solve::AssignProblem); nothing where it does not fit with all recomputed.
  // `best`: whether there was time to find the fewest; otherwise the number may not fit.
  std::optional<int> least_recomputed(const Place& place, bool& best) const;
  // A part of the pipeline, by these layers of the place.
  struct Blocks;
  StageCosts stage(const Place& place, const Layers& layers, const Blocks& part) const;
  // Returns the seconds of compute of a microbatch's forward and backward pass through a layer.
  std::pair<double, double> passes(const Choice& choice, const Layer& layer,
                                   const Layers& layers) const;
  // Returns the bytes that a microbatch's forward pass through a layer saves for its backward pass.
  static double saved(const Choice& choice, const Layer& layer, const Layers& layers);
  // Returns the mean seconds of a message between two homogeneous stages.
  double transfer(const Choice& choice, const Layers& layers) const;
  // Returns a sending rank for each level of links between stages of `ranks` ranks, and the number
  // of stages that send over that level.
  const std::map<int64_t, int64_t>& senders(int64_t ranks, int64_t stages) const;
  // Returns the bytes of a stage with `successors` stages after it.
  double bytes_of(const Choice& choice, const StageCosts& stage, int64_t successors) const;
  // The blocks [begin, end) of a part of the pipeline, of which the first `recomputed_blocks` are
  // recomputed; `first`, `last`: with the prologue, with the epilogue.
  struct Blocks {
    int begin, end;
    int recomputed_blocks = 0;
    bool first = false, last = false;
    int length() const { return end - begin; }
  };
  using StageOf = std::function<const StageCosts&(int stage, const Blocks&)>;
  // Returns blocks of part `part` of `parts` that has `length` of them.
  Blocks blocks_of(int part, int parts, int length, int recomputed_blocks = 0) const;
  // Returns all blocks, with prologue and epilogue.
  Blocks all_blocks(int recomputed_blocks = 0) const {
    return {0, blocks(), recomputed_blocks, true, true};
  }
  // Returns consecutive parts of these lengths. `recomputed_blocks`: of each part, or empty.
  std::vector<Blocks> in_a_row(const std::vector<int>& lengths,
                               const std::vector<int>& recomputed_blocks = {}) const;
  // Returns the fewest blocks of the first (or the last) of several parts: 0 where the prologue (or
  // the epilogue) has parameters, else 1.
  int least_blocks(const Layers& layers, bool last) const;
  // The value that a block of a submesh sends to the next block.
  struct HandedOn {
    double bytes = 0;     // of a data rank's samples
    double in_parts = 0;  // share of it that is sharded over tensor ranks
  };
  HandedOn handed_on(const Choice& choice, const Submesh& submesh) const;
  // The seconds of a microbatch's messages between a stage and the next.
  Hop hop(const Choice& choice, const Places& places, int stage) const;
  // Returns the seconds of a microbatch's messages through all stages and back.
  double all_transfers(const Choice& choice, const Places& places) const;
  // Returns the seconds of an all-reduce of a scalar over all stages: the loss or
  // the gradients' norm.
  double meeting(const Choice& choice) const;
  // Return the parts of the best cut: of homogeneous stages with one part, of heterogeneous stages,
  // of stages with several parts. Empty where no cut fits; `least_bytes` is then the least memory
  // that one needs. `best`: as search::Cut's.
  std::vector<Blocks> cut_stages(const Choice& choice, const Place& place, const StageOf& stage_of,
                                 double& least_bytes, bool& best) const;
  std::vector<Blocks> cut_heterogeneous_stages(const Choice& choice, const Places& places,
                                               const StageOf& stage_of, double& least_bytes,
                                               double worth) const;
  std::vector<Blocks> deal_parts(const Choice& choice, const Layers& layers, const Places& places,
                                 const StageOf& stage_of, double& least_bytes) const;
  std::vector<Blocks> pinned_parts() const;
  // Returns the time and memory of a step of the choice with these parts.
  Estimate timed(const Choice& choice, const Layers& layers, const Places& places,
                 const StageOf& stage_of, const std::vector<Blocks>& parts, double worth) const;
  // Sets the lower bound of all cuts into homogeneous stages, from `parts` (`best`: the cut with the
  // fastest microbatches), and replaces the estimate where another cut has a faster step.
  void settle(const Choice& choice, const Layers& layers, const Places& places,
              const StageOf& stage_of, const std::vector<Blocks>& parts, bool best, double worth,
              Estimate& result) const;
  // Returns the fewest recomputed blocks with which a stage of this length fits into memory; nothing
  // where none suffice.
  std::optional<int> recomputed_to_fit(const Choice& choice, const Places& places,
                                       const StageOf& stage_of, int stage, int length) const;
  // Whether stages are heterogeneous and have one part each, by a schedule that does not split
  // backward passes: their sections are then timed one by one (search/model/row_time.h).
  bool runs_as_row(const Choice& choice) const;
  // Whether all cuts of such a row were timed, where the best takes `seconds`.
  bool sees_all_cuts(const Choice& choice, double seconds, double worth) const;
  // A step of such a row.
  struct RowStep {
    double passes = 0;     // of all microbatches through all stages
    double once = 0;       // after them: exposed exchange of gradients
    double optimizer = 0;  // after that
    double total() const { return passes + once + optimizer; }
  };
  RowStep step_of_row(const Choice& choice, const Places& places,
                      const std::vector<StageCosts>& made, const std::vector<Blocks>& parts) const;
  // Returns the bubble of a schedule that runs in rounds where parts are not identical; else 0.
  // `longest`: seconds of the slowest stage's passes.
  double bubble_in_rounds(const Choice& choice, const Places& places, const StageOf& stage_of,
                          const std::vector<Blocks>& parts, double transfer, double longest) const;
  // Returns the passes that the bubble depends on, for heterogeneous stages with this cut.
  Passes passes_of(const Choice& choice, const Places& places, const std::vector<StageCosts>& made,
                   const std::vector<Blocks>& parts, const std::vector<int>& stage_of_part) const;
  const Exchanges& exchanges(const Choice& choice, const Layers& layers,
                             const Ground& ground) const;
  int blocks() const;

  const Folded& folded_;
  LayerTables& tables_;
  simulate::OpCosts& costs_;
  const Limits limits_;
  // By Layers::parameters, tensor, expert, context, data, pipe, zero, and where.
  mutable std::map<std::tuple<int, int64_t, int64_t, int64_t, int64_t, int64_t, int, int64_t>,
                   Exchanges>
      known_;
  // By the first one's layers, submeshes, the first's first rank, and sequence.
  mutable std::map<std::tuple<const Layers*, int64_t, int64_t, int64_t, int64_t, int64_t, bool>,
                   Hop>
      transfers_;
  mutable std::map<std::pair<int64_t, int64_t>, std::map<int64_t, int64_t>> senders_;
  mutable SearchedOrders orders_;
  mutable Rounds rounds_;
};

}  // namespace perigee::search
