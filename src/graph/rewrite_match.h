// Where a pattern stands in a graph, and what its names stand for there. Used by rewrite.cc alone.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/rewrite.h"

namespace perigee::graph {

// The first of the primes that stand for sizes: as a first size, for one dim or more.
constexpr int64_t kManyDims = 1009;

// Returns whether it is a prime that stands for a size, or a product of such.
bool is_symbolic(int64_t size);

// What is known of a graph while it does not change.
struct Readers {
  explicit Readers(const Graph& graph);
  std::vector<bool> live;                     // by node: an output needs it
  std::vector<std::vector<NodeId>> by_value;  // live nodes, ascending; each once
  std::vector<bool> is_output;                // by value
};

// What stands for the pattern's values, nodes, sizes and numbers.
struct Binding {
  std::vector<ValueId> values;  // by value of the pattern
  std::vector<NodeId> nodes;    // by node of the pattern; -1: not found
  std::map<int64_t, int64_t> sizes;
  std::optional<std::vector<int64_t>> many;  // what kManyDims stands for
  std::map<std::string, double> numbers;
  std::optional<DType> dtype;
  std::vector<std::pair<int64_t, int64_t>> products;  // of the pattern and the graph, to compare

  // Returns the size that a size of the pattern stands for; nothing while it is not known.
  std::optional<int64_t> size(int64_t symbolic) const;
  // Returns the dim of the graph's tensor: a dim of the pattern's, of which the shape is given.
  // Nothing where it is several or none.
  std::optional<int64_t> dim(int64_t dim, const std::vector<int64_t>& shape) const;
};

class Matcher {
 public:
  Matcher(const Graph& graph, const Readers& readers, const Graph& pattern);

  // Binds the value of the pattern, and all that it is made from, to the graph's. Returns false,
  // with the binding as it was, where they differ.
  bool value(Binding& binding, ValueId of_pattern, ValueId of_graph) const;

  // Binds these backward nodes of the pattern; the forward ones are bound. Returns false where that
  // cannot be.
  bool backward(Binding& binding, const std::vector<NodeId>& nodes) const;

  // Returns whether the sizes that were put off agree.
  static bool sizes_agree(const Binding& binding);

 private:
  bool try_value(Binding& b, ValueId of_pattern, ValueId of_graph) const;
  bool node(Binding& b, NodeId of_pattern, NodeId of_graph) const;
  bool args(Binding& b, const Node& p, const Node& g, bool swapped) const;
  bool arg(Binding& b, const Node& p, const Node& g, const std::string& name, const Arg& a,
           const Arg& other) const;
  bool type(Binding& b, const TensorType& p, const TensorType& g) const;
  bool size(Binding& b, int64_t p, int64_t g) const;
  bool dims(Binding& b, const Node& p, const Node& g, const std::vector<int64_t>& of_pattern,
            std::vector<int64_t> of_graph) const;

  const Graph& graph_;
  const Readers& readers_;
  const Graph& pattern_;
};

// Returns all nodes that the values are made by, of one phase, in the graph's order.
std::vector<NodeId> nodes_behind(const Graph& graph, const std::vector<ValueId>& values,
                                 Phase phase);

// Returns the first tensor operand: the one whose dims the node's arguments count.
ValueId first_operand(const Node& node);

// Returns whether the argument holds dims of the first operand.
bool names_dims(std::string_view argument);

}  // namespace perigee::graph
