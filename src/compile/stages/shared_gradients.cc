#include "compile/stages/shared_gradients.h"

#include <optional>
#include <set>
#include <utility>

#include "compile/graph/autocast.h"
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

// Moves the collectives of redistribute_contributions.
class Redistribution {
 public:
  Redistribution(const Graph& graph, const plan::Pipeline& pipeline)
      : graph_(graph),
        parts_(plan::parts_of(graph, pipeline)),
        uses_(graph.values.size()),
        moved_(graph.nodes.size(), -1),
        dropped_(graph.nodes.size()) {
    for (const auto& node : graph.nodes) node.each_operand([&](ValueId v) { ++uses_[v.index]; });
    for (const auto& output : graph.outputs) {
      if (output.value.defined()) ++uses_[output.value.index];
    }
  }

  // Returns the changed graph; nothing: it stays as it is.
  std::optional<Graph> run() {
    std::vector<bool> moves(graph_.nodes.size());
    bool any = false;
    for (const auto& output : graph_.outputs) {
      if (output.kind != Output::Kind::gradient || !output.value.defined()) continue;
      const auto n = graph_.values[output.value.index].producer;
      if (n < 0 || !redistributes(graph_.nodes[n]) || uses_[output.value.index] != 1) continue;
      const auto sum = operand_of(graph_.nodes[n]);
      if (!is_sum(sum)) continue;
      moves[n] = any = true;
      drop(sum);
    }
    if (!any) return std::nullopt;
    result_ = graph_;
    result_.nodes.clear();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (dropped_[n]) continue;
      if (moves[n]) {
        sum_into(operand_of(graph_.nodes[n]), graph_.nodes[n], graph_.nodes[n].outputs[0]);
        moved_[n] = static_cast<NodeId>(result_.nodes.size()) - 1;
        continue;
      }
      auto node = graph_.nodes[n];
      if (node.forward_node >= 0) node.forward_node = moved_[node.forward_node];
      moved_[n] = append(result_, std::move(node));
    }
    return std::move(result_);
  }

 private:
  static bool redistributes(const graph::Node& node) {
    return (node.op == "comm::all_to_all" || node.op == "comm::all_gather") &&
           node.phase == Phase::backward && node.outputs.size() == 1;
  }

  static ValueId operand_of(const graph::Node& node) {
    ValueId found;
    node.each_operand([&](ValueId v) { found = v; });
    return found;
  }

  // Returns whether the value is a sum of two parts' contributions that nothing else uses.
  bool is_sum(ValueId v) const {
    const auto n = graph_.values[v.index].producer;
    if (n < 0 || parts_[n] == kEveryPart || uses_[v.index] != 1) return false;
    const auto& node = graph_.nodes[n];
    if (node.op != "aten::add.Tensor" || node.phase != Phase::backward || node.find("alpha")) {
      return false;
    }
    int operands = 0;
    bool others = false, equal = true;
    node.each_operand([&](ValueId operand) {
      ++operands;
      const auto producer = graph_.values[operand.index].producer;
      equal = equal && producer >= 0 && parts_[producer] != kEveryPart &&
              graph_.type(operand) == graph_.type(v);
      others = others || (producer >= 0 && parts_[producer] != parts_[n]) || is_sum(operand);
    });
    return operands == 2 && equal && others;
  }

  void drop(ValueId sum) {
    const auto n = graph_.values[sum.index].producer;
    dropped_[n] = true;
    graph_.nodes[n].each_operand([&](ValueId v) {
      if (is_sum(v)) drop(v);
    });
  }

  // Appends the sum of the redistributed summands of `v`, as the value `into`.
  void sum_into(ValueId v, const graph::Node& redistribute, ValueId into) {
    const auto maker = graph_.values[v.index].producer;
    if (!is_sum(v)) {
      auto node = redistribute;
      node.each_operand([&](ValueId& operand) { operand = v; });
      node.outputs = {into};
      // That makes it an op of the contribution's part.
      const auto forward = graph_.nodes[maker].forward_node;
      node.forward_node = forward < 0 ? -1 : moved_[forward];
      node.scope = graph_.nodes[maker].scope;
      append(result_, std::move(node));
      return;
    }
    auto sum = graph_.nodes[maker];
    sum.each_operand([&](ValueId& operand) {
      const auto summand = result_.add_value(graph_.type(into));
      sum_into(operand, redistribute, summand);
      operand = summand;
    });
    sum.outputs = {into};
    if (sum.forward_node >= 0) sum.forward_node = moved_[sum.forward_node];
    append(result_, std::move(sum));
  }

  const Graph& graph_;
  Graph result_;
  const std::vector<int> parts_;  // by node
  std::vector<int> uses_;         // by value
  std::vector<NodeId> moved_;     // by node: its place in the result
  std::vector<bool> dropped_;     // by node
};

}  // namespace

void redistribute_contributions(Graph& graph, const plan::Pipeline& pipeline) {
  if (auto changed = Redistribution(graph, pipeline).run()) graph = std::move(*changed);
}

SharedGradients find_shared_gradients(const Graph& graph, const std::vector<int>& parts,
                                      const std::vector<int>& stages) {
  return Search(graph, parts, stages).run();
}

}  // namespace perigee::compile
