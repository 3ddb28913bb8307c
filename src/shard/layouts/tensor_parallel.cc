#include "shard/layouts/tensor_parallel.h"

#include <string_view>
#include <vector>

#include "base/fail.h"
#include "graph/adapters/adapters.h"
#include "graph/ops.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Node;
using graph::Phase;
using graph::ValueId;
using mesh::Placement;

class TensorPlacing {
 public:
  TensorPlacing(plan::Plan& plan, const Graph& graph, const TensorParallel& layers)
      : plan_(plan),
        graph_(graph),
        layers_(layers),
        names_(graph::value_names(graph)),
        users_(graph.values.size()),
        parts_(mesh::group_size(plan.mesh, layers.axes)),
        axes_text_(fmt::format("{} {}", layers.axes.size() == 1 ? "axis" : "axes",
                               fmt::join(layers.axes, ", "))) {
    for (const auto& name : layers.axes) axes_.push_back(axis(name));
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      graph.nodes[n].each_operand([&](ValueId v) { users_[v.index].push_back(n); });
    }
  }

  void weight(const std::string& name, WeightSplit split) {
    const auto* input = graph_.find_input(name);
    if (!input || input->kind != graph::Input::Kind::parameter) {
      std::vector<std::string> names;
      for (const auto& known : graph_.inputs) names.push_back(known.name);
      fail("tensor_parallel",
           "weights that are split are parameters of the graph, but got \"{}\"{}", name,
           did_you_mean(name, names));
    }
    const auto v = input->value;
    const auto rank = static_cast<int>(graph_.type(v).shape.size());
    if (rank != 2 && (rank != 3 || split == WeightSplit::vocabulary)) {
      fail("tensor_parallel", "linear layers, experts and embeddings are split, but {} has {} dims",
           name, rank);
    }
    const bool linear = rank == 2;  // [out, in]
    if (split == WeightSplit::column) {
      parameter(name, linear ? 0 : rank - 1);
      if (name.ends_with("weight")) bias(name.substr(0, name.size() - 6) + "bias");
      if (const auto* b = adapter(name, graph::adapter_b)) parameter(b->name, 0);
    } else {
      parameter(name, split == WeightSplit::row ? (linear ? 1 : rank - 2) : 0);
      const auto* a = split == WeightSplit::row ? adapter(name, graph::adapter_a) : nullptr;
      if (a) parameter(a->name, 1);
    }
    for (size_t n : users_[v.index]) {
      const auto& node = graph_.nodes[n];
      if (node.op == "aten::embedding") {
        pin(node.outputs[0], between(node.outputs[0], name));
      } else if (node.op == "aten::t" && node.phase == Phase::forward) {
        for (size_t product : users_[node.outputs[0].index]) {
          pin_product(graph_.nodes[product], node.outputs[0], split, name);
        }
      } else if (node.phase == Phase::backward && layers_.sequence && split == WeightSplit::row) {
        if (const auto grad = left_of(node, v); grad.defined()) pin(grad, Placement::replicate());
      }
    }
  }

 private:
  int axis(const std::string& name) const {
    const int found = plan_.mesh.find(name);
    if (found >= 0) return found;
    std::vector<std::string> axes;
    for (const auto& axis : plan_.mesh.axes) axes.push_back(axis.name);
    fail("tensor_parallel", "layers are split over an axis of the mesh ({}), but got \"{}\"{}",
         fmt::join(axes, ", "), name, did_you_mean(name, axes));
  }

  // Handles a forward product with the transposed weight.
  void pin_product(const Node& product, ValueId weight, WeightSplit split,
                   const std::string& name) {
    const auto input = left_of(product, weight);
    if (!input.defined()) return;
    if (split != WeightSplit::row) {
      check_heads(product.outputs[0], name);
      return pin(input, Placement::replicate());
    }
    // A reshape after the product turns [batch * sequence, width] into [batch, sequence, width].
    auto sum = with_adapter(product.outputs[0], name);
    const auto& users = users_[sum.index];
    if (users.size() == 1 && graph_.nodes[users[0]].op == "perigee::reshape") {
      sum = graph_.nodes[users[0]].outputs[0];
    }
    pin(sum, between(sum, name));
  }

  // Returns the parameter of the weight's adapter that the function names, or nullptr.
  const graph::Input* adapter(const std::string& weight,
                              std::string (*name_of)(std::string_view)) const {
    if (!weight.ends_with("weight") || !graph::is_adapter(graph_, name_of(weight))) return nullptr;
    return graph_.find_input(name_of(weight));
  }

  // Returns the sum of a product and its weight's adapter; the product itself where it has none.
  ValueId with_adapter(ValueId product, const std::string& weight) const {
    const auto& users = users_[product.index];
    const bool added = adapter(weight, graph::adapter_b) && users.size() == 1 &&
                       graph_.nodes[users[0]].op == "aten::add.Tensor";
    return added ? graph_.nodes[users[0]].outputs[0] : product;
  }

  // The left operand of a product whose right one is `right`; undefined for other ops.
  static ValueId left_of(const Node& node, ValueId right) {
    const bool plain = node.op == "aten::mm" || node.op == "aten::bmm";
    if (!plain && node.op != "aten::addmm") return {};
    const auto* b = node.find("mat2");
    const auto* a = node.find(plain ? "self" : "mat1");
    if (!a || !b || *b != graph::Arg(right)) return {};
    return std::get<ValueId>(*a);
  }

  // Checks attention whose query, key or value comes from a column: its heads are sharded.
  void check_heads(ValueId column, const std::string& name) const {
    std::vector<ValueId> open{column};
    std::vector<bool> seen(graph_.values.size());
    while (!open.empty()) {
      const auto v = open.back();
      open.pop_back();
      if (seen[v.index]) continue;
      seen[v.index] = true;
      for (size_t n : users_[v.index]) {
        const auto& node = graph_.nodes[n];
        if (node.phase != Phase::forward) continue;
        if (node.op == "perigee::attention") {
          const auto& shape = graph_.type(v).shape;  // [batch, heads, sequence, width]
          if (shape.size() != 4 || shape[1] % parts_ == 0) continue;
          fail("tensor_parallel",
               "attention heads must divide over the {} ranks of {}, but {} ({}) makes {}", parts_,
               axes_text_, name,
               fmt::join(graph_.type(graph_.find_input(name)->value).shape, " x "), shape[1]);
        }
        if (graph::is_product(node.op)) continue;  // the next layer
        for (auto next : node.outputs) {
          if (next.defined()) open.push_back(next);
        }
      }
    }
  }

  // The placement of an activation between layers.
  Placement between(ValueId v, const std::string& weight) const {
    const auto& shape = graph_.type(v).shape;
    if (!layers_.sequence) return Placement::replicate();
    if (shape.size() != 3 || shape[1] % parts_ != 0) {
      fail("tensor_parallel",
           "with sequence = true activations [batch, sequence, width] are sharded over the {} "
           "ranks of {}, but after {} they are [{}]",
           parts_, axes_text_, weight, fmt::join(shape, ", "));
    }
    return Placement::shard(1);
  }

  void parameter(const std::string& name, int dim) {
    const auto size = graph_.type(graph_.find_input(name)->value).shape[dim];
    if (size < parts_) {
      fail("tensor_parallel", "dim {} of {} is split over {} ranks of {}, but has {}", dim, name,
           parts_, axes_text_, size);
    }
    auto& placements = plan_.placements[name];
    placements.resize(plan_.mesh.axes.size());
    for (int a : axes_) {
      auto& placement = placements[a];
      if (!placement.is_replicate() && placement != Placement::shard(dim)) {
        fail("tensor_parallel",
             "{} is split as S{} over axis {}, but is already placed there as {}", name, dim,
             plan_.mesh.axes[a].name, mesh::to_string(placement));
      }
      placement = Placement::shard(dim);
    }
  }

  void bias(const std::string& name) {
    const auto* input = graph_.find_input(name);
    if (input && graph_.type(input->value).shape.size() == 1) parameter(name, 0);
  }

  void pin(ValueId v, Placement placement) {
    if (graph_.values[v.index].producer < 0) return;
    auto& placements = plan_.placements[names_[v.index]];
    placements.resize(plan_.mesh.axes.size(), Placement::open());
    for (int a : axes_) placements[a] = placement;
  }

  plan::Plan& plan_;
  const Graph& graph_;
  const TensorParallel& layers_;
  const std::vector<std::string> names_;
  std::vector<std::vector<size_t>> users_;  // per value: nodes
  std::vector<int> axes_;
  const int64_t parts_;          // all their ranks
  const std::string axes_text_;  // "axis tensor", for messages
};

}  // namespace

void place(plan::Plan& plan, const Graph& graph, const TensorParallel& layers) {
  TensorPlacing placing(plan, graph, layers);
  for (const auto& [name, split] : layers.weights) placing.weight(name, split);
}

}  // namespace perigee::shard
