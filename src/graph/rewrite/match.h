// Finds a pattern in a graph and binds its values, sizes and numbers. Private to rewrite/.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/rewrite/rewrite.h"

namespace perigee::graph {

// The first prime that stands for sizes. As the first size of a shape it stands for one or
// more dims.
constexpr int64_t kManyDims = 1009;

// Returns whether `size` is a prime that stands for a size, or a product of such primes.
bool is_symbolic(int64_t size);

// The nodes that read each value of a graph; valid while the graph does not change.
struct Readers {
  explicit Readers(const Graph& graph);
  std::vector<bool> live;                     // by node: an output needs it
  std::vector<std::vector<NodeId>> by_value;  // live nodes, ascending; each once
  std::vector<bool> is_output;                // by value
};

// The graph's values, nodes, sizes and numbers that correspond to the pattern's.
struct Binding {
  std::vector<ValueId> values;  // by value of the pattern
  std::vector<NodeId> nodes;    // by node of the pattern; -1: not found
  std::map<int64_t, int64_t> sizes;
  std::optional<std::vector<int64_t>> many;  // the sizes that kManyDims stands for
  std::map<std::string, double> numbers;
  std::optional<DType> dtype;
  // Sizes of the pattern and of the graph whose comparison has to wait until all factors are bound.
  std::vector<std::pair<int64_t, int64_t>> products;

  // Returns the size that a size of the pattern stands for; nothing if it is not bound.
  std::optional<int64_t> size(int64_t symbolic) const;
  // Returns the dim of the graph's tensor that a dim of the pattern's tensor of this shape stands
  // for; nothing where it stands for several dims or none.
  std::optional<int64_t> dim(int64_t dim, const std::vector<int64_t>& shape) const;
};

class Matcher {
 public:
  Matcher(const Graph& graph, const Readers& readers, const Graph& pattern);

  // Binds the value of the pattern, and the values that it is computed from, to the graph's.
  // Returns false and leaves the binding unchanged where they differ.
  bool value(Binding& binding, ValueId of_pattern, ValueId of_graph) const;

  // Binds these backward nodes of the pattern. Requires that the forward nodes are bound. Returns
  // false if the graph has no corresponding nodes.
  bool backward(Binding& binding, const std::vector<NodeId>& nodes) const;

  // Returns whether the products of sizes agree.
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

// Returns the nodes of one phase that the values depend on, in the graph's order.
std::vector<NodeId> producers_of(const Graph& graph, const std::vector<ValueId>& values,
                                 Phase phase);

// Returns the first tensor operand: the one whose dims the node's arguments count.
ValueId first_operand(const Node& node);

// Returns whether the argument holds dims of the first operand.
bool names_dims(std::string_view argument);

}  // namespace perigee::graph
