// Time and memory of a choice, from the tables of its layers: the space that the search proves its
// optimum in. The plans that come out best are then compiled and simulated.
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

#include "search/exchange.h"
#include "search/layers.h"
#include "search/pipeline.h"
#include "search/rounds.h"
#include "search/stage_costs.h"

namespace perigee::search {

// Where a step's time goes, on the slowest stage.
struct Parts {
  double compute = 0;  // forward and backward passes of all microbatches
  double tensor = 0;   // waiting for collectives within layers
  double bubble = 0;   // filling and emptying the pipeline
  double data = 0;     // exchange of gradients and weights that nothing hides
  double optimizer = 0;
  double total() const { return compute + tensor + bubble + data + optimizer; }
};

struct Estimate {
  double seconds = 0;
  double lower_bound = 0;  // no cut of the blocks into stages is faster
  double behind = 0;       // of `seconds`: once a step, behind the last backward pass
  double bytes = 0;        // of the stage that takes the most of what it may
  double limit = 0;        // what that stage may take
  Parts parts;
  std::vector<int> cuts;      // the first block of each stage behind the first
  std::vector<double> costs;  // of a schedule that splits gradients: forward, input and weight
                              // gradients and a message, to their average
  std::vector<int> again;     // where a solver chooses them: the blocks that run again
};

// What a model is held to.
struct Limits {
  std::vector<double> bytes;    // of a rank, by kind of the cluster's devices
  std::string solver = "auto";  // solve::Options's
  std::vector<int> starts;      // the first block of each part behind the first; empty: any
  std::function<double()> seconds_left;  // for what is solved; nothing: any
};

class Model {
 public:
  // All kept by reference but the limits.
  Model(const Folded& folded, LayerTables& tables, OpCosts& costs, Limits limits)
      : folded_(folded), tables_(tables), costs_(costs), limits_(std::move(limits)) {}

  // What all schedules of a choice's axes have alike, of a microbatch and the whole model.
  struct Whole {
    Passes passes;
    // What goes through the stream of units: in the forward pass, in the backward pass, and of that
    // what a block's gradients take.
    double gathers = 0, exchanges = 0, reduce = 0;
  };
  Whole whole(const Choice& choice, const Layers& layers) const;

  // Returns what no cut of the blocks can beat; quick. `whole` is that of the choice, whatever its
  // schedule. Of stages that are alike.
  double lower_bound(const Choice& choice, const Whole& whole) const;

  // Returns whether stages differ, other than in their blocks: they have submeshes of their own, or
  // lie on several kinds of devices.
  bool is_unlike(const Choice& choice) const;

  // The least that stages of one place take: of each of the two passes either what is computed, or
  // what goes through the stream of units; all four.
  struct Rates {
    static constexpr size_t kWays = 4;
    double first[kWays] = {}, block[kWays] = {}, last[kWays] = {};
    double again = 0;  // of a block's backward pass: what runs again
  };
  Rates rates(const Choice& own, const Layers& layers, int64_t first) const;

  // Returns the same bound for unlike stages, of which these are the rates; `transfer`: what all
  // messages of a microbatch take one behind the other.
  double lower_bound(const Choice& choice, const std::vector<const Rates*>& stages,
                     double transfer) const;
  // The same, from the choice alone; nothing where there is no table for a stage.
  std::optional<double> lower_bound(const Choice& choice, const Layers& layers) const;

  // Returns the choice as a stage has it: its own axes and samples.
  static Choice of_stage(const Choice& choice, const Submesh& submesh);

  // Returns what stands for a rank where only its place among the links counts.
  int64_t aligned(int64_t rank) const;

  // The seconds of a microbatch's messages between two neighbours.
  struct Hop {
    double there = 0, back = 0;
    double both() const { return there + back; }
  };
  // `rank` is the first one's first; `layers` are its own, of so many samples a rank.
  Hop transfer(const Choice& choice, const Submesh& from, const Submesh& to, int64_t rank,
               const Layers& layers) const;

  // Returns the best cut of the blocks into the choice's stages under the memory limit, or nothing
  // where no cut fits; `least_bytes` then is what the choice needs at least. Of stages that are
  // alike it is the one whose microbatches take the least (solve/, exact), or, where what comes
  // once a step weighs more than kOnce, one that others lead to by moving blocks. `layers` are
  // those of the choice, of unlike stages any. What takes longer than `worth` may be said to take
  // less than it does.
  static constexpr double kOnce = 1e-3;
  std::optional<Estimate> estimate(const Choice& choice, const Layers& layers, double& least_bytes,
                                   double worth = std::numeric_limits<double>::infinity()) const;

  // Returns how many parts there can be where stages have several: one a block, and one for what
  // stands before the blocks, and behind them, where that has parameters.
  int most_parts(const Layers& layers) const;
  // Whether Limits::starts leaves the first or the last part without a block.
  bool has_bare_ends() const;

  // Returns the least that a rank of the choice may use; of all ranks together.
  double limit() const { return *std::min_element(limits_.bytes.begin(), limits_.bytes.end()); }

 private:
  // What a stage is priced by.
  struct Place {
    Choice choice;  // of_stage
    const Layers* layers = nullptr;
    Ground ground;
    double limit = 0;  // bytes of a rank
    int stage = 0;     // the first that has this place
  };
  // Of all stages.
  struct Places {
    std::vector<Place> list;
    std::vector<int> of;  // by stage: into the list
    const Place& at(int stage) const { return list[static_cast<size_t>(of[stage])]; }
  };
  // Returns nothing where there is no table for a stage.
  std::optional<Places> places(const Choice& choice, const Layers& layers) const;
  Submesh submesh_of(const Choice& choice, int stage) const;

