#include "shard/loss/sample_count.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace perigee::shard {
namespace {

using graph::Node;
using graph::ValueId;

// Returns the factor or divisor of mul.Scalar or div.Scalar, or the value of perigee::full.
std::optional<double> number_of(const Node& node) {
  const bool scales = node.op == "aten::mul.Scalar" || node.op == "aten::div.Scalar";
  if (!scales && node.op != "perigee::full") return {};
  const auto* arg = node.find(scales ? "other" : "value");
  if (!arg) return {};
  if (const auto* real = std::get_if<double>(arg)) return *real;
  if (const auto* whole = std::get_if<int64_t>(arg)) return static_cast<double>(*whole);
  return {};
}

bool keeps_number(const Node& node) {
  return node.op == "perigee::reshape" || node.op == "perigee::expand" ||
         node.op == "perigee::cast";
}

}  // namespace

bool is_multiple(double number, int64_t samples) {
  const auto count = std::round(number / static_cast<double>(samples));
  return samples > 1 && count >= 1 &&
         std::abs(number - count * static_cast<double>(samples)) <= 1e-9 * number;
}

int64_t samples_of(const graph::Graph& graph) {
  int64_t samples = 0;
  for (const auto& input : graph.inputs) {
    const auto& shape = graph.type(input.value).shape;
    if (input.kind != graph::Input::Kind::data || !input.batched || shape.empty()) continue;
    samples = std::max(samples, shape[0]);
  }
  return samples;
}

bool may_have_sample_count(const graph::Graph& graph) {
  return std::ranges::any_of(graph.nodes, [](const Node& node) {
    if (node.phase != graph::Phase::forward) return false;
    bool constant = true;
    node.each_operand([&](ValueId) { constant = false; });
    return constant || std::ranges::any_of(node.args, [](const auto& arg) {
             return std::holds_alternative<double>(arg.second) || arg.first == "other";
           });
  });
}

bool seems_to_have_sample_count(const graph::Graph& graph) {
  const auto samples = samples_of(graph);
  return std::ranges::any_of(graph.nodes, [&](const Node& node) {
    if (node.phase != graph::Phase::forward) return false;
    const auto number = number_of(node);
    return number && (is_multiple(*number, samples) || is_multiple(1 / *number, samples));
  });
}

CountedNumbers::CountedNumbers(const graph::Graph& graph, const graph::Graph* twice)
    : graph_(graph),
      twice_(twice),
      known_(twice != nullptr),
      of_nodes_(graph.nodes.size(), 1),
      of_values_(graph.values.size(), 1) {
  for (size_t n = 0; twice && n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    const auto here = number_of(node), there = number_of(twice->nodes[n]);
    if (here && there && *here != *there) of_nodes_[n] = *there / *here;
    double growth = of_nodes_[n];
    node.each_operand([&](ValueId v) {
      const auto of_operand = of_values_[v.index];
      if (of_operand != 1) growth = keeps_number(node) ? of_operand : std::nan("");
    });
    if (node.op != "perigee::full" && of_nodes_[n] != 1) growth = std::nan("");
    for (const auto v : node.outputs) {
      if (v.defined()) of_values_[v.index] = growth;
    }
  }
}

bool CountedNumbers::changes_otherwise(size_t node,
                                       const std::function<bool(ValueId)>& of_samples) const {
  if (!known_) return false;
  const auto &here = graph_.nodes[node], &there = twice_->nodes[node];
  bool depends = false;
  here.each_operand([&](ValueId v) { depends = depends || of_samples(v); });
  if (depends) {
    if (number_of(here)) return false;
    for (const auto& [name, arg] : here.args) {
      const auto* other = there.find(name);
      const bool number = std::holds_alternative<double>(arg) || name == "other";
      if (number && !std::holds_alternative<ValueId>(arg) && !(other && *other == arg)) return true;
    }
    return false;
  }
  for (const auto v : here.outputs) {
    if (v.defined() && graph_.type(v).shape != twice_->type(v).shape) return true;
  }
  return !number_of(here) && here.args != there.args;
}

double CountedNumbers::factor_of(size_t node,
                                 const std::function<bool(ValueId)>& of_samples) const {
  const auto& at = graph_.nodes[node];
  bool depends = false;
  at.each_operand([&](ValueId v) { depends = depends || of_samples(v); });
  if (!known_ || !depends) return 1;
  if (of_nodes_[node] != 1) {
    return at.op == "aten::div.Scalar" ? 1 / of_nodes_[node] : of_nodes_[node];
  }
  const auto* other = at.find("other");
  double factor = 1;
  at.each_operand([&](ValueId v) {
    const auto growth = of_values_[v.index];
    if (of_samples(v) || growth == 1) return;
    const bool divides = at.op == "aten::div.Tensor" && other && *other == graph::Arg(v);
    factor = at.op == "aten::mul.Tensor" ? growth : divides ? 1 / growth : std::nan("");
  });
  return factor;
}

}  // namespace perigee::shard
