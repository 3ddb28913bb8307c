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

  // Returns the summands of a gradient, in the order in which they are computed. The last one has the
  // gradient's type, others a low precision where they were cast for the addition. A gradient that
  // has a summand several times is not split: each output is added once.
  std::vector<ValueId> summands_of(ValueId gradient) {
    std::vector<ValueId> summands;
    std::vector<graph::NodeId> sums;
    collect(gradient, summands, sums);
    auto distinct = summands;
    std::ranges::sort(distinct, {}, &ValueId::index);
    if (std::ranges::adjacent_find(distinct) != distinct.end()) return {gradient};
    for (auto n : sums) sums_[n] = true;
    const auto is_earlier = [&](ValueId a, ValueId b) {
      return producer(source_of(a)) < producer(source_of(b));
    };
    std::ranges::sort(summands, is_earlier);
    for (size_t i = 0; i + 1 < summands.size(); ++i) {
      const auto source = source_of(summands[i]);
      if (source != summands[i]) sums_[producer(summands[i])] = true;
      summands[i] = source;
    }
    return summands;
  }

  // Returns, by node, whether it only added up summands.
  const std::vector<bool>& sums() const { return sums_; }

 private:
  graph::NodeId producer(ValueId v) const { return graph_.values[v.index].producer; }

  // Returns what a cast of a summand from a low precision casts, else the summand.
  ValueId source_of(ValueId v) const {
    const auto* cast = producer(v) < 0 ? nullptr : &graph_.nodes[producer(v)];
    if (!cast || cast->op != "perigee::cast" || readers_[v.index] != 1) return v;
    const auto source = cast->get<ValueId>("self", {});
    return graph::is_half(graph_.type(source).dtype) ? source : v;
  }

  void collect(ValueId v, std::vector<ValueId>& summands, std::vector<graph::NodeId>& sums) {
    const auto producer = graph_.values[v.index].producer;
    const auto* sum = producer < 0 ? nullptr : &graph_.nodes[producer];
    if (sum && sum->op == "aten::add.Tensor" && sum->args.size() == 2 && readers_[v.index] == 1) {
      const auto a = sum->get<ValueId>("self", {}), b = sum->get<ValueId>("other", {});
      if (a.defined() && b.defined() && graph_.type(a) == graph_.type(v) &&
          graph_.type(b) == graph_.type(v)) {
        sums.push_back(producer);
        collect(a, summands, sums);
        collect(b, summands, sums);
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
