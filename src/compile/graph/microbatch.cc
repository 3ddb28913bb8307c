#include "compile/graph/microbatch.h"

#include <algorithm>

#include "base/fail.h"
#include "graph/ops.h"
#include "plan/pipeline.h"

namespace perigee::compile {

using graph::Graph;
using graph::Input;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

namespace {

ValueId self_of(const Node& node) {
  const auto* self = node.find("self");
  return self && std::holds_alternative<ValueId>(*self) ? std::get<ValueId>(*self) : ValueId{};
}

// Returns, by node, whether the wanted values or nodes depend on it. The operands of `cut` nodes do
// not count.
std::vector<bool> needed_nodes(const Graph& graph, std::vector<bool> wanted,
                               const std::vector<bool>& cut, std::vector<bool> needed) {
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    needed[n] = needed[n] || std::any_of(node.outputs.begin(), node.outputs.end(),
                                         [&](ValueId v) { return v.defined() && wanted[v.index]; });
    if (needed[n] && !cut[n]) node.each_operand([&](ValueId v) { wanted[v.index] = true; });
  }
  return needed;
}

// Returns the collectives among the nodes, and the averages, which end in one: other ranks of a
// group need this rank to take part even if it does not need the result.
std::vector<bool> collectives_of(const Graph& graph, std::vector<bool> nodes) {
  for (size_t n = 0; n < nodes.size(); ++n) {
    const auto& op = graph.nodes[n].op;
    nodes[n] = nodes[n] && (graph::is_collective(op) || op == "perigee::step_average");
  }
  return nodes;
}

void check_prologue(const Graph& graph, const std::vector<bool>& prologue) {
  std::vector<const Input*> input_of(graph.values.size());
  for (const auto& input : graph.inputs) input_of[input.value.index] = &input;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!prologue[n]) continue;
    const auto& node = graph.nodes[n];
    if (graph::is_random(node.op) || node.op == "perigee::step_average") {
      fail("compile",
           "an average over the microbatches of a step must depend on data inputs only, but scope "
           "'{}' reaches it through {}; use one microbatch",
           node.scope, node.op);
    }
    node.each_operand([&](ValueId v) {
      const auto* input = input_of[v.index];
      if (input && input->kind != Input::Kind::data && !graph.is_fixed(*input)) {
        fail("compile",
             "an average over the microbatches of a step must depend on data inputs only, but {} "
             "in scope '{}' reads '{}'; use one microbatch",
             node.op, node.scope, input->name);
      }
    });
  }
}

}  // namespace

Microbatches cut_microbatches(Graph& local, int64_t microbatches, shard::LossKind kind) {
  Microbatches result;
  const std::vector<bool> nothing(local.nodes.size());
  std::vector<bool> wanted(local.values.size());
  for (const auto& output : local.outputs) {
    if (output.value.defined()) wanted[output.value.index] = true;
  }
  std::vector<bool> cut(local.nodes.size());
  if (microbatches > 1) {
    if (kind == shard::LossKind::mean) result.factor = 1.0 / static_cast<double>(microbatches);
    for (size_t n = 0; n < local.nodes.size(); ++n) {
      cut[n] = local.nodes[n].op == "perigee::step_average";
    }
  }
  // Messages: other stages wait for them.
  std::vector<bool> messages(local.nodes.size());
  for (size_t n = 0; n < messages.size(); ++n) {
    const auto& op = local.nodes[n].op;
    messages[n] = op == "comm::send" || op == "comm::receive" || op == plan::kCross;
  }
  auto micro = needed_nodes(local, wanted, cut, messages);
  std::vector<bool> averaged(local.values.size()), counted(averaged);
  for (size_t n = 0; n < local.nodes.size(); ++n) {
    if (micro[n] && cut[n]) averaged[self_of(local.nodes[n]).index] = true;
  }
  auto prologue = needed_nodes(local, averaged, nothing, nothing);
  check_prologue(local, prologue);
  // Up to here the nodes are the same on every rank. From here on, nodes that only other ranks need
  // are removed.
  for (auto& node : local.nodes) {
    std::erase_if(node.args, [](const auto& arg) { return arg.first == "part"; });
  }
  micro = needed_nodes(local, wanted, cut, collectives_of(local, micro));
  for (size_t n = 0; n < local.nodes.size(); ++n) {
    if (!micro[n]) continue;
    if (!cut[n]) {
      result.micro.push_back(static_cast<NodeId>(n));
      continue;
    }
    Microbatches::Average average{static_cast<NodeId>(n), self_of(local.nodes[n]), {}};
    const auto producer = local.values[average.source.index].producer;
    if (producer >= 0) {
      // The sum over ranks of a sum over microbatches: reduce once, after the microbatches.
      const auto& node = local.nodes[producer];
      if (node.op == "comm::all_reduce" && node.get<std::string>("op", "sum") == "sum") {
        average.axes = mesh::AxisSet::parse(node.get<std::string>("axis", ""));
        average.source = self_of(node);
      }
    }
    counted[average.source.index] = true;
    result.averages.push_back(std::move(average));
  }
  if (!result.averages.empty()) {
    // An average has one reduction, after the microbatches.
    auto kept = collectives_of(local, prologue);
    for (size_t n = 0; n < local.nodes.size(); ++n) {
      if (micro[n] && cut[n]) {
        const auto producer = local.values[self_of(local.nodes[n]).index].producer;
        if (producer >= 0) kept[producer] = false;
      }
    }
    prologue = needed_nodes(local, counted, nothing, std::move(kept));
    for (size_t n = 0; n < local.nodes.size(); ++n) {
      if (prologue[n]) result.prologue.push_back(static_cast<NodeId>(n));
    }
  }
  return result;
}

}  // namespace perigee::compile
