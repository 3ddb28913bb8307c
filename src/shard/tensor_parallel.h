// Where the tensors around linear layers lie that are split over axes (Megatron-LM, Shoeybi et
// al. 2019; with sequence sharding between the layers, Korthikanti et al. 2022).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::shard {

// How a weight is split.
enum class WeightSplit : uint8_t {
  column,      // its outputs; so is its bias
  row,         // its inputs; the products are summed over the axis
  vocabulary,  // an embedding's rows
};

struct TensorParallel {
  std::vector<std::string> axes = {"tensor"};  // a dim that is split is split over all of them
  // Between the layers activations [batch, sequence, width] are sharded on their sequence: where a
  // sum was all-reduced it is reduce-scattered, and gathered before the next layer.
  bool sequence = false;
  std::map<std::string, WeightSplit> weights;  // by parameter name
};

// Pins the weights, their biases ("x.bias" beside "x.weight") and, on these axes alone, the values
// around their uses: a column's flattened input is whole; a row's sum and an embedding's rows are
// reduced, or sharded on the sequence; with sequence sharding the gradient that enters a row is
// whole. Weights [out, in] of linear layers and [experts, in, out] of batched products. Keeps what
// the plan pins on other axes. Throws Error for an axis that the mesh lacks, a parameter that the
// graph lacks or that lies on one of them already, one whose split dim is smaller than their ranks,
// attention heads that do not divide over these, and sequences that do not, were they to be
// sharded.
void place(plan::Plan& plan, const graph::Graph& graph, const TensorParallel& layers);

}  // namespace perigee::shard
