// The exchange of parameters between ranks of the batch: gradients are reduced, weights are
// gathered (plan::Unit, plan::Communication); and its exposed communication, not hidden by a
// stage's ops. The rules are those of the programs that compile/ makes.
#pragma once

#include <cstdint>
#include <vector>

#include "search/layers/layers.h"
#include "simulate/op_cost.h"

namespace perigee::search {

// Collectives of one layer. Seconds, without contention.
struct LayerExchange {
  double gather_forward = 0, gather_backward = 0;  // level 3, in each microbatch
  double reduce = 0;                               // of all of the layer's gradients
  double last_reduction = 0;                       // of `reduce`
  double buckets = 0;                              // number of buckets; below 1: a share of one
  double gather = 0;                               // levels 1 and 2: new weights, after the step
  double early = 0;  // before a unit is reduced: sums over tensor ranks of some of its gradients;
                     // ops wait
};

// What these collectives share: nothing, links with those of tensor ranks, or cores with ops, as
// cost::Cluster::shared_cores says.
enum class Contention : uint8_t { none, links, cores };

struct Exchanges {
  LayerExchange prologue, block, epilogue;
  double smallest_reduction = 0;
  Contention contention = Contention::none;
  double tied = 0;             // once a step: gradients of parameters that two stages have
  double norm_all_reduce = 0;  // once a step: the gradients' norm, over the stage's ranks

  bool none() const {
    return smallest_reduction + prologue.reduce + block.reduce + epilogue.reduce <= 0;
  }
};

// The ranks of a stage.
struct StageRanks {
  int64_t first = 0;
  int64_t opposite = -1;  // a rank of the stage at the pipeline's other end; -1: homogeneous stages
};

// Returns the seconds of the collectives on the choice's axes and at its ZeRO level. `parameters`:
// the placements of the layers' weights.
Exchanges exchanges_of(const Choice& choice, const Layers& parameters, simulate::OpCosts& costs,
                       const StageRanks& stage = {});

// A layer in one pass of a stage, in the order of the pass. Seconds.
struct Passing {
  double compute = 0;
  double communication = 0;   // of compute: collectives of tensor ranks
  double gather = 0;          // before it; overlaps with the previous layer
  double reduce = 0;          // of its gradients; overlaps with later layers
  double last_reduction = 0;  // of `reduce`: starts when all its gradients are computed
  double tail = 0;            // of compute: after the last product of a weight's gradient
  int times = 1;              // number of identical layers, one after the other
  // The parts of `reduce`, in the order of the pass; null: one reduction, after the layer.
  const std::vector<Bucket>* buckets = nullptr;
};

// Returns the seconds of a pass whose layers gather, one layer ahead of the ops, and reduce; each
// is waited for when the next one starts. Both use one stream in the order in which they start:
// layer k is gathered after the reduction of layer k - 2. A bucket's reduction starts when the
// previous one has ended; until then ops wait. On shared links two concurrent collectives take as
// long as one after the other; on shared cores nothing is hidden.
double seconds_of_pass(const std::vector<Passing>& layers, Contention contention);

}  // namespace perigee::search
