// The products of a weight in a captured graph, and their derivatives.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace perigee::graph {

// A value, or its transpose.
struct Oriented {
  ValueId value;
  bool transposed = false;
};

// y = x W^T (+ bias), by aten::mm or aten::addmm.
struct Product {
  NodeId forward = -1;
  ValueId x;
  NodeId d_weight = -1;             // aten::mm that computes the weight's gradient; -1: none
  NodeId d_input = -1;              // aten::mm that computes the gradient of x; -1: none
  Oriented dy = {};                 // the gradient of y as the first of the two reads it
  bool d_input_transposed = false;  // d_input computes its transpose

  // Returns the first of the two.
  NodeId first_derivative() const {
    return d_input >= 0 && d_input < d_weight ? d_input : d_weight;
  }
};

struct Uses {
  std::vector<Product> products;
  std::string refused;  // why they cannot have an adapter; "": they can
};

// The readers of each value.
using Readers = std::vector<std::vector<NodeId>>;
Readers readers_of(const Graph& graph);

// Returns the uses of a parameter. Throws Error for a name of no parameter.
Uses uses_of(const Graph& graph, const Readers& readers, std::string_view weight);

}  // namespace perigee::graph
