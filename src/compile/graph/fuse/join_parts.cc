#include "compile/graph/fuse/join_parts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "compile/graph/autocast.h"
#include "compile/graph/fuse/readers.h"

namespace perigee::compile {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueId;

// A part of a dim: elements [begin, end).
struct Part {
  ValueId value;
  int64_t begin = 0, end = 0;
};

// The parts of one sum, all along one dim and by one op.
struct Parts {
  std::string op;
  int64_t dim = 0;
  std::vector<Part> parts;
};

class JoinParts {
 public:
  explicit JoinParts(const Graph& graph)
      : graph_(graph), result_(graph), readers_(count_readers(graph)), moved_(graph.nodes.size()) {
    result_.nodes.clear();
  }

  Graph run() && {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      Node node = graph_.nodes[n];
      if (node.forward_node >= 0) node.forward_node = moved_[node.forward_node];
      if (auto found = parts_of(node)) {
        join(node, found->parts, found->op == "aten::select_backward", found->dim);
        joined_.emplace(node.outputs[0].index, std::move(*found));
      } else if (const auto* stacked = permuted_stack(node)) {
        permute_parts(node, *stacked);
      }
      append(result_, std::move(node));
      moved_[n] = static_cast<graph::NodeId>(result_.nodes.size()) - 1;
    }
    return graph::eliminate_dead_code(std::move(result_));
  }

 private:
  static bool is_sum(const Node& node) {
    return node.op == "aten::add.Tensor" && node.args.size() == 2;
  }

  // Returns the parts that the node adds up to a whole tensor, or nothing.
  std::optional<Parts> parts_of(const Node& node) const {
    Parts found;
    if (!is_sum(node) || !collect(node, found)) return {};
    return fills(found, graph_.type(node.outputs[0])) ? std::optional(std::move(found))
                                                      : std::nullopt;
  }

  static void join(Node& node, const std::vector<Part>& parts, bool stacks, int64_t dim) {
    std::vector<ValueId> tensors;
    for (const auto& part : parts) tensors.push_back(part.value);
    node.op = stacks ? "aten::stack" : "aten::cat";
    node.args = {{"tensors", std::move(tensors)}, {"dim", dim}};
  }

  // Returns the parts of a stack that the node, its only reader, permutes.
  const Parts* permuted_stack(const Node& node) const {
    if (node.op != "aten::permute") return nullptr;
    const auto v = node.get<ValueId>("self", {});
    const auto found = v.defined() ? joined_.find(v.index) : joined_.end();
    if (found == joined_.end() || readers_[v.index] != 1) return nullptr;
    return found->second.op == "aten::select_backward" ? &found->second : nullptr;
  }

  // Makes the permutation a stack of permuted parts, which is contiguous: no copy follows.
  void permute_parts(Node& node, const Parts& stacked) {
    const auto dims = node.get<std::vector<int64_t>>("dims", {});
    const auto rank = static_cast<int64_t>(dims.size());
    std::vector<int64_t> of_part;
    int64_t at = 0;
    for (int64_t d = 0; d < rank; ++d) {
      const int64_t from = dims[d] < 0 ? dims[d] + rank : dims[d];
      if (from == stacked.dim) {
        at = d;
      } else {
        of_part.push_back(from < stacked.dim ? from : from - 1);
      }
    }
    auto parts = stacked.parts;
    for (auto& part : parts) {
      const auto& type = result_.type(part.value);
      graph::TensorType permuted{type.dtype, {}};
      for (const auto d : of_part) permuted.shape.push_back(type.shape[d]);
      const auto view = result_.add_value(std::move(permuted));
      append(result_, {.op = "aten::permute",
                       .args = {{"self", part.value}, {"dims", of_part}},
                       .outputs = {view},
                       .scope = node.scope,
                       .phase = node.phase,
                       .forward_node = node.forward_node});
      part.value = view;
    }
    join(node, parts, true, at);
  }

  // Adds the parts that the sum adds up. Returns whether it adds up parts only.
  bool collect(const Node& sum, Parts& found) const {
    const auto type = graph_.type(sum.outputs[0]);
    for (const auto* argument : {"self", "other"}) {
      const auto v = sum.get<ValueId>(argument, {});
      if (!v.defined() || graph_.type(v) != type) return false;
      const auto producer = graph_.values[v.index].producer;
      if (producer < 0 || readers_[v.index] != 1) return false;
      const auto& node = graph_.nodes[producer];
      if (is_sum(node) ? !collect(node, found) : !add(node, found)) return false;
    }
    return true;
  }

  bool add(const Node& node, Parts& found) const {
    const bool selects = node.op == "aten::select_backward";
    if (!selects && node.op != "aten::slice_backward") return false;
    const auto& shape = graph_.type(node.outputs[0]).shape;
    const auto rank = static_cast<int64_t>(shape.size());
    auto dim = node.get<int64_t>("dim", 0);
    if (dim < 0) dim += rank;
    if (!found.parts.empty() && (found.op != node.op || found.dim != dim)) return false;
    found.op = node.op;
    found.dim = dim;
    Part part{.value = node.get<ValueId>("grad_output", {})};
    if (!part.value.defined()) return false;
    const auto size = shape[dim];
    const auto place = [&](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
    };
    if (selects) {
      part.begin = place(node.get<int64_t>("index", 0));
      part.end = part.begin + 1;
    } else {
      if (node.get<int64_t>("step", 1) != 1) return false;
      part.begin = place(node.get<int64_t>("start", 0));
      part.end = place(node.get<int64_t>("end", size));
    }
    found.parts.push_back(part);
    return true;
  }

  static bool fills(Parts& found, const graph::TensorType& whole) {
    std::sort(found.parts.begin(), found.parts.end(),
              [](const Part& a, const Part& b) { return a.begin < b.begin; });
    int64_t at = 0;
    for (const auto& part : found.parts) {
      if (part.begin != at || part.end <= part.begin) return false;
      at = part.end;
    }
    return at == whole.shape[found.dim];
  }

  const Graph& graph_;
  Graph result_;
  std::vector<int> readers_;          // by value of the graph
  std::vector<graph::NodeId> moved_;  // by node of the graph: its place in the result
  std::map<int32_t, Parts> joined_;   // by value
};

}  // namespace

Graph join_parts(const Graph& graph) { return JoinParts(graph).run(); }

}  // namespace perigee::compile
