// What is made again for the backward pass although it need not be: keeping it would cost more.
#include <algorithm>
#include <string_view>

#include "compile/lower.h"
#include "compile/passes.h"
#include "compile/repeat.h"

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

// Puts what is gathered into another order, and computes nothing.
bool moves_alone(const std::string& op) { return shows_operand(op) || op == "aten::cat"; }

class Again {
 public:
  Again(const Graph& graph, bool in_flight)
      : graph_(graph),
        in_flight_(in_flight),
        is_parameter_(graph.values.size()),
        again_(graph.values.size()) {
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
  bool is_again(const Node& node) const {
    const auto from = first_operand(node);
    if (!from.defined()) return false;
    // Whatever this rank's piece is: all ranks must choose alike.
    if (node.op == "comm::all_gather") {
      return graph::is_floating(graph_.type(node.outputs.front()).dtype);
    }
    if (node.op == "perigee::cast") return in_flight_ && is_parameter_[from.index];
    if (!moves_alone(node.op)) return false;
    bool all = true;
    node.each_operand([&](ValueId v) { all = all && again_[v.index]; });
    return all;
  }

  const Graph& graph_;
  const bool in_flight_;
  std::vector<bool> is_parameter_, again_;  // by value
};

}  // namespace

Graph make_again(Graph local, bool in_flight) {
  Again again(local, in_flight);
  if (!again.find()) return local;
  return repeat(local, again.values()).graph;
}

}  // namespace perigee::compile
