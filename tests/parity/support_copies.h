// What ranks that train copies of a model (plan::Plan::copy_axes) are compared with: copies trained
// one by one on a device each, and averaged by hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/parity/support_ranks.h"

namespace perigee::parity {

// What is averaged when, over all copies.
struct Meeting {
  int64_t every = 1;
  bool states = false;
  std::string except = "none";  // parameters of this name stay apart
};

// The batch of a step, `rows` samples, in microbatches of which each copy has a part.
struct Apart {
  int64_t copies = 2;
  int64_t microbatches = 1;
  int64_t rows = 8;
  std::string methods = "";  // beside the mesh, as data: `, ["fp8", {}]`
};

// Trains copies of the model, captured at a copy's part of a microbatch, and averages them. Returns
// what each has.
std::vector<Outcome> train_apart(const Given& given, const Apart& apart, const Meeting& meeting,
                                 const compile::StepSpec& spec, int64_t steps);

// Returns "" when each rank has what its copy has, as the plan's mesh has them, else what differs.
std::string compare_copies(const plan::Plan& plan, const std::vector<Outcome>& apart,
                           const std::vector<Outcome>& ranks, double tolerance = 1e-10);

}  // namespace perigee::parity
