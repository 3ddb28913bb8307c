// Steps of a rank's executor on the batch among the given inputs.
#pragma once

#include <cstdint>

#include "exec/executor.h"
#include "tests/parity/support/models.h"
#include "tests/parity/support/ranks.h"

namespace perigee::parity {

// Sets the rank's parts of parameters and buffers.
void set_weights(exec::Executor& executor, const Given& given);

// Runs the steps at a learning rate of 0.01, and returns losses and norms.
Outcome run_steps(exec::Executor& executor, const Given& given, int64_t steps);

// Adds copies of the rank's parameters, buffers and optimizer state.
void add_tensors(Outcome& outcome, const exec::Executor& executor);

}  // namespace perigee::parity
