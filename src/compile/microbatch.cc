#include <algorithm>

#include "base/error.h"
#include "compile/passes.h"
#include "graph/ops.h"

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

// Marks the nodes that the marked values need, from the last one back. `cut` nodes are marked but
// need nothing.
std::vector<bool> needed_nodes(const Graph& graph, std::vector<bool> wanted,
                               const std::vector<bool>& cut) {
  std::vector<bool> needed(graph.nodes.size());
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    needed[n] = std::any_of(node.outputs.begin(), node.outputs.end(),
                            [&](ValueId v) { return v.defined() && wanted[v.index]; });
    if (needed[n] && !cut[n]) node.each_operand([&](ValueId v) { wanted[v.index] = true; });
  }
  return needed;
}

void check_prologue(const Graph& graph, const std::vector<bool>& prologue) {
  std::vector<const Input*> input_of(graph.values.size());
  for (const auto& input : graph.inputs) input_of[input.value.index] = &input;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!prologue[n]) continue;
    const auto& node = graph.nodes[n];
    if (graph::is_random(node.op) || node.op == "perigee::step_average") {
      fail("compile",
           "what is averaged over the microbatches of a step must depend on data inputs only, but "
           "scope '{}' reaches it through {}; use one microbatch",
           node.scope, node.op);
    }
    node.each_operand([&](ValueId v) {
      const auto* input = input_of[v.index];
      if (input && input->kind != Input::Kind::data && input->kind != Input::Kind::constant) {
        fail("compile",
             "what is averaged over the microbatches of a step must depend on data inputs only, "
             "but {} in scope '{}' reads '{}'; use one microbatch",
             node.op, node.scope, input->name);
      }
    });
  }
}

}  // namespace

Microbatches cut_microbatches(const Graph& local, int64_t microbatches, shard::LossKind kind) {
  Microbatches result;
  std::vector<bool> wanted(local.values.size());
  for (const auto& output : local.outputs) {
    if (output.value.defined()) wanted[output.value.index] = true;
  }
  std::vector<bool> cut(local.nodes.size());
  if (microbatches > 1) {
    if (kind == shard::LossKind::mixed) {
      fail("compile",
           "a loss that is cut into microbatches must be a mean or a sum over samples, but this "
           "one is neither; use one microbatch, or write the loss as one mean or one sum");
    }
    if (kind == shard::LossKind::mean) result.factor = 1.0 / static_cast<double>(microbatches);
    for (size_t n = 0; n < local.nodes.size(); ++n) {
      cut[n] = local.nodes[n].op == "perigee::step_average";
    }
  }
  const auto micro = needed_nodes(local, wanted, cut);
  std::vector<bool> counted(local.values.size());
  for (size_t n = 0; n < local.nodes.size(); ++n) {
    if (!micro[n]) continue;
    if (!cut[n]) {
      result.micro.push_back(static_cast<NodeId>(n));
      continue;
    }
    Microbatches::Average average{static_cast<NodeId>(n), self_of(local.nodes[n]), ""};
    const auto producer = local.values[average.source.index].producer;
    if (producer >= 0) {
      // The sum over ranks of a sum over microbatches: reduce once, behind it.
      const auto& node = local.nodes[producer];
      if (node.op == "comm::all_reduce" && node.get<std::string>("op", "sum") == "sum") {
        average.axes = node.get<std::string>("axis", "");
        average.source = self_of(node);
      }
    }
    counted[average.source.index] = true;
    result.averages.push_back(std::move(average));
  }
  if (!result.averages.empty()) {
    const std::vector<bool> nothing(local.nodes.size());
    const auto prologue = needed_nodes(local, counted, nothing);
    check_prologue(local, prologue);
    for (size_t n = 0; n < local.nodes.size(); ++n) {
      if (prologue[n]) result.prologue.push_back(static_cast<NodeId>(n));
    }
  }
  return result;
}

}  // namespace perigee::compile
