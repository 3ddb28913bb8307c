#include "compile/graph/prepare.h"

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "graph/ops.h"

namespace perigee::compile {

using graph::Graph;
using graph::Input;
using graph::Node;
using graph::Output;

namespace {

void check_parameters(const Graph& graph, const std::vector<std::string>& names, const char* what) {
  std::vector<std::string> known;
  for (const auto& input : graph.inputs) {
    if (input.kind == Input::Kind::parameter) known.push_back(input.name);
  }
  for (const auto& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      fail("compile", "{} must name a parameter of the model, but got '{}'{}", what, name,
           did_you_mean(name, known));
    }
  }
}

// Returns the value that finally replaces `v`.
graph::ValueId resolve(std::vector<graph::ValueId>& replaced, graph::ValueId v) {
  while (replaced[v.index] != v) v = replaced[v.index];
  return v;
}

std::pair<int64_t, int64_t> swapped_dims(const Node& node, size_t rank) {
  if (node.op == "aten::t") return {0, rank < 2 ? 0 : 1};
  const auto size = static_cast<int64_t>(rank);
  int64_t a = node.get<int64_t>("dim0", 0), b = node.get<int64_t>("dim1", 0);
  if (a < 0) a += size;
  if (b < 0) b += size;
  return {std::min(a, b), std::max(a, b)};
}

bool swaps(const Node& node) { return node.op == "aten::t" || node.op == "aten::transpose.int"; }

}  // namespace

Graph select_outputs(Graph graph, const StepSpec& spec) {
  check_parameters(graph, spec.frozen, "a frozen parameter");
  for (const auto& group : spec.groups) {
    check_parameters(graph, group.parameters, "an optimizer group");
  }
  for (const auto& name : spec.results) {
    if (!graph.find_output(Output::Kind::result, name)) {
      fail("compile", "a result must be an output of the graph, but got '{}'", name);
    }
  }
  const std::set<std::string> frozen(spec.frozen.begin(), spec.frozen.end());
  const std::set<std::string> results(spec.results.begin(), spec.results.end());
  std::erase_if(graph.outputs, [&](const Output& output) {
    switch (output.kind) {
      case Output::Kind::loss:
        return false;
      case Output::Kind::gradient:
        return spec.evaluation || frozen.contains(output.name);
      case Output::Kind::buffer:
        return spec.evaluation;
      case Output::Kind::result:
        return !results.contains(output.name);
    }
    return false;
  });
  return graph;
}

Graph simplify_views(Graph graph) {
  std::vector<graph::ValueId> replaced(graph.values.size());
  for (size_t v = 0; v < replaced.size(); ++v) replaced[v].index = static_cast<int32_t>(v);
  // Whether a local reshape has an effect differs by rank; outputs are treated the same on
  // all ranks.
  std::vector<bool> stays(graph.values.size());
  std::vector<int> readers(graph.values.size());
  std::vector<graph::ValueId> reshaped(graph.values.size());  // gradients: their first reshape
  for (const auto& output : graph.outputs) {
    if (output.value.defined()) stays[output.value.index] = true;
  }
  for (const auto& node : graph.nodes) {
    node.each_operand([&](graph::ValueId v) { ++readers[v.index]; });
  }
  for (auto& node : graph.nodes) {
    node.each_operand([&](graph::ValueId& v) { v = resolve(replaced, v); });
    if (node.outputs.size() != 1 || !node.outputs[0].defined() || node.find("part")) continue;
    const auto* self = node.find("self");
    if (!self || !std::holds_alternative<graph::ValueId>(*self)) continue;
    const auto operand = std::get<graph::ValueId>(*self);
    if (!operand.defined()) continue;
    const auto out = node.outputs[0];
    const auto& from = graph.type(operand);
    const auto producer = graph.values[operand.index].producer;
    const Node* before = producer < 0 ? nullptr : &graph.nodes[producer];
    const bool same_type = from == graph.type(out) && !stays[out.index];
    if (node.op == "aten::detach" || node.op == "aten::alias" ||
        (same_type && (node.op == "perigee::reshape" || node.op == "perigee::expand"))) {
      replaced[out.index] = operand;
    } else if (swaps(node) && before && swaps(*before) &&
               swapped_dims(node, from.shape.size()) == swapped_dims(*before, from.shape.size())) {
      replaced[out.index] = std::get<graph::ValueId>(*before->find("self"));
    } else if (node.op == "perigee::reshape" && node.phase == graph::Phase::backward &&
               reshaped[operand.index].defined()) {
      // Where the first reshape copies, the second one is a view of the copy.
      for (auto& [name, arg] : node.args) {
        if (name == "self") arg = reshaped[operand.index];
      }
    } else if (node.op == "perigee::reshape" && before && before->op == "perigee::reshape" &&
               !before->find("part")) {
      const auto source = std::get<graph::ValueId>(*before->find("self"));
      if (!stays[out.index] && graph.type(source) == graph.type(out)) {
        replaced[out.index] = source;
      } else if (readers[operand.index] == 1) {
        // With other readers, the first reshape, which may copy, would be done twice.
        for (auto& [name, arg] : node.args) {
          if (name == "self") arg = source;
        }
      }
    } else if (node.op == "perigee::reshape" && node.phase == graph::Phase::backward) {
      reshaped[operand.index] = out;
    }
  }
  for (auto& output : graph.outputs) {
    if (output.value.defined()) output.value = resolve(replaced, output.value);
  }
  return graph::eliminate_dead_code(std::move(graph));
}

}  // namespace perigee::compile
