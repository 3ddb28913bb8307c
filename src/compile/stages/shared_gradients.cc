#include "compile/stages/shared_gradients.h"

#include <set>
#include <utility>

#include "plan/pipeline.h"

namespace perigee::compile {

using graph::Graph;
using graph::NodeId;
using graph::Output;
using graph::Phase;
using graph::ValueId;
using plan::kEveryPart;

namespace {

class Search {
 public:
  Search(const Graph& graph, const std::vector<int>& parts, const std::vector<int>& stages)
      : graph_(graph), parts_(parts), stages_(stages) {}

  SharedGradients run() {
    SharedGradients found{std::vector<bool>(graph_.nodes.size()), {}};
    std::vector<int> uses(graph_.values.size());
    for (const auto& node : graph_.nodes) node.each_operand([&](ValueId v) { ++uses[v.index]; });
    for (size_t o = 0; o < graph_.outputs.size(); ++o) {
      const auto& output = graph_.outputs[o];
      if (output.kind != Output::Kind::gradient || !output.value.defined()) continue;
      std::map<Maker, std::vector<ValueId>> leaves;
      std::vector<NodeId> added;
      walk(output.value, uses, leaves, added);
      if (leaves.size() < 2) continue;
      for (auto n : added) found.sums[n] = true;
      for (auto& [maker, values] : leaves) {
        found.shares[o][maker.first][maker.second] = std::move(values);
      }
    }
    return found;
  }

 private:
  using Maker = std::pair<int64_t, int>;  // stage, part

  Maker maker_of(NodeId node) const { return {stages_[parts_[node]], parts_[node]}; }

  // Collects the summands of a gradient, by maker; a sum within one maker is one summand.
  void walk(ValueId v, const std::vector<int>& uses, std::map<Maker, std::vector<ValueId>>& leaves,
            std::vector<NodeId>& added) const {
    const auto producer = graph_.values[v.index].producer;
    if (producer < 0 || parts_[producer] == kEveryPart) {
      leaves[{0, 0}].push_back(v);
      return;
    }
    const auto& node = graph_.nodes[producer];
    const bool adds = node.op == "aten::add.Tensor" && node.phase == Phase::backward &&
                      !node.find("alpha") && uses[v.index] <= (added.empty() ? 0 : 1);
    const auto* a = node.find("self");
    const auto* b = node.find("other");
    if (adds && a && b && std::holds_alternative<ValueId>(*a) &&
        std::holds_alternative<ValueId>(*b)) {
      const auto left = std::get<ValueId>(*a), right = std::get<ValueId>(*b);
      if (graph_.type(left) == graph_.type(v) && graph_.type(right) == graph_.type(v) &&
          makers_below(v).size() > 1) {
        added.push_back(producer);
        walk(left, uses, leaves, added);
        walk(right, uses, leaves, added);
        return;
      }
    }
    leaves[maker_of(producer)].push_back(v);
  }

  // Returns the makers of a sum's summands.
  std::set<Maker> makers_below(ValueId v) const {
    std::set<Maker> found;
    const auto producer = graph_.values[v.index].producer;
    if (producer < 0 || parts_[producer] == kEveryPart) return found;
    const auto& node = graph_.nodes[producer];
    if (node.op != "aten::add.Tensor" || node.phase != Phase::backward) {
      return {maker_of(producer)};
    }
    node.each_operand([&](ValueId operand) { found.merge(makers_below(operand)); });
    return found;
  }

  const Graph& graph_;
  const std::vector<int>& parts_;
  const std::vector<int>& stages_;
};

}  // namespace

SharedGradients find_shared_gradients(const Graph& graph, const std::vector<int>& parts,
                                      const std::vector<int>& stages) {
  return Search(graph, parts, stages).run();
}

}  // namespace perigee::compile
