#include "plan/pipeline.h"

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "graph/ops.h"

namespace perigee::plan {
namespace {

using graph::Graph;
using graph::Input;
using graph::Node;
using graph::Phase;

// The kinds of inputs that a value depends on, as bits.
enum Depends : unsigned { kParameters = 1, kData = 2, kRandom = 4 };

class Parts {
 public:
  Parts(const Graph& graph, const Pipeline& pipeline)
      : graph_(graph),
        pipeline_(pipeline),
        parts_(graph.nodes.size(), kEveryPart),
        depends_(graph.values.size()),
        kept_(graph.values.size()) {
    for (const auto& input : graph.inputs) {
      if (input.kind == Input::Kind::parameter) depends_[input.value.index] = kParameters;
      if (input.kind == Input::Kind::data) depends_[input.value.index] = kData;
    }
    for (const auto& output : graph.outputs) {
      if (output.value.defined() && output.kind != graph::Output::Kind::gradient) {
        kept_[output.value.index] = true;
      }
    }
  }

  std::vector<int> run() {
    const auto& starts = pipeline_.starts;
    for (auto start = starts.begin(); start != starts.end(); ++start) {
      if (std::find(starts.begin(), start, *start) == start) continue;
      fail("plan", "the starts of a pipeline are different scopes, but two are \"{}\"", *start);
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& node = graph_.nodes[n];
      const bool every = of_every_part(node);
      if (node.op == kCross) {
        parts_[n] = static_cast<int>(node.get<int64_t>("to_part", 0));
        continue;
      }
      if (every) continue;
      parts_[n] = node.phase == Phase::forward ? forward(node) : backward(node);
    }
    if (next_ < pipeline_.starts.size()) {
      std::vector<std::string> scopes;
      for (const auto& scope : graph_.scopes) scopes.push_back(scope.path);
      const auto& start = pipeline_.starts[next_];
      fail("plan",
           "a pipeline is cut where the forward pass first reaches a scope, in the order of its "
           "starts, but it does not reach \"{}\"{}{}",
           start, next_ > 0 ? " after \"" + pipeline_.starts[next_ - 1] + "\"" : "",
           std::ranges::find(scopes, start) == scopes.end() ? did_you_mean(start, scopes) : "");
    }
    gather_where_used();
    return std::move(parts_);
  }

 private:
  // Whether the op is an all-gather or a view whose result has at least as many bytes as
  // its operands.
  bool gathers_shards(const Node& node) const {
    const bool moves = node.op == "comm::all_gather" || graph::is_view(node.op) ||
                       node.op == "perigee::reshape";
    if (!moves || node.outputs.size() != 1 || !node.outputs[0].defined()) return false;
    int64_t bytes = 0;
    node.each_operand([&](graph::ValueId v) { bytes += graph_.type(v).bytes(); });
    return graph_.type(node.outputs[0]).bytes() >= bytes;
  }

  // Returns by value whether it is only added to a parameter's gradient: each part that contributes
  // keeps a sum of its own (compile/stages/shared_gradients.h), and sends nothing.
  std::vector<bool> find_summands(const std::vector<bool>& is_output) const {
    std::vector<bool> summands(graph_.values.size());
    for (auto node = graph_.nodes.rbegin(); node != graph_.nodes.rend(); ++node) {
      if (node->op != "aten::add.Tensor" || node->phase != Phase::backward) continue;
      const auto sum = node->outputs[0];
      if (!is_output[sum.index] && !summands[sum.index]) continue;
      node->each_operand([&](graph::ValueId v) { summands[v.index] = true; });
    }
    return summands;
  }

  // Moves ops that only gather gradients for an earlier part into that part, so that the shards are
  // sent instead of whole gradients.
  void gather_where_used() {
    std::vector<int> last(graph_.values.size(), kEveryPart);  // last part that uses each value
    std::vector<bool> is_output(graph_.values.size());        // the value is an output of the step
    for (const auto& output : graph_.outputs) {
      if (output.value.defined()) is_output[output.value.index] = true;
    }
    const auto summands = find_summands(is_output);
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const auto& node = graph_.nodes[n];
      if (gathers_shards(node) && node.phase == Phase::backward &&
          !is_output[node.outputs[0].index] && !summands[node.outputs[0].index]) {
        const int users = last[node.outputs[0].index];
        if (users != kEveryPart && users < parts_[n]) parts_[n] = users;
      }
      // An op of every part uses its operands in the parts that use its results.
      int here = parts_[n];
      if (node.op == kCross) here = static_cast<int>(node.get<int64_t>("from_part", 0));
      for (auto v : node.outputs) {
        if (v.defined() && parts_[n] == kEveryPart) here = std::max(here, last[v.index]);
      }
      node.each_operand([&](graph::ValueId v) { last[v.index] = std::max(last[v.index], here); });
    }
  }

  // Returns whether every part can compute the op for itself; records the dependencies of
  // its results.
  bool of_every_part(const Node& node) {
    unsigned depends = 0;
    if (graph::is_random(node.op)) depends = kRandom;
    node.each_operand([&](graph::ValueId v) { depends |= depends_[v.index]; });
    bool kept = false;
    for (auto v : node.outputs) {
      if (!v.defined()) continue;
      depends_[v.index] = depends;
      kept = kept || kept_[v.index];
    }
    const bool both = (depends & kParameters) != 0 && (depends & kData) != 0;
    return !both && (depends & kRandom) == 0 && !kept;
  }

  int forward(const Node& node) {
    while (next_ < pipeline_.starts.size() &&
           graph::contains_scope(pipeline_.starts[next_], node.scope)) {
      ++next_;
    }
    return static_cast<int>(next_);
  }

  // Returns the part of a backward op: that of its forward op; for sums of gradients, and backward
  // ops of an op of every part, the part in which the last of its operands is computed.
  int backward(const Node& node) {
    if (node.forward_node >= 0 && parts_[node.forward_node] != kEveryPart) {
      return parts_[node.forward_node];
    }
    int gradients = kEveryPart, activations = kEveryPart;
    node.each_operand([&](graph::ValueId v) {
      const auto producer = graph_.values[v.index].producer;
      if (producer < 0 || parts_[producer] == kEveryPart) return;
      const int part = parts_[producer];
      if (graph_.nodes[producer].phase == Phase::backward) {
        gradients = gradients == kEveryPart ? part : std::min(gradients, part);
      } else {
        activations = std::max(activations, part);
      }
    });
    return gradients != kEveryPart ? gradients : activations;
  }

  const Graph& graph_;
  const Pipeline& pipeline_;
  std::vector<int> parts_;         // by node
  std::vector<unsigned> depends_;  // by value
  std::vector<bool> kept_;         // by value: it is an output of the step
  size_t next_ = 0;                // start that has not been reached
};

}  // namespace

std::vector<int> parts_of(const Graph& graph, const Pipeline& pipeline) {
  return Parts(graph, pipeline).run();
}

std::vector<int> first_users(const graph::Graph& graph, const Pipeline& pipeline) {
  const auto parts = parts_of(graph, pipeline);
  std::vector<int> first(graph.values.size(), kEveryPart);
  const auto sooner = [](int& now, int part) {
    if (part != kEveryPart && (now == kEveryPart || part < now)) now = part;
  };
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    int here = parts[n];
    if (here == kEveryPart) {
      for (auto v : node.outputs) {
        if (v.defined()) sooner(here, first[v.index]);
      }
    }
    node.each_operand([&](graph::ValueId v) { sooner(first[v.index], here); });
  }
  return first;
}

}  // namespace perigee::plan
