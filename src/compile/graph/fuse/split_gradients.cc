#include "compile/graph/fuse/split_gradients.h"

#include <algorithm>
#include <vector>

#include "compile/graph/fuse/readers.h"
#include "compile/graph/fuse/remove_nodes.h"

namespace perigee::compile {
namespace {

using graph::Graph;
using graph::ValueId;

class SplitGradients {
 public:
  explicit SplitGradients(const Graph& graph)
      : graph_(graph), readers_(count_readers(graph)), sums_(graph.nodes.size()) {}

  // Returns the summands of a gradient, in the order in which they are computed.
  std::vector<ValueId> summands_of(ValueId gradient) {
    std::vector<ValueId> summands;
    collect(gradient, summands);
    std::sort(summands.begin(), summands.end(), [&](ValueId a, ValueId b) {
      return graph_.values[a.index].producer < graph_.values[b.index].producer;
    });
    return summands;
  }

  // Returns, by node, whether it only added up summands.
  const std::vector<bool>& sums() const { return sums_; }

 private:
  void collect(ValueId v, std::vector<ValueId>& summands) {
    const auto producer = graph_.values[v.index].producer;
    const auto* sum = producer < 0 ? nullptr : &graph_.nodes[producer];
    if (sum && sum->op == "aten::add.Tensor" && sum->args.size() == 2 && readers_[v.index] == 1) {
      const auto a = sum->get<ValueId>("self", {}), b = sum->get<ValueId>("other", {});
      if (a.defined() && b.defined() && a != b && graph_.type(a) == graph_.type(v) &&
          graph_.type(b) == graph_.type(v)) {
        sums_[producer] = true;
        collect(a, summands);
        collect(b, summands);
        return;
      }
    }
    summands.push_back(v);
  }

  const Graph& graph_;
  std::vector<int> readers_;  // by value
  std::vector<bool> sums_;
};

}  // namespace

void split_gradients(Local& local) {
  auto& [graph, inputs, outputs] = local.graph;
  SplitGradients split(graph);
  std::vector<graph::Output> all;
  std::vector<mesh::Placements> placements;
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    const auto& output = graph.outputs[o];
    std::vector<ValueId> values = {output.value};
    if (output.kind == graph::Output::Kind::gradient && output.value.defined()) {
      values = split.summands_of(output.value);
    }
    for (auto v : values) {
      all.push_back({output.kind, output.name, v});
      placements.push_back(outputs[o]);
    }
  }
  graph.outputs = std::move(all);
  outputs = std::move(placements);
  remove_nodes(local, split.sums());
}

}  // namespace perigee::compile
