#include "shard/loss/compare_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "graph/ops.h"
#include "shard/loss/loss_alone.h"
#include "shard/loss/sample_count.h"
#include "shard/loss/sample_dim.h"
#include "shard/propagate/matched_rules.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueId;

class Comparison {
 public:
  Comparison(const Graph& graph, const Graph& twice)
      : graph_(graph),
        twice_(twice),
        rules_(twice, {}),
        count_(samples_of(twice)),
        at_(twice.values.size()),
        used_(twice.values.size()),
        of_data_(twice.values.size()),
        enumerates_(twice.values.size()) {}

  std::string run() {
    if (!std::ranges::equal(graph_.nodes, twice_.nodes, is_same)) {
      return "the loss, whose ops depend on the number of samples";
    }
    for (const auto& node : twice_.nodes) {
      node.each_operand([&](ValueId v) { used_[v.index] = true; });
    }
    for (const auto& output : twice_.outputs) used_[output.value.index] = true;
    for (const auto& input : twice_.inputs) {
      of_data_[input.value.index] = input.kind == graph::Input::Kind::data && input.batched;
      if (of_data_[input.value.index]) at_[input.value.index] = SampleDim{0, 1};
    }
    for (size_t n = 0; n < twice_.nodes.size(); ++n) {
      const auto& node = twice_.nodes[n];
      node.each_operand([&](ValueId v) {
        for (const auto made : node.outputs) {
          if (made.defined() && of_data_[v.index]) of_data_[made.index] = true;
        }
      });
      for (size_t r = 0; r < node.outputs.size(); ++r) {
        if (!node.outputs[r].defined() || !used_[node.outputs[r].index]) continue;
        if (const auto why = follow(n, r); !why.empty()) {
          return fmt::format("{} in scope \"{}\", {}", node.op, node.scope, why);
        }
      }
    }
    return "";
  }

 private:
  // Compares two nodes but for their types, which also say where arange ends.
  static bool is_same(const Node& a, const Node& b) {
    if (a.op != b.op || a.outputs != b.outputs) return false;
    if (!a.op.starts_with("aten::arange")) return a.args == b.args;
    return std::ranges::equal(a.args, b.args, [](const auto& x, const auto& y) {
      return x.first == y.first && (x.first == "end" || x.second == y.second);
    });
  }

  // Returns the dim whose size doubles, -1: none, -2: sizes differ in another way.
  int doubled(ValueId v) const {
    const auto& here = graph_.type(v).shape;
    const auto& there = twice_.type(v).shape;
    if (here.size() != there.size()) return -2;
    int dim = -1;
    for (size_t d = 0; d < here.size(); ++d) {
      if (here[d] == there[d]) continue;
      if (dim >= 0 || there[d] != 2 * here[d]) return -2;
      dim = static_cast<int>(d);
    }
    return dim;
  }

  // Finds the samples in result `r`. Returns why they cannot be followed, or "".
  std::string follow(size_t n, size_t r) {
    const auto& node = twice_.nodes[n];
    const auto result = node.outputs[r];
    const int dim = doubled(result);
    if (dim == -2) return "whose sizes depend on the number of samples in another way";
    Positions operands;
    bool any = false;
    node.each_operand([&](ValueId v) {
      operands.push_back(at_[v.index]);
      any = any || at_[v.index];
    });
    bool enumerated = false;
    node.each_operand([&](ValueId v) { enumerated = enumerated || enumerates_[v.index]; });
    if (!any && !enumerated) return dim < 0 ? "" : begin(n, result, dim);
    const auto next = enumerated ? special(node, r, operands) : position(n, r, operands);
    if (enumerated && !next) return "which distinguishes samples by their position";
    if (next && next->dim == dim) {
      at_[result.index] = next;
      return "";
    }
    if (dim >= 0) return "which may move samples to other positions";
    // Samples are reduced: classify_loss tells how, where they are of data.
    return of_data_[result.index] ? "" : "which reduces a constant over the number of samples";
  }

  using Positions = std::vector<std::optional<SampleDim>>;

  // A value without operands of samples that has a dim of their number.
  std::string begin(size_t n, ValueId result, int dim) {
    const auto& node = twice_.nodes[n];
    const auto inner = twice_.type(result).shape[dim] / count_;
    if (twice_.type(result).shape[dim] % count_ != 0) return "whose size is no number of samples";
    if (node.op.starts_with("aten::arange")) {
      enumerates_[result.index] = true;
      return "";
    }
    at_[result.index] = SampleDim{dim, inner};
    if (node.op == "perigee::full" || node.op == "perigee::expand") return "";
    if (graph::is_random(node.op)) return "";
    return "whose elements differ from sample to sample";
  }

  std::optional<SampleDim> position(size_t n, size_t r, const Positions& operands) const {
    const auto& node = twice_.nodes[n];
    if (node.op == "perigee::reshape") {
      ValueId self;
      node.each_operand([&](ValueId v) { self = v; });
      return reshaped(twice_.type(self).shape, twice_.type(node.outputs[r]).shape, *operands[0],
                      count_);
    }
    if (const auto found = special(node, r, operands)) return found;
    const auto& pattern = rules_.at(n).pattern;
    if (!pattern || r >= pattern->results.size()) return std::nullopt;
    std::optional<SampleDim> found;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i]) continue;
      const int letter = pattern->operands[i][operands[i]->dim];
      const auto& letters = pattern->results[r];
      const auto to = std::ranges::find(letters, letter);
      std::optional<SampleDim> next;
      if (letter >= 0 && to != letters.end()) {
        next = SampleDim{static_cast<int>(to - letters.begin()), operands[i]->inner};
      } else if (letter < 0 && of_data_[node.outputs[r].index]) {
        next = operands[i];  // an op along the samples: classify_loss says that it couples them
      }
      if (found && next && found != next) return std::nullopt;
      if (next) found = next;
    }
    return found;
  }

  // Returns the samples' position after ops that move them in other ways than their rules say.
  std::optional<SampleDim> special(const Node& node, size_t r, const Positions& operands) const {
    const bool any = std::ranges::any_of(operands, [](const auto& at) { return at.has_value(); });
    return any && (operands[0] || node.op.starts_with("aten::_embedding_bag"))
               ? moved(twice_, node, r, operands, count_)
               : std::nullopt;
  }

  const Graph& graph_;
  const Graph& twice_;
  const MatchedRules rules_;
  const int64_t count_;                       // samples of `twice_`
  std::vector<std::optional<SampleDim>> at_;  // by value
  std::vector<bool> used_;                    // by value: by a node or as the loss
  std::vector<bool> of_data_;                 // by value: depends on batched data
  std::vector<bool> enumerates_;  // by value: 0, 1, ... over the samples, which at_ does not have
};

}  // namespace

std::string find_sample_dependence(const Graph& graph, const Graph& twice) {
  const auto here = loss_alone(graph), there = loss_alone(twice);
  return Comparison(here, there).run();
}

}  // namespace perigee::shard
