#include "train/step/initial_values.h"

#include <ATen/ATen.h>

#include "base/fail.h"
#include "exec/reference/reference.h"

namespace perigee::train {
namespace {

using graph::Graph;
using graph::ValueId;

// Returns the part of the graph that computes the output.
Graph part_for(const Graph& graph, const graph::Output& output) {
  std::vector<char> needed(graph.nodes.size());
  std::vector<graph::NodeId> open;
  const auto need = [&](ValueId v) {
    const auto node = graph.values[v.index].producer;
    if (node >= 0 && !needed[node]) {
      needed[node] = 1;
      open.push_back(node);
    }
  };
  need(output.value);
  while (!open.empty()) {
    const auto node = open.back();
    open.pop_back();
    graph.nodes[node].each_operand(need);
  }
  Graph result;
  std::vector<ValueId> renamed(graph.values.size());
  for (const auto& input : graph.inputs) {  // constants
    auto copy = input;
    copy.value = result.add_value(graph.type(input.value));
    renamed[input.value.index] = copy.value;
    result.inputs.push_back(std::move(copy));
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!needed[i]) continue;
    auto node = graph.nodes[i];
    node.each_operand([&](ValueId& v) { v = renamed[v.index]; });
    std::vector<graph::TensorType> types;
    for (const auto v : node.outputs)
      types.push_back(v.defined() ? graph.type(v) : graph::TensorType());
    const auto outputs = result.add_node(node.op, node.args, types, node.scope, node.phase);
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      if (node.outputs[r].defined()) renamed[node.outputs[r].index] = outputs[r];
    }
  }
  result.scopes = graph.scopes;
  result.outputs.push_back({output.kind, output.name, renamed[output.value.index]});
  return graph::eliminate_dead_code(std::move(result));
}

}  // namespace

at::Tensor part_of(at::Tensor whole, const std::vector<mesh::Range>& ranges) {
  for (size_t d = 0; d < ranges.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), ranges[d].begin, ranges[d].length);
  }
  return whole;
}

at::Tensor initial_value(const Graph& init, const std::string& name, uint64_t seed) {
  const auto* output = init.find_output(graph::Output::Kind::result, name);
  if (!output) fail("train", "every parameter needs a first value, but {} has none", name);
  const auto values = exec::evaluate(part_for(init, *output), {}, {.seed = seed});
  return values.at(name);
}

}  // namespace perigee::train
