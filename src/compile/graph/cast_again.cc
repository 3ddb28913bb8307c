// Low copies of parameters that no microbatch keeps.
#include "compile/graph/cast_again.h"

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

class Again {
 public:
  explicit Again(const Graph& graph)
      : graph_(graph), is_parameter_(graph.values.size()), again_(graph.values.size()) {
    for (const auto& input : graph.inputs) {
      is_parameter_[input.value.index] = input.kind == graph::Input::Kind::parameter;
    }
  }

  // Returns whether the backward pass reads any.
  bool find() {
    bool any = false;
    for (const auto& node : graph_.nodes) {
      if (node.phase == Phase::backward) {
        node.each_operand([&](ValueId v) { any = any || again_[v.index]; });
      } else if (is_again(node)) {
        for (const auto v : node.outputs) {
          if (v.defined()) again_[v.index] = true;
        }
      }
    }
    // What the step leaves behind is there anyway.
    for (const auto& output : graph_.outputs) {
      if (output.value.defined()) again_[output.value.index] = false;
    }
    return any;
  }

  const std::vector<bool>& values() const { return again_; }

 private:
  // Casts of parameters, and what shows them.
  bool is_again(const Node& node) const {
    const auto from = first_operand(node);
    if (!from.defined()) return false;
    if (node.op == "perigee::cast") return is_parameter_[from.index];
    return shows_operand(node.op) && !node.find("part") && again_[from.index];
  }

  const Graph& graph_;
  std::vector<bool> is_parameter_, again_;  // by value
};

}  // namespace

Graph cast_again(Graph local) {
  Again again(local);
  if (!again.find()) return local;
  return repeat(local, again.values()).graph;
}

}  // namespace perigee::compile
