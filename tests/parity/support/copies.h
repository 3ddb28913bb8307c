// The reference for ranks that train copies of a model (plan::Plan::copy_axes): copies trained one
// by one, each on a device, and averaged by hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/parity/support/ranks.h"

namespace perigee::parity {

// The steps and the values that are averaged over all copies.
struct Averaging {
  int64_t every = 1;
  bool states = false;
  std::string except = "none";  // parameters of this name are not averaged
};

// The batch of a step: `rows` samples in microbatches, each divided over the copies.
struct CopyBatch {
  int64_t copies = 2;
  int64_t microbatches = 1;
  int64_t rows = 8;
  std::string methods = "";  // beside the mesh, as data: `, ["fp8", {}]`
};

// Trains copies of the model one by one and averages them. `given` is captured at a copy's part of
// a microbatch. Returns the outcome of each copy.
std::vector<Outcome> train_copies(const Given& given, const CopyBatch& batch,
                                  const Averaging& averaging, const compile::StepSpec& spec,
                                  int64_t steps);

// Returns "" if each rank of the plan's mesh equals its copy, else the first difference.
std::string compare_copies(const plan::Plan& plan, const std::vector<Outcome>& copies,
                           const std::vector<Outcome>& ranks, double tolerance = 1e-10);

}  // namespace perigee::parity