  // Returns how many blocks run again so that all in one stage take the least time (an option for
  // each block: solve::AssignProblem); nothing where not even all of them make it fit. `best`:
  // whether there was the time to find the fewest; where there was not, so many may not fit.
  std::optional<int> least_again(const Place& place, bool& best) const;
  // A part of the pipeline, by these layers of the place.
  struct Blocks;
  StageCosts stage(const Place& place, const Layers& layers, const Blocks& part) const;
  // What a microbatch's passes through a layer compute: forward, backward.
  std::pair<double, double> passes(const Choice& choice, const Layer& layer,
                                   const Layers& layers) const;
  // The bytes that a microbatch's forward pass through a layer leaves to its backward pass.
  static double saved(const Choice& choice, const Layer& layer, const Layers& layers);
  // What a message between two stages that are alike takes on average.
  double transfer(const Choice& choice, const Layers& layers) const;
  // Returns for each level that messages between stages of so many ranks go over a rank that sends
  // one, and how many of the stages do.
  const std::map<int64_t, int64_t>& senders(int64_t ranks, int64_t stages) const;
  // What a stage takes with so many stages behind it.
  double bytes_of(const Choice& choice, const StageCosts& stage, int64_t successors) const;
  // The blocks [begin, end) of a part of the pipeline, of which the first `again` run again;
  // whether what stands before all blocks, and behind them, is there, too.
  struct Blocks {
    int begin, end;
    int again = 0;
    bool first = false, last = false;
    int length() const { return end - begin; }
  };
  using StageOf = std::function<const StageCosts&(int stage, const Blocks&)>;
  // Of a part in a stage of a row, the blocks, were it so long.
  Blocks blocks_of(int part, int parts, int length, int again = 0) const;
  // Of a stage that has all.
  Blocks all_blocks(int again = 0) const { return {0, blocks(), again, true, true}; }
  // Parts that follow each other, from the lengths of all of them; `again`: of each, or none.
  std::vector<Blocks> in_a_row(const std::vector<int>& lengths,
                               const std::vector<int>& again = {}) const;
  // The least blocks that the first or the last of several parts of a stage may have: none, where
  // it has parameters of its own.
  int least_blocks(const Layers& layers, bool last) const;
  // What a block of a submesh hands on.
  struct HandedOn {
    double bytes = 0;     // of a data rank's samples, the whole
    double in_parts = 0;  // the share of it of which each tensor rank has its part
  };
  HandedOn handed_on(const Choice& choice, const Submesh& submesh) const;
  // The seconds of a microbatch's messages between a stage and the next.
  Hop hop(const Choice& choice, const Places& places, int stage) const;
  // The same through all stages and back.
  double all_transfers(const Choice& choice, const Places& places) const;
  // The seconds in which all stages add up a scalar: the loss, or their gradients' norm.
  double meeting(const Choice& choice) const;
  // By part: the best cut of stages that have one part, of unlike ones, and of those that have
  // several; nothing where no cut fits, with the bytes that it would need at least.
  // `best`: as search::Cut's.
  std::vector<Blocks> cut_stages(const Choice& choice, const Place& place, const StageOf& stage_of,
                                 double& least_bytes, bool& best) const;
  std::vector<Blocks> cut_unlike_stages(const Choice& choice, const Places& places,
                                        const StageOf& stage_of, double& least_bytes,
                                        double worth) const;
  std::vector<Blocks> deal_parts(const Choice& choice, const Layers& layers, const Places& places,
                                 const StageOf& stage_of, double& least_bytes) const;
  std::vector<Blocks> pinned_parts() const;
  // What a step of a choice takes whose parts are these.
  Estimate timed(const Choice& choice, const Layers& layers, const Places& places,
                 const StageOf& stage_of, const std::vector<Blocks>& parts, double worth) const;
  // Bounds other cuts into stages that are alike by `parts`, with `best` the best one for
  // microbatches, and replaces its estimate by a better one's.
  void settle(const Choice& choice, const Layers& layers, const Places& places,
              const StageOf& stage_of, const std::vector<Blocks>& parts, bool best, double worth,
              Estimate& result) const;
  // Returns how few blocks of a stage that is so long run again so that it fits into memory;
  // nothing where it does not.
  std::optional<int> again_to_fit(const Choice& choice, const Places& places,
                                  const StageOf& stage_of, int stage, int length) const;
  // Whether stages differ and have one part each, by a schedule that does not split backward
  // passes: their sections are then timed one by one (search/row_time.h).
  bool runs_as_row(const Choice& choice) const;
  // Whether all cuts of such a row were timed, where the best takes so long.
  bool sees_all_cuts(const Choice& choice, double seconds, double worth) const;
  // A step of such a row.
  struct RowStep {
    double passes = 0;     // of all microbatches through all stages
    double once = 0;       // behind them, what shows of gradients' exchange
    double optimizer = 0;  // behind that
    double total() const { return passes + once + optimizer; }
  };
  RowStep step_of_row(const Choice& choice, const Places& places,
                      const std::vector<StageCosts>& made, const std::vector<Blocks>& parts) const;
  // Returns the seconds that a schedule which runs in rounds takes beyond the passes of the longest
  // stage, where parts are not alike; else 0.
  double lost_in_rounds(const Choice& choice, const Places& places, const StageOf& stage_of,
                        const std::vector<Blocks>& parts, double transfer, double longest) const;
  // What stages take of the time that they lose to each other, as they are cut.
  Passes passes_of(const Choice& choice, const Places& places, const std::vector<StageCosts>& made,
                   const std::vector<Blocks>& parts, const std::vector<int>& stage_of_part) const;
  const Exchanges& exchanges(const Choice& choice, const Layers& layers,
                             const Ground& ground) const;
  int blocks() const;

  const Folded& folded_;
  LayerTables& tables_;
  OpCosts& costs_;
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
