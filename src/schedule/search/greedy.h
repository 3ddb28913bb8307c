// One pass of list scheduling over a pipeline with split backward passes. The search
// tries several policies.
#pragma once

#include "schedule/shape.h"

namespace perigee::schedule {

// Which of the ready ops a stage runs next. Forwards of the later chunk go first,
// weight gradients last.
struct Policy {
  enum class Prefer : unsigned char { backward, alternate, forward };
  Prefer prefer = Prefer::backward;  // between a ready forward and a ready input gradient
  bool drain = true;                 // among input gradients: chunk 0 first, else chunk 1
  bool strict = false;           // after an input gradient, first free memory for a waiting forward
  std::vector<int> first_limit;  // [stage] most in-flight chunk-0 activations; empty: the cap alone
};

// Returns the policy's orders for the shape's costs, with at most `cap` chunk activations in flight
// per stage. Requires cap >= chunks, with which it always finishes.
Orders run_greedy(const Shape& shape, int cap, const Policy& policy);

}  // namespace perigee::schedule
