// One step both ways: gradients as the plan's ranks make them, and as one device does.
#pragma once

#include <string>
#include <vector>

#include "job/job.h"
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
  bool passed() const;
};

// Runs the first step's forward and backward passes with the first values of the parameters, on the
// CPU, ranks as threads of this process; nothing is clipped, gradients are means. `tolerance` 0: by
// the lowest precision that the model or the plan computes in. Throws Error for a plan whose
// gradients are not those of one device (copies of the model).
GradientCheck check_gradients(const Planned& planned, double tolerance = 0);

// Returns a line for each parameter, the farthest first, and what came of it.
std::string print(const GradientCheck& check);

}  // namespace perigee::train
