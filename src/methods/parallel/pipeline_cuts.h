// Where pipeline_parallel cuts the forward pass into parts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace perigee::methods {

// Quantity that parts have equal shares of: work in floating-point operations, or the number of
// blocks (of ops where blocks do not divide over the parts), as in EPL's automatic pipeline.
enum class Balance : unsigned char { work, count };

struct PipelineCut {
  std::vector<std::string> patterns;  // scopes or module types between which parts are cut
  int64_t stages = 1;
  int64_t chunks = 1;  // parts of a stage
  Balance balance = Balance::work;
  // A part may have (1 + tolerance) times its share of the work where parts then receive fewer
  // bytes. Nothing: only the work counts.
  std::optional<double> tolerance;
};

// Returns the first scope of each part but the first. Throws Error where there are fewer blocks
// than parts, or no cut is within the tolerance.
std::vector<std::string> cut_blocks(const graph::Graph& graph, const PipelineCut& cut);

// Parts made of whole layers (cluster_layers).
struct LayerParts {
  int64_t layers = 2;
  double tolerance = 0.5;        // LayerCuts::tolerance
  std::vector<int64_t> numbers;  // of layers in each part; empty: equal
  int64_t parts = 2;
};

// Returns the first scope of each part but the first. Throws Error where the numbers do not add up
// to the layers, or as cluster_layers does.
std::vector<std::string> cut_layers(const graph::Graph& graph, const LayerParts& cut);

}  // namespace perigee::methods
