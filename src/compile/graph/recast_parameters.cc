// Casts of parameters that the backward pass repeats, so that no microbatch keeps their results.
#include "compile/graph/recast_parameters.h"

#include "compile/draft/lower.h"
#include "compile/graph/repeat.h"

namespace perigee::compile {

using graph::Graph;
using graph::Node;
using graph::Phase;
using graph::ValueId;

namespace {

ValueId first_operand(const Node& node) {
  ValueId first;
  node.each_operand([&](ValueId v) {
    if (!first.defined()) first = v;
  });
  return first;
}

class RecastValues {
 public:
  explicit RecastValues(const Graph& graph)
      : graph_(graph), is_parameter_(graph.values.size()), recast_(graph.values.size()) {
    for (const auto& input : graph.inputs) {
      is_parameter_[input.value.index] = input.kind == graph::Input::Kind::parameter;
    }
  }

  // Finds the values to recast. Returns whether the backward pass reads any.
  bool find() {
    bool any = false;
    for (const auto& node : graph_.nodes) {
      if (node.phase == Phase::backward) {
        node.each_operand([&](ValueId v) { any = any || recast_[v.index]; });
      } else if (is_recast(node)) {
        for (const auto v : node.outputs) {
          if (v.defined()) recast_[v.index] = true;
        }
      }
    }
    // Outputs of the graph are kept in any case.
    for (const auto& output : graph_.outputs) {
      if (output.value.defined()) recast_[output.value.index] = false;
    }
    return any;
  }

  const std::vector<bool>& values() const { return recast_; }

 private:
  // Returns whether the node casts a parameter, or is a view of such a cast.
  bool is_recast(const Node& node) const {
    const auto from = first_operand(node);
    if (!from.defined()) return false;
    if (node.op == "perigee::cast") return is_parameter_[from.index];
    return shows_operand(node.op) && !node.find("part") && recast_[from.index];
  }

  const Graph& graph_;
  std::vector<bool> is_parameter_, recast_;  // by value
};

}  // namespace

Graph recast_parameters(Graph local) {
  RecastValues recast(local);
  if (!recast.find()) return local;
  return repeat(local, recast.values()).graph;
}

}  // namespace perigee::compile
