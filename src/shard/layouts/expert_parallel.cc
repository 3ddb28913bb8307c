#include "shard/layouts/expert_parallel.h"

#include "base/fail.h"
#include "graph/ops.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Node;
using graph::Phase;
using graph::ValueId;
using mesh::Placement;

class ExpertPlacing {
 public:
  ExpertPlacing(plan::Plan& plan, const Graph& graph, const ExpertParallel& experts)
      : plan_(plan), graph_(graph), names_(graph::value_names(graph)) {
    for (const auto& name : experts.axes) axes_.push_back(axis(name));
    for (const auto& name : experts.tokens) tokens_.push_back(axis(name));
    for (const auto& name : experts.tensor) tensor_.push_back(axis(name));
    for (const auto& name : experts.gathered) gathered_.push_back(axis(name));
    tensor_axes_text_ = fmt::format("{}", fmt::join(experts.tensor, ", "));
  }

  std::vector<std::string> run() {
    for (const auto& node : graph_.nodes) {
      if (node.op == "perigee::grouped_mm" && node.phase == Phase::forward) weight(node);
      const auto first = Placement::shard(0);
      if (node.op == "perigee::dispatch") {
        pin(node, axes_, first);
        pin(node, gathered_, Placement::replicate());
      }
      // [g, t, k, w]: a single group holds the whole microbatch.
      if (node.op == "perigee::combine") {
        const bool one = graph_.type(node.outputs[0]).shape[0] == 1;
        for (const auto* axes : {&tokens_, &gathered_}) {
          pin(node, *axes, one ? Placement::shard(1) : first);
        }
      }
    }
    if (weights_.empty()) {
      fail("expert_parallel",
           "a mixture of experts is needed (model.kind = \"moe\", or a model that uses "
           "perigee::experts), but the model has none");
    }
    return std::move(weights_);
  }

 private:
  int axis(const std::string& name) const {
    const int found = plan_.mesh.find(name);
    if (found >= 0) return found;
    std::vector<std::string> axes;
    for (const auto& axis : plan_.mesh.axes) axes.push_back(axis.name);
    fail("expert_parallel", "experts are sharded over axes of the mesh ({}), but got \"{}\"{}",
         fmt::join(axes, ", "), name, did_you_mean(name, axes));
  }

  static ValueId operand(const Node& node, const char* name) { return node.get<ValueId>(name, {}); }

  const Node* producer(ValueId v) const {
    const auto node = v.defined() ? graph_.values[v.index].producer : -1;
    return node < 0 ? nullptr : &graph_.nodes[node];
  }

  void weight(const Node& product) {
    auto v = operand(product, "mat2");
    while (const auto* maker = producer(v)) {
      if (maker->op != "perigee::cast") return;  // not a weight
      v = operand(*maker, "self");
    }
    const auto& name = names_[v.index];
    const auto& shape = graph_.type(v).shape;
    int64_t ranks = 1;
    for (int a : axes_) ranks *= plan_.mesh.axes[a].size;
    if (shape[0] % ranks != 0) {
      fail("expert_parallel", "experts must divide over the {} ranks, but {} has {}", ranks, name,
           shape[0]);
    }
    for (int a : axes_) put(name, a, 0);
    if (!tensor_.empty()) {
      const int dim = follows_product(operand(product, "self")) ? 1 : 2;
      int64_t parts = 1;
      for (int a : tensor_) parts *= plan_.mesh.axes[a].size;
      if (shape[dim] < parts) {
        fail("expert_parallel", "dim {} of {} is split over {} ranks of {}, but has {}", dim, name,
             parts, tensor_axes_text_, shape[dim]);
      }
      for (int a : tensor_) put(name, a, dim);
    }
    weights_.push_back(name);
  }

  // Whether the value is a product of experts, followed by element-wise ops only.
  bool follows_product(ValueId v) const {
    const auto* maker = producer(v);
    if (!maker) return false;
    if (maker->op == "perigee::grouped_mm") return true;
    if (!graph::is_pointwise(maker->op)) return false;
    bool found = false;
    maker->each_operand([&](ValueId o) { found = found || follows_product(o); });
    return found;
  }

  void put(const std::string& name, int axis, int dim) {
    auto& placements = plan_.placements[name];
    placements.resize(plan_.mesh.axes.size());
    auto& placement = placements[axis];
    if (!placement.is_replicate() && placement != Placement::shard(dim)) {
      fail("expert_parallel", "{} is split as S{} over axis {}, but is already placed there as {}",
           name, dim, plan_.mesh.axes[axis].name, mesh::to_string(placement));
    }
    placement = Placement::shard(dim);
  }

  void pin(const Node& node, const std::vector<int>& axes, Placement placement) {
    if (axes.empty()) return;
    auto& placements = plan_.placements[names_[node.outputs[0].index]];
    placements.resize(plan_.mesh.axes.size(), Placement::open());
    for (int a : axes) placements[a] = placement;
  }

  plan::Plan& plan_;
  const Graph& graph_;
  const std::vector<std::string> names_;
  std::vector<int> axes_, tokens_, tensor_, gathered_;
  std::string tensor_axes_text_;  // the axes that split each expert
  std::vector<std::string> weights_;
};

}  // namespace

std::vector<std::string> place(plan::Plan& plan, const Graph& graph,
                               const ExpertParallel& experts) {
  return ExpertPlacing(plan, graph, experts).run();
}

}  // namespace perigee::shard
