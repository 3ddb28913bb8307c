// Time and memory of a choice, from the tables of its layers: the space that the search proves its
// optimum in. The plans that come out best are then compiled and simulated.
#pragma once

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
  double bytes = 0;        // of the stage that takes the most
  Parts parts;
  std::vector<int> cuts;      // the first block of each stage behind the first
  std::vector<double> costs;  // of a schedule that splits gradients: forward, input and weight
                              // gradients and a message, to their average
  std::vector<int> again;     // where a solver chooses them: the blocks that run again
};

class Model {
 public:
  // All kept by reference. `solver`: solve::Options's.
  Model(const Folded& folded, OpCosts& costs, double memory_limit, std::string solver = "auto")
      : folded_(folded), costs_(costs), limit_(memory_limit), solver_(std::move(solver)) {}

  // What all schedules of a choice's axes have alike, of a microbatch and the whole model.
  struct Whole {
    Passes passes;
    // What goes through the stream of units: in the forward pass, in the backward pass, and of that
    // what a block's gradients take.
    double gathers = 0, exchanges = 0, reduce = 0;
  };
  Whole whole(const Choice& choice, const Layers& layers) const;

  // Returns what no cut of the blocks can beat; quick. `whole` is that of the choice, whatever its
  // schedule.
  double lower_bound(const Choice& choice, const Whole& whole) const;

  // Returns the best cut of the blocks into the choice's stages under the memory limit (solve/,
  // exact for this model), or nothing where no cut fits; `least_bytes` then is what the choice
  // needs at least. What takes longer than `worth` may be said to take less than it does.
  std::optional<Estimate> estimate(const Choice& choice, const Layers& layers, double& least_bytes,
                                   double worth = std::numeric_limits<double>::infinity()) const;

 private:
  struct Stage {
    double forward = 0, backward = 0, tensor = 0;  // a microbatch
    double gradient = 0;   // of backward: what only gradients of weights need
    double exchange = 0;   // of both passes: what shows of gathering and reducing units
    double once = 0;       // a step: what shows of gradients' and weights' exchange
    double optimizer = 0;  // a step
    double resident = 0;   // bytes that stay
    double working = 0;    // bytes beside, which the parts of a stage share
    double step = 0;       // bytes while the optimizer steps
    double flight = 0;     // bytes of one microbatch in flight

    void join(const Stage& part, int64_t chunks);
    double pass() const { return forward + backward; }
    double fixed() const { return resident + working; }
  };
  // Returns how many blocks run again so that all in one stage take the least time (an option for
  // each block: solve::AssignProblem); nothing where not even all of them make it fit.
  std::optional<int> least_again(const Choice& choice, const Layers& layers) const;
  // Blocks [begin, end).
  Stage stage(const Choice& choice, const Layers& layers, int begin, int end) const;
  // What a microbatch's passes through a layer compute: forward, backward. `masters`: Layers'.
  std::pair<double, double> passes(const Choice& choice, const Layer& layer, bool masters) const;
  double transfer(const Choice& choice, const Layers& layers) const;
  // What a stage takes with so many stages behind it.
  double bytes_of(const Choice& choice, const Layers& layers, const Stage& stage,
                  int64_t successors) const;
  // The blocks [begin, end) of a part of the pipeline; the first `again` of them run again.
  struct Blocks {
    int begin, end;
    int again = 0;
  };
  using StageOf = std::function<const Stage&(const Blocks&)>;
  // By part: the best cut of stages that have one part, and of those that have several; nothing
  // where no cut fits, with the bytes that it would need at least.
  std::vector<Blocks> cut_stages(const Choice& choice, const Layers& layers,
                                 const StageOf& stage_of, double& least_bytes) const;
  std::vector<Blocks> deal_parts(const Choice& choice, const Layers& layers,
                                 const StageOf& stage_of, double& least_bytes) const;
  const Exchanges& exchanges(const Choice& choice, const Layers& layers) const;
  int blocks() const;

  const Folded& folded_;
  OpCosts& costs_;
  double limit_;
  std::string solver_;
  // By precision, tensor, expert, context, data, sequence, pipe > 1, zero: parameters lie alike.
  mutable std::map<std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, bool, bool, int>,
                   Exchanges>
      known_;
  mutable SearchedOrders orders_;
};

}  // namespace perigee::search
