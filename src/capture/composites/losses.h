// Mean losses as sums and counts.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace perigee::tracing {

// Runs a loss whose mean is taken inside its kernel (mse_loss, huber_loss, ...) without reduction
// and takes the mean after it. Returns false, having done nothing, for all other ops. Throws Error
// for a `reduction` other than none, mean and sum.
bool call_loss(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace perigee::tracing
