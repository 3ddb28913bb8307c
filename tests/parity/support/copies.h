// The reference for ranks that train copies of a model (plan::Plan::copy_axes): copies trained one
// by one, each on a device, and averaged by hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/parity/support/ranks.h"

namespace perigee::parity {

// The averages over all copies: their interval and values.
struct Meeting {
  int64_t every = 1;
  bool states = false;
  std::string except = "none";  // parameters of this name are not averaged
};

// The batch of a step, `rows` samples, in microbatches of which each copy has a part.
struct Apart {
  int64_t copies = 2;
  int64_t microbatches = 1;
  int64_t rows = 8;
  std::string methods = "";  // beside the mesh, as data: `, ["fp8", {}]`
};

// Trains copies of the model, captured at a copy's part of a microbatch, and averages them. Returns
// the outcome of each.
std::vector<Outcome> train_apart(const Given& given, const Apart& apart, const Meeting& meeting,
                                 const compile::StepSpec& spec, int64_t steps);

// Returns "" if each rank of the plan's mesh equals its copy, else the first difference.
std::string compare_copies(const plan::Plan& plan, const std::vector<Outcome>& apart,
                           const std::vector<Outcome>& ranks, double tolerance = 1e-10);

}  // namespace perigee::parity
