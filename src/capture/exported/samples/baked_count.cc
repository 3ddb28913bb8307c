#include "capture/exported/samples/baked_count.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "shard/loss/loss_ops.h"

namespace perigee::exported {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueId;

// How a value depends on samples.
enum class Over : uint8_t {
  none,
  mean,  // over all samples
  sum,   // reduced over the samples in another way
  each,  // has a dim over samples
};

// Returns the export's numbers of elements in the first dims of the batch's tensors.
std::set<int64_t> counts_of(const Graph& graph, int64_t samples) {
  std::set<int64_t> counts = {samples};
  if (samples == 1) return counts;
  for (const auto& input : graph.inputs) {
    if (input.kind != graph::Input::Kind::data || !input.batched) continue;
    int64_t count = samples;
    const auto& shape = graph.type(input.value).shape;
    for (size_t d = 1; d < shape.size(); ++d) counts.insert(count *= shape[d]);
  }
  return counts;
}

// Returns by value whether the loss depends on it.
std::vector<bool> values_of_loss(const Graph& graph) {
  std::vector<bool> of_loss(graph.values.size());
  for (const auto& output : graph.outputs) {
    if (output.kind == graph::Output::Kind::loss) of_loss[output.value.index] = true;
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const auto& node = graph.nodes[n];
    if (std::ranges::none_of(node.outputs,
                             [&](ValueId v) { return v.defined() && of_loss[v.index]; })) {
      continue;
    }
    node.each_operand([&](ValueId v) { of_loss[v.index] = true; });
  }
  return of_loss;
}

class Search {
 public:
  Search(const Graph& graph, const Graph& twice, int64_t samples)
      : graph_(graph),
        twice_(twice),
        samples_(samples),
        counts_(counts_of(graph, samples)),
        of_loss_(values_of_loss(graph)),
        over_(graph.values.size(), Over::none) {
    for (const auto& input : graph.inputs) {
      if (input.kind == graph::Input::Kind::data && input.batched) {
        over_[input.value.index] = Over::each;
      }
    }
  }

  std::string run() {
    for (const auto& node : graph_.nodes) {
      if (const auto why = use_of_count(node); !why.empty()) {
        return fmt::format("{} in scope \"{}\", {}, which may be the number of samples", node.op,
                           node.scope, why);
      }
      for (const auto v : node.outputs) {
        if (v.defined()) over_[v.index] = has_samples(v) ? Over::each : reduced(node);
      }
    }
    return "";
  }

 private:
  bool has_samples(ValueId v) const { return graph_.type(v).shape != twice_.type(v).shape; }

  // Returns how a result without a dim over samples depends on them.
  Over reduced(const Node& node) const {
    auto over = Over::none;
    node.each_operand([&](ValueId v) { over = std::max(over, over_[v.index]); });
    if (over == Over::each) return shard::is_mean(node) ? Over::mean : Over::sum;
    // A sum that is divided by one, such as a number of labels.
    const auto divisor = node.op == "aten::div.Tensor" ? node.get<ValueId>("other", {}) : ValueId{};
    return divisor.defined() && over_[divisor.index] != Over::none ? Over::mean : over;
  }

  std::string use_of_count(const Node& node) const {
    const auto* other = node.find("other");
    const auto* number = other ? std::get_if<int64_t>(other) : nullptr;
    if (!number || !counts_.contains(*number)) return "";
    const auto over = over_[node.only_operand().index];
    if (over == Over::each) return "";
    if (node.op == "aten::mul.Scalar" && over != Over::none) {
      return fmt::format("which multiplies a value of all samples by {}", *number);
    }
    if (node.op == "aten::div.Scalar" && over == Over::sum) {
      return fmt::format("which divides a sum over samples by {}", *number);
    }
    const bool adds = node.op == "aten::add.Scalar" || node.op == "aten::sub.Scalar";
    if (adds && over == Over::none && samples_ > 1 && !of_loss_[node.outputs[0].index]) {
      return fmt::format("which adds {}", *number);
    }
    return "";
  }

  const Graph& graph_;
  const Graph& twice_;
  const int64_t samples_;
  const std::set<int64_t> counts_;
  const std::vector<bool> of_loss_;
  std::vector<Over> over_;  // by value
};

}  // namespace

std::string find_baked_count(const Graph& graph, const Graph& twice, int64_t samples) {
  return Search(graph, twice, samples).run();
}

}  // namespace perigee::exported
