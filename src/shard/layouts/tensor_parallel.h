// Placements of the tensors around linear layers that are split over axes (Megatron-LM, Shoeybi et
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
  column,      // outputs and bias
  row,         // inputs; the products are summed over the axis
  vocabulary,  // an embedding's rows
};

struct TensorParallel {
  std::vector<std::string> axes = {"tensor"};  // a split dim is split over all of them
  // Activations [batch, sequence, width] between the layers are sharded on their sequence: sums are
  // reduce-scattered instead of all-reduced, and gathered before the next layer.
  bool sequence = false;
  std::map<std::string, WeightSplit> weights;  // by parameter name
};

// Pins the weights, their biases ("x.bias" beside "x.weight") and, on these axes only, the values
// around their uses: a column's flattened input is whole; a row's sum and an embedding's rows are
// reduced, or sharded on the sequence; with sequence sharding the gradient that enters a row is
// whole. Weights are [out, in] of linear layers or [experts, in, out] of batched products. Keeps
// the plan's pins on other axes. Of a weight with an adapter B is split by its outputs as a column is,
// and A by its inputs as a row is. Throws Error for an axis that the mesh lacks, a parameter that the
// graph lacks or that is already placed on one of the axes, a split dim smaller than their ranks,
// and attention heads or sharded sequences that do not divide over them.
void place(plan::Plan& plan, const graph::Graph& graph, const TensorParallel& layers);

}  // namespace perigee::shard
