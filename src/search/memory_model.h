// What a user knows of memory better than the compiled programs: factors of the search's memory
// model, as nnScaler's AutoDist has them.
#pragma once

#include <optional>

#include "compile/compile.h"
#include "plan/plan.h"

namespace perigee::search {

struct MemoryModel {
  // A rank keeps so many times its two largest buffers free, beside what its programs take.
  std::optional<double> reserve;
  // Bytes that the optimizer keeps for each byte of the weights that a rank steps, in the place of
  // those of its states.
  std::optional<double> optimizer_resident;
  // Bytes that a step takes for each such byte while nothing but weights, gradients, states and
  // buffers is there.
  std::optional<double> optimizer_transient;
  bool operator==(const MemoryModel&) const = default;
};

// Returns the bytes of the program's two largest buffers: values that it makes and gives back.
double largest_buffers(const compile::Program& program);

// Returns the peak of the rank's program by the model; its own (compile::predict_memory) where that
// says nothing.
double peak_bytes(const MemoryModel& model, const compile::Program& program, const plan::Plan& plan,
                  double own);

// Returns the largest of all programs; `own` is by rank, in mesh order.
double peak_bytes(const MemoryModel& model, const compile::Programs& programs,
                  const plan::Plan& plan, const plan::Prediction& own);

}  // namespace perigee::search
