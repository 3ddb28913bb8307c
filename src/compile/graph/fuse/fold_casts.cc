#include "compile/graph/fuse/fold_casts.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "compile/graph/fuse/readers.h"
#include "compile/graph/fuse/skip_cast.h"
#include "graph/ops.h"

namespace perigee::compile {
namespace {

using graph::DType;
using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

bool is_view(const Node& node) { return graph::is_view(node.op) || node.op == "perigee::reshape"; }

// Returns the argument of the upstream gradient of a norm's gradient, or "" for other ops.
std::string_view upstream_of(std::string_view op) {
  return op == "aten::native_layer_norm_backward" ? "grad_out"
         : op == "perigee::rms_norm_backward"     ? "grad"
                                                  : "";
}

class FoldCasts {
 public:
  FoldCasts(Graph graph, FoldedSummands summands)
      : graph_(std::move(graph)),
        summands_(summands),
        counts_(count_readers(graph_)),
        readers_(graph_.values.size()),
        read_(graph_.values.size()) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      graph_.nodes[n].each_operand(
          [&](ValueId v) { readers_[v.index].push_back(static_cast<NodeId>(n)); });
    }
    for (int32_t v = 0; v < std::ssize(read_); ++v) read_[v] = ValueId{v};
  }

  Graph run() {
    for (auto& node : graph_.nodes) {
      if (node.op == "aten::add.Tensor") {
        if (folds_summand(node)) fold_summand(node);
      } else if (node.op == "aten::native_layer_norm" || node.op == "perigee::rms_norm") {
        fold_result(node);
      } else if (const auto upstream = upstream_of(node.op); !upstream.empty()) {
        fold_gradient(node, upstream);
      } else if (node.op == "perigee::rotary") {
        fold_rotation(node, "self");
      } else if (node.op == "perigee::rotary_backward") {
        fold_rotation(node, "grad");
      }
    }
    for (auto& node : graph_.nodes) {
      node.each_operand([&](ValueId& v) { v = read_[v.index]; });
    }
    return graph::eliminate_dead_code(std::move(graph_));
  }

 private:
  Node* producer(ValueId v) {
    const auto n = graph_.values[v.index].producer;
    return n < 0 ? nullptr : &graph_.nodes[static_cast<size_t>(n)];
  }

  // Returns what a cast to float32 that has one reader casts, if it has a low precision.
  ValueId source_of(ValueId v) {
    const auto* node = producer(v);
    if (!node || counts_[v.index] != 1 || node->op != "perigee::cast") return {};
    const auto source = node->get<ValueId>("self", {});
    const bool widens = graph_.type(v).dtype == DType::float32 &&
                        graph::is_half(graph_.type(source).dtype);
    return widens ? source : ValueId{};
  }

  bool folds_summand(const Node& sum) const {
    if (summands_ != FoldedSummands::of_values) return summands_ == FoldedSummands::all;
    return std::ranges::none_of(graph_.outputs, [&](const graph::Output& output) {
      return output.kind == graph::Output::Kind::gradient && output.value == sum.outputs[0];
    });
  }

  static void set(Node& node, std::string_view name, ValueId v) {
    for (auto& [key, arg] : node.args) {
      if (key == name) arg = v;
    }
  }

  void fold_summand(Node& node) {
    if (node.args.size() != 2) return;
    const auto a = node.get<ValueId>("self", {}), b = node.get<ValueId>("other", {});
    if (!a.defined() || !b.defined()) return;
    const auto is_wide = [&](ValueId v) {
      // The type of a tensor without dims does not count where another one has dims.
      return graph_.type(v).dtype == DType::float32 && !graph_.type(v).shape.empty();
    };
    if (!is_wide(a) || !is_wide(b)) return;
    // Not both: the sum of two in the low precision would have it, too.
    const auto other = source_of(b);
    const auto folded = other.defined() ? other : source_of(a);
    if (folded.defined()) set(node, other.defined() ? "other" : "self", folded);
  }

  // Finds the casts of a value, and its views, which nothing but casts to one low precision reads.
  // Returns false where something else does.
  bool find_casts(ValueId v, std::optional<DType>& low, std::vector<ValueId>& views,
                  std::vector<NodeId>& casts) const {
    views.push_back(v);
    if (static_cast<int>(readers_[v.index].size()) != counts_[v.index]) return false;  // an output
    for (const auto n : readers_[v.index]) {
      const auto& reader = graph_.nodes[static_cast<size_t>(n)];
      if (is_view(reader) && reader.outputs.size() == 1) {
        if (!find_casts(reader.outputs[0], low, views, casts)) return false;
        continue;
      }
      if (reader.op != "perigee::cast") return false;
      const auto dtype = graph_.type(reader.outputs[0]).dtype;
      if (!graph::is_half(dtype) || low.value_or(dtype) != dtype) return false;
      low = dtype;
      casts.push_back(n);
    }
    return true;
  }

  // A result, its views, and all of their readers: casts to one low precision.
  struct Casts {
    std::vector<ValueId> views;
    std::optional<DType> low;
    std::vector<NodeId> casts;
  };

  // Returns the casts of a result of float32, or nothing where something else reads it, too.
  std::optional<Casts> casts_of(ValueId result) const {
    if (!result.defined() || graph_.type(result).dtype != DType::float32) return {};
    Casts found;
    if (!find_casts(result, found.low, found.views, found.casts) || !found.low) return {};
    return found;
  }

  // Makes a result in the low precision to which all readers cast it.
  void make_low(const Casts& result) {
    for (const auto v : result.views) graph_.values[v.index].type.dtype = *result.low;
    for (const auto n : result.casts) {
      const auto& cast = graph_.nodes[static_cast<size_t>(n)];
      read_[cast.outputs[0].index] = cast.get<ValueId>("self", {});
    }
  }

  void fold_result(const Node& node) {
    if (const auto casts = casts_of(node.outputs[0])) make_low(*casts);
  }

  // Lets rotary positions read the low precision that is cast to float32 for them, where their result is
  // cast back to it.
  void fold_rotation(Node& node, std::string_view operand) {
    const auto casts = casts_of(node.outputs[0]);
    if (!casts) return;
    const auto low = skip_cast(graph_, counts_, node.get<ValueId>(operand, {}), casts->low);
    if (!low.defined()) return;
    set(node, operand, low);
    make_low(*casts);
  }

  // Lets the gradient of a norm read its upstream gradient in the low precision of a product.
  void fold_gradient(Node& node, std::string_view upstream) {
    const auto low = skip_cast(graph_, counts_, node.get<ValueId>(upstream, {}));
    if (low.defined()) set(node, upstream, low);
  }

  Graph graph_;
  const FoldedSummands summands_;
  std::vector<int> counts_;                   // by value, with outputs of the graph
  std::vector<std::vector<NodeId>> readers_;  // by value
  std::vector<ValueId> read_;                 // by value: what its readers read in its place
};

}  // namespace

Graph fold_casts(Graph graph, FoldedSummands summands) {
  return FoldCasts(std::move(graph), summands).run();
}

}  // namespace perigee::compile
