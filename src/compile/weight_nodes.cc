#include "compile/weight_nodes.h"

#include <algorithm>

#include "base/error.h"

namespace perigee::compile {

using graph::Graph;
using graph::NodeId;
using graph::Phase;

std::vector<bool> find_weight_nodes(const Graph& graph, const std::vector<int>& part) {
  std::vector<bool> wanted(graph.values.size()), weights(graph.nodes.size());
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    if (node.phase != Phase::backward) continue;
    bool sent = node.op == "comm::send" || node.op == "comm::receive";
    for (auto v : node.outputs) sent = sent || (v.defined() && wanted[v.index]);
    if (!sent) {
      weights[n] = true;
      continue;
    }
    node.each_operand([&](graph::ValueId v) { wanted[v.index] = true; });
  }
  // A part of this stage that takes a gradient from another one wants it in its backward pass.
  for (bool again = true; again;) {
    again = false;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const auto& node = graph.nodes[n];
      if (node.phase != Phase::backward) continue;
      node.each_operand([&](graph::ValueId v) {
        const auto producer = graph.values[v.index].producer;
        if (producer < 0 || !weights[producer] || part[producer] == part[n]) return;
        std::vector<NodeId> open{producer};
        while (!open.empty()) {
          const auto m = open.back();
          open.pop_back();
          if (!weights[m]) continue;
          weights[m] = false;
          again = true;
          graph.nodes[m].each_operand([&](graph::ValueId w) {
            const auto p = graph.values[w.index].producer;
            if (p >= 0 && weights[p]) open.push_back(p);
          });
        }
      });
    }
  }
  return weights;
}

std::vector<bool> find_deferred_nodes(const Graph& graph, const std::vector<int>& part,
                                      const std::vector<std::string>& parameters) {
  auto deferred = find_weight_nodes(graph, part);
  // Values that something else than these gradients wants.
  std::vector<bool> wanted(graph.values.size()), useful(graph.values.size());
  for (const auto& output : graph.outputs) {
    if (!output.value.defined()) continue;
    const bool gradient = output.kind == graph::Output::Kind::gradient;
    const bool named =
        std::find(parameters.begin(), parameters.end(), output.name) != parameters.end();
    (gradient && named ? useful : wanted)[output.value.index] = true;
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    bool own = false;
    for (auto v : node.outputs) {
      if (!v.defined()) continue;
      own = own || useful[v.index];
      deferred[n] = deferred[n] && !wanted[v.index];
    }
    deferred[n] = deferred[n] && own;
    node.each_operand([&](graph::ValueId v) { (deferred[n] ? useful : wanted)[v.index] = true; });
  }
  for (const auto& node : graph.nodes) {
    if (node.op != "comm::send") continue;
    node.each_operand([&](graph::ValueId v) {
      if (!useful[v.index]) return;
      fail("overlap",
           "what a deferred weight gradient is made of stays on its stage, but that of {} is made "
           "of what scope '{}' sends: leave deferred_head out, or cut the stages elsewhere",
           fmt::join(parameters, ", "), node.scope);
    });
  }
  return deferred;
}

}  // namespace perigee::compile
