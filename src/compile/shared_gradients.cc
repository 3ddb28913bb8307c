#include "compile/shared_gradients.h"

#include <set>

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
      std::map<int64_t, std::vector<ValueId>> leaves;
      std::vector<NodeId> added;
      walk(output.value, uses, leaves, added);
      if (leaves.size() < 2) continue;
      for (auto n : added) found.sums[n] = true;
      found.shares[o] = std::move(leaves);
    }
    return found;
  }

 private:
  // Collects what is added up, by stage; what is made on one stage is one leaf.
  void walk(ValueId v, const std::vector<int>& uses,
            std::map<int64_t, std::vector<ValueId>>& leaves, std::vector<NodeId>& added) const {
    const auto producer = graph_.values[v.index].producer;
    if (producer < 0 || parts_[producer] == kEveryPart) {
      leaves[0].push_back(v);
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
          stages_below(v).size() > 1) {
        added.push_back(producer);
        walk(left, uses, leaves, added);
        walk(right, uses, leaves, added);
        return;
      }
    }
    leaves[stages_[parts_[producer]]].push_back(v);
  }

  // The stages of what a sum adds up.
  std::set<int64_t> stages_below(ValueId v) const {
    std::set<int64_t> found;
    const auto producer = graph_.values[v.index].producer;
    if (producer < 0 || parts_[producer] == kEveryPart) return found;
    const auto& node = graph_.nodes[producer];
    if (node.op != "aten::add.Tensor" || node.phase != Phase::backward) {
      return {stages_[parts_[producer]]};
    }
    node.each_operand([&](ValueId operand) { found.merge(stages_below(operand)); });
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
