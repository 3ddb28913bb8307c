// Low-rank adapters (LoRA, Hu et al. 2022) in a captured graph. A product with an adapted weight
//
//   y = x W^T (+ bias)                        x [n, in], W [out, in]
//
// is followed by y' = y + (scale dropout(x) A^T) B^T, with two new parameters A [rank, in] and B
// [out, rank]. W and all other parameters of the model are frozen: they have no gradient, and W
// gets no gradient ops. The edit reads the joint graph, forward and backward: the operands of the
// op that computes the gradient of W are the operands of the new parameters' gradients.
//
// The edit follows the capture, since only a strategy says what is adapted, and precedes everything
// else: methods, sharding rules, the search, compile/ and checkpoints see ordinary parameters and
// ops. A plan with adapters has the structural hash of the edited graph. Where a graph is captured
// for a plan, train/task/source.h edits it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace perigee::graph {

struct Adapters {
  std::vector<std::string> weights;       // own names of the adapted weights ("blocks.0.q.weight")
  std::vector<std::string> trained = {};  // other parameters of the model that are trained
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;   // of x, with random numbers by element (perigee::dropout)
  bool rslora = false;  // Kalajdzievski 2023
  // Returns alpha / rank, or with rslora alpha / sqrt(rank).
  double scale() const;
  bool operator==(const Adapters&) const = default;
};

// The two new parameters of a weight "blocks.0.q.weight": "blocks.0.q.lora_A.weight", and B's.
std::string adapter_a(std::string_view weight);
std::string adapter_b(std::string_view weight);

// Returns whether the graph has adapters, and `name` is a parameter of one.
bool is_adapter(const Graph& graph, std::string_view name);

// Returns whether the graph has the parameters of these adapters, with their shapes, and the
// adapted weights are frozen. A graph without gradients may lack some of the weights.
bool has_adapters(const Graph& graph, const Adapters& adapters);

// Returns why the parameter cannot be adapted ("is read by aten::embedding, which is no linear
// layer"); "" where it can, and for a weight that has an adapter.
std::string refusal(const Graph& graph, std::string_view weight);

// Returns the graph with the adapters; a graph that has them, unchanged. A graph without gradients
// gets no dropout and may lack some of the weights. New ops have the scopes of their products.
// Throws Error for a weight that the graph lacks or `refusal` refuses, and for parameters in
// `trained` that the graph lacks or that have no gradient.
Graph adapt(Graph graph, const Adapters& adapters);

// Returns the init graph (Captured::init; may be empty) with first values of the new parameters of
// `adapted`: A is uniform within 1 / sqrt(in) as in PEFT, B zero.
Graph with_first_values(Graph init, const Graph& adapted, const Adapters& adapters);

}  // namespace perigee::graph
