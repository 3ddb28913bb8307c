// One step both ways: gradients as the plan's ranks make them, and as one device does.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "job/job.h"
#include "mesh/mesh.h"
#include "train/planning.h"

namespace perigee::train {

// How far a parameter's gradient on any rank is from that of one device.
struct GradientDifference {
  std::string parameter;
  double largest = 0;   // of its elements; infinite where one is missing or not finite
  double relative = 0;  // to the largest element of the gradient on one device, or to a
                        // ten-thousandth of the largest of all where that is more
};

struct GradientCheck {
  double loss = 0, expected_loss = 0;
  double tolerance = 0;  // of `relative`, and of the loss
  int64_t ranks = 1;
  std::vector<GradientDifference> parameters;  // in the graph's order
  // Of a plan that runs scopes again: the parameters whose gradients are not bit for bit those of
  // the same plan with all results kept, in the graph's order.
  bool recomputes = false;
  std::vector<std::string> unequal;
  bool passed() const;
};

// What a rank has of a gradient ("gradient:PARAM") or the loss.
struct ResultPiece {
  std::string name;
  at::Tensor value;  // float64
  std::vector<mesh::Range> ranges;
};

// Returns whether some rank's pieces of that name are not bit for bit the same in both: others, of
// other ranges or values. Both are by rank.
bool differ(const std::vector<std::vector<ResultPiece>>& a,
            const std::vector<std::vector<ResultPiece>>& b, const std::string& name);

// Returns the module path of a parameter, "the model" for one of the whole.
std::string scope_of(const std::string& parameter);

// Runs the first step's forward and backward passes with the first values of the parameters, on the
// CPU, ranks as threads of this process; nothing is clipped, gradients are means. `tolerance` 0: by
// the lowest precision that the model or the plan computes in. Throws Error for a plan whose
// gradients are not those of one device (copies of the model).
// A plan that runs scopes again is compared with itself without that, too, to the bit.
GradientCheck check_gradients(const Planned& planned, double tolerance = 0);

// Logs what a check came to that passed. Throws Error naming the parameter for one that did not.
void require_passed(const GradientCheck& check);

// Returns a line for each parameter, the farthest first, and what came of it.
std::string print(const GradientCheck& check);

}  // namespace perigee::train
