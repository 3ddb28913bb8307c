// Gradients that are sums, given to the step as their summands.
#pragma once

#include "compile/rank.h"

namespace perigee::compile {

// Replaces each gradient that is a sum of several values by these values, as outputs of its name in
// the order in which they are computed: each is then added to the gradient's memory, by a matrix
// product or the gradient of an embedding without a result of its own (accumulate_in_place).
void split_gradients(Local& local);

}  // namespace perigee::compile
