// Factors of the search's memory model that a user may give, as nnScaler's AutoDist has them.
#pragma once

#include <optional>

#include "compile/compile.h"
#include "plan/plan.h"

namespace perigee::search {

struct MemoryModel {
  // Multiple of a rank's two largest buffers that stays free, beside its programs' memory.
  std::optional<double> reserve;
  // Bytes of optimizer state for each byte of the weights that a rank steps; replaces
  // the counted bytes.
  std::optional<double> optimizer_resident;
  // Temporary bytes of the optimizer for each such byte, while only weights, gradients, states and
  // buffers are allocated.
  std::optional<double> optimizer_transient;
  bool operator==(const MemoryModel&) const = default;
};

// Returns the bytes of the program's two largest temporary buffers.
double largest_buffers(const compile::Program& program);

// Returns the peak of the rank's program by the model; `own` (compile::predict_memory) where no
// factor is given.
double peak_bytes(const MemoryModel& model, const compile::Program& program, const plan::Plan& plan,
                  double own);

// Returns the largest peak of all programs; `own` is by rank, in mesh order.
double peak_bytes(const MemoryModel& model, const compile::Programs& programs,
                  const plan::Plan& plan, const plan::Prediction& own);

}  // namespace perigee::search
