// Whether two graphs of one model compute the same function of each sample.
#pragma once

#include <string>

#include "graph/graph.h"

namespace perigee::shard {

// Compares the losses of a graph and of one of twice the samples that may have been made by
// guessing which sizes are the number of samples. Returns "" where both have the same ops with the
// same attributes, and sizes differ only along dims of samples: those of the data, followed through
// the ops' rules, and of tensors that are constant or random along that dim. Otherwise returns the
// first op for which this does not hold: "OP in scope ..., which ...". With "" a loss that
// classify_loss proves for `twice` is the mean, or sum, of one function for any number of samples,
// but for ops that couple samples themselves (batch norm, LossClass::coupling).
std::string find_sample_dependence(const graph::Graph& graph, const graph::Graph& twice);

}  // namespace perigee::shard
