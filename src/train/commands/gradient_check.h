// Compares the gradients of a plan's ranks, and the parameters after a step, with one device's.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "job/job.h"
#include "mesh/mesh.h"
#include "train/plan/make_plan.h"

namespace perigee::train {

// The difference between a parameter's gradient, or its value after the first step, on any rank and
// on one device.
struct GradientDifference {
  std::string parameter;
  // The largest absolute difference of an element; infinite where one is missing or not finite.
  double largest = 0;
  // `largest` / max(largest element of this tensor on one device, 1e-4 * that of all gradients).
  double relative = 0;
  // The largest of all elements' differences, each divided by what Closeness allows it.
  double excess = 0;
};

// An element b of one device may be a where |a - b| <= absolute + relative * |b|.
struct Closeness {
  double relative = 1e-4, absolute = 1e-4;
  // Returns the largest |a - b| / (absolute + relative * |b|) of all elements; infinite where an
  // element that must be equal differs, or is not finite.
  double excess(const at::Tensor& a, const at::Tensor& b) const;
};

struct GradientCheck {
  double loss = 0, expected_loss = 0;
  double tolerance = 0;  // of `relative`, and of the loss, where elements need not be close
  std::optional<Closeness> closeness;  // of each element and of the loss
  int64_t ranks = 1;
  std::vector<GradientDifference> parameters;  // of their gradients, in the graph's order
  // Where elements must be close: of their values after the first optimizer step.
  std::vector<GradientDifference> stepped;
  // For a plan with activation checkpointing: the parameters whose gradients are not bit-equal to
  // those of the same plan without it, in the graph's order.
  bool recomputes = false;
  std::vector<std::string> unequal;
  bool passed() const;
};

// A rank's piece of a gradient ("gradient:PARAM"), of a parameter ("parameter:PARAM") or the loss.
struct ResultPiece {
  std::string name;
  at::Tensor value;  // float64
  std::vector<mesh::Range> ranges;
};

// Returns whether any rank's pieces of that name differ between a and b, lists by rank: in their
// number, ranges or bits.
bool differ(const std::vector<std::vector<ResultPiece>>& a,
            const std::vector<std::vector<ResultPiece>>& b, const std::string& name);

// Returns the module path of a parameter, "the model" for one of the root module.
std::string scope_of(const std::string& parameter);

// Runs the forward and backward passes of the first step on the CPU, with ranks as threads of this
// process; gradients are means and are not clipped. `tolerance` 0: the job's (train.check_rtol and
// check_atol), else chosen by the lowest precision of the model and the plan. With the job's, the
// whole first step is run, too, and its parameters are compared. A plan with activation
// checkpointing is also compared, to the bit, with the same plan without it. Throws Error for a plan
// that trains copies of the model, whose gradients are not those of one device.
GradientCheck check_gradients(const PlannedJob& planned, double tolerance = 0);

// Logs the result of a check that passed. Throws Error naming the worst parameter for
// one that failed.
void require_passed(const GradientCheck& check);

// Returns a line for each parameter, the largest difference first, and the verdict.
std::string print(const GradientCheck& check);

}  // namespace perigee::train
