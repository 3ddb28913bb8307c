// What ranks of the batch exchange of parameters: gradients that are reduced, weights that are
// gathered (plan::Unit, plan::Communication), and how much of it shows beside a stage's ops. The
// terms are those of the programs that compile/ makes.
#pragma once

#include <vector>

#include "search/layers.h"
#include "search/op_cost.h"

namespace perigee::search {

// Of one layer. Seconds, with nothing else on the links.
struct LayerExchange {
  double gather_forward = 0, gather_backward = 0;  // level 3, in each microbatch
  double reduce = 0;                               // of all of the layer's gradients
  double last = 0;                                 // of `reduce`: its last reduction
  double buckets = 0;                              // it is in so many; below 1: in a share of one
  double gather = 0;                               // levels 1 and 2: new weights, behind the step
  double early = 0;  // before a unit is reduced: gradients that alone of it are sums over tensor
                     // ranks; ops wait
};

struct Exchanges {
  LayerExchange first, block, last;
  double least = 0;       // a reduction of next to nothing
  bool contends = false;  // tensor ranks meet on the same links
  double tied = 0;        // once a step: gradients of parameters that two stages have
  double norm = 0;        // once a step: the stage's ranks add up the gradients' norm

  bool none() const { return least + first.reduce + block.reduce + last.reduce <= 0; }
};

// Where the ranks of a stage are.
struct Ground {
  int64_t first = 0;
  int64_t other = -1;  // a rank of the stage at the pipeline's other end; -1: all stages are alike
};

// Returns them for the choice's axes and level; `parameters` tells how the layers' lie.
Exchanges exchanges_of(const Choice& choice, const Layers& parameters, OpCosts& costs,
                       const Ground& ground = {});

// What a stage's layers do in one pass, in the order of the pass.
struct Passing {
  double compute = 0;
  double communication = 0;  // of compute: collectives of tensor ranks
  double gather = 0;         // must be there before it; runs beside the layer before
  double reduce = 0;         // what it leaves to reduce, beside the layers behind
  double last = 0;           // of `reduce`, what begins when its gradients are all there
  double behind = 0;         // of compute: behind the last product of a weight's gradient
  int times = 1;             // so many layers that are alike, one behind the other
  // The parts in which `reduce` comes, in the order of the pass; null: all at once, behind the
  // layer.
  const std::vector<Bucket>* buckets = nullptr;
};

// Returns the seconds of a pass whose layers gather, one ahead of the ops, and reduce, each waited
// for when the next one starts. What gathers and reduces goes through one stream in the order in
// which it starts: the gathering for layer k behind the reduction of layer k - 2. A bucket's
// reduction starts when the one before it has ended; until then ops wait. With `contends` two
// collectives at once take as long as one behind the other.
double seconds_of_pass(const std::vector<Passing>& layers, bool contends);

}  // namespace perigee::search
