// One pass of list scheduling over a split-backward pipeline, steered by a policy. The search tries
// several.
#pragma once

#include "cost/schedule_shape.h"

namespace perigee::schedule {

// What a stage runs next among what is ready. Forwards of the later chunk go first, weight
// gradients last.
struct Policy {
  enum class Prefer : unsigned char { backward, alternate, forward };
  Prefer prefer = Prefer::backward;  // between a ready forward and a ready input gradient
  bool drain = true;                 // among input gradients: chunk 0 first, else chunk 1
  bool strict = false;           // after an input gradient, make room for a waiting forward first
  std::vector<int> first_limit;  // [stage] most chunk-0 activations held; empty: the cap alone
};

// Returns the orders that the policy gives for shape's costs, with at most `cap` chunk activations
// held per stage. Needs cap >= chunks, which is enough for it to finish.
Orders run_greedy(const Shape& shape, int cap, const Policy& policy);

}  // namespace perigee::schedule
