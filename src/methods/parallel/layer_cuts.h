// Clusters the ops of a captured graph into layers, the units of which stages are made (Alpa's
// layer construction, Zheng et al. 2022).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace perigee::methods {

struct LayerCuts {
  int64_t layers = 2;
  // No layer has more than (1 + tolerance) times its share of the floating-point operations.
  double tolerance = 0.5;
};

// Returns the first scope of each layer but the first. A layer may begin wherever the forward pass
// first enters a module, at any depth. The cut minimises, in this order, the bytes of activations
// that one layer reads from earlier ones, the bytes that all read, and the differences in
// floating-point operations; each layer has a product or a convolution. Throws Error where no cut
// has so many layers, or none is within the tolerance.
std::vector<std::string> cluster_layers(const graph::Graph& graph, const LayerCuts& cuts);

// The bytes of activations that cross the ends of ranges of layers, by [first][last].
struct LayerBytes {
  std::vector<std::vector<double>> in, out;
};

// `layer_of`: the layer of each node, from 0 to `layers` - 1. Counts floating-point results of the
// forward pass that depend on data, each once for a range that does not produce it, or that does
// not contain all of its readers.
LayerBytes bytes_between_layers(const graph::Graph& graph, const std::vector<int>& layer_of,
                                int layers);

}  // namespace perigee::methods
