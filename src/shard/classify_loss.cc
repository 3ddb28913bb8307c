// Finds how the loss depends on the batch: follows the samples' dim through the forward pass by the
// ops' patterns, also past ops that cannot shard this dim.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "shard/partition.h"
#include "shard/propagate/matched_rules.h"

namespace perigee::shard {

namespace {

using graph::Node;
using graph::ValueId;

enum class Degree {
  none,    // does not depend on samples
  mean,    // unchanged when the samples are doubled
  sum,     // doubled when the samples are doubled
  sample,  // has a dim over samples
  pool,    // samples gathered in other positions: an expert's queue
  mixed,   // neither
};

struct State {
  Degree degree = Degree::none;
  int dim = -1;          // sample: the dim
  std::string coupling;  // op and scope that first couple samples; "": none

  bool is(Degree d) const { return degree == d; }
};

bool is_mean(const Node& node) { return node.op == "aten::mean" || node.op == "aten::mean.dim"; }

// Ops that scatter rows to indexed positions, or count them.
bool dispatches(const Node& node) {
  return node.op == "perigee::dispatch" || node.op == "perigee::expert_slots" ||
         node.op == "aten::index_add" || node.op.starts_with("aten::index_put") ||
         node.op.starts_with("aten::scatter");
}

bool is_affine(const Node& node) {
  return node.op == "aten::add.Tensor" || node.op == "aten::sub.Tensor" ||
         node.op == "aten::rsub.Tensor" || node.op == "aten::add.Scalar" ||
         node.op == "aten::sub.Scalar" || node.op == "aten::rsub.Scalar";
}

class Classifier {
 public:
  explicit Classifier(const graph::Graph& graph)
      : graph_(graph), rules_(graph, {}), states_(graph.values.size()) {
    for (const auto& input : graph.inputs) {
      if (input.kind != graph::Input::Kind::data || !input.batched) continue;
      const auto& shape = graph.type(input.value).shape;
      if (shape.empty()) continue;
      batch_ = std::max(batch_, shape[0]);
      states_[input.value.index] = {Degree::sample, 0, ""};
    }
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const auto& node = graph.nodes[n];
      for (size_t r = 0; r < node.outputs.size(); ++r) {
        if (node.outputs[r].defined()) states_[node.outputs[r].index] = result(n, r);
      }
    }
  }

  const State& state(ValueId v) const { return states_[v.index]; }
  int64_t batch() const { return batch_; }

 private:
  const State& operand(const Node& node, std::string_view name) const {
    static const State nothing;
    const auto* arg = node.find(name);
    if (!arg || !std::holds_alternative<ValueId>(*arg)) return nothing;
    const auto v = std::get<ValueId>(*arg);
    return v.defined() ? state(v) : nothing;
  }

  double scalar(const Node& node) const {
    const auto* arg = node.find("other");
    if (arg && std::holds_alternative<double>(*arg)) return std::get<double>(*arg);
    if (arg && std::holds_alternative<int64_t>(*arg)) {
      return static_cast<double>(std::get<int64_t>(*arg));
    }
    return 1;
  }

  // A sum over all samples divided by a multiple of their number is a mean.
  bool divides_by_batch(double number) const {
    const auto count = static_cast<int64_t>(number);
    return batch_ > 1 && static_cast<double>(count) == number && count > 0 && count % batch_ == 0;
  }

  static std::string describe(const Node& node) {
    return fmt::format("{} in scope \"{}\"", node.op, node.scope);
  }

  State result(size_t n, size_t r) const {
    const auto& node = graph_.nodes[n];
    std::vector<const State*> operands;
    node.each_operand([&](ValueId o) { operands.push_back(&state(o)); });
    const auto has = [&](Degree degree) {
      return std::any_of(operands.begin(), operands.end(),
                         [&](const State* s) { return s->is(degree); });
    };
    State out;
    for (const auto* s : operands) {
      if (out.coupling.empty()) out.coupling = s->coupling;
    }
    if (has(Degree::mixed)) {
      out.degree = Degree::mixed;
    } else if (has(Degree::sample)) {
      follow_samples(n, r, operands, out);
    } else if (has(Degree::pool)) {
      out.degree = has(Degree::mean) || has(Degree::sum) ? Degree::mixed : Degree::pool;
    } else if (has(Degree::mean) || has(Degree::sum)) {
      combine_statistics(n, operands, out);
    }
    return out;
  }

  // Handles a node with an operand that has a dim over samples.
  void follow_samples(size_t n, size_t r, const std::vector<const State*>& operands,
                      State& out) const {
    const auto& node = graph_.nodes[n];
    const auto& pattern = rules_.at(n).pattern;
    out.degree = Degree::mixed;
    if (!pattern || r >= pattern->results.size()) return;
    const auto& letters = pattern->results[r];
    bool others = false;  // an operand depends on all samples
    std::optional<State> found;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i]->is(Degree::sample)) {
        if (operands[i]->is(Degree::sum)) return;
        others |= operands[i]->is(Degree::mean) || operands[i]->is(Degree::pool);
        continue;
      }
      const auto next = follow_dim(n, r, i, operands[i]->dim, letters);
      if (found && (found->degree != next.degree || found->dim != next.dim)) return;
      if (!found || found->coupling.empty()) found = next;
    }
    out.degree = found->degree;
    out.dim = found->dim;
    if (out.coupling.empty()) out.coupling = found->coupling;
    if (out.coupling.empty() && others) out.coupling = describe(node);
  }

  // Follows operand i's dim over samples to the result.
  State follow_dim(size_t n, size_t r, size_t i, int dim, const std::vector<int>& letters) const {
    const auto& node = graph_.nodes[n];
    const auto& pattern = *rules_.at(n).pattern;
    if (batch_ == 1 && node.op == "perigee::reshape") return follow_single_sample(node, dim);
    const int letter = pattern.operands[i][dim];
    if (letter < 0) {
      // The op works along the samples. A result of the same shape has an element for each.
      std::vector<ValueId> values;
      node.each_operand([&](ValueId o) { values.push_back(o); });
      const auto& from = graph_.type(values[i]).shape;
      const auto& to = graph_.type(node.outputs[r]).shape;
      const bool keeps = from.size() == to.size() && from[dim] == to[dim] && letters[dim] < 0;
      if (keeps) return {Degree::sample, dim, describe(node)};
      return {dispatches(node) ? Degree::pool : Degree::mixed, -1, describe(node)};
    }
    const auto at = std::find(letters.begin(), letters.end(), letter);
    if (at != letters.end()) {
      const bool agrees = pattern.dims[letter].role == Role::agreed;  // batch norm
      return {Degree::sample, static_cast<int>(at - letters.begin()), agrees ? describe(node) : ""};
    }
    if (dispatches(node)) return {Degree::pool, -1, describe(node)};
    if (is_mean(node)) return {Degree::mean, -1, ""};
    if (node.op.ends_with("_loss")) {
      const auto reduction = node.get<int64_t>("reduction", 1);
      return {reduction == 2 ? Degree::sum : Degree::mean, -1, ""};
    }
    switch (pattern.dims[letter].role) {
      case Role::sum:
        return {Degree::sum, -1, ""};
      case Role::agreed:
        return {Degree::mean, -1, describe(node)};
      default:
        return {Degree::mixed, -1, ""};
    }
  }

  // Finds the dim of a single sample after a reshape. Patterns lose dims of size 1, so the
  // outermost candidate is taken.
  State follow_single_sample(const Node& node, int dim) const {
    const auto& from = graph_.type(std::get<ValueId>(*node.find("self"))).shape;
    const auto& to = graph_.type(node.outputs[0]).shape;
    int64_t before = 1;
    for (int d = 0; d < dim; ++d) before *= from[d];
    for (size_t d = 0; d < to.size() && before >= 1; ++d) {
      if (before == 1) return {Degree::sample, static_cast<int>(d), ""};
      before = before % to[d] == 0 ? before / to[d] : 0;
    }
    return {Degree::mixed, -1, ""};
  }

  // Handles a node whose operands are means and sums over samples, or independent of them.
  void combine_statistics(size_t n, const std::vector<const State*>& operands, State& out) const {
    const auto& node = graph_.nodes[n];
    const bool sums = std::any_of(operands.begin(), operands.end(),
                                  [](const State* s) { return s->is(Degree::sum); });
    const auto& self = operand(node, "self");
    if (node.op == "perigee::step_average") {
      out.degree = self.degree;
      return;
    }
    if (node.op == "aten::div.Scalar" && self.is(Degree::sum) && divides_by_batch(scalar(node))) {
      out.degree = Degree::mean;
      return;
    }
    if (node.op == "aten::div.Tensor" && self.is(Degree::sum) &&
        operand(node, "other").is(Degree::sum)) {
      out.degree = averaged(node) ? Degree::mean : Degree::mixed;
      return;
    }
    out.degree = is_linear(n, operands) ? (sums ? Degree::sum : Degree::mean) : Degree::mixed;
    if (sums || out.degree == Degree::mean) return;
    // Any function of means is unchanged when the samples are doubled. Unless it is affine, its
    // value for the batch is not the mean of its values for the microbatches.
    out.degree = Degree::mean;
    if (!is_affine(node) && out.coupling.empty()) out.coupling = describe(node);
  }

  // Whether the operands that depend on samples share one degree and are a linear set of the op.
  bool is_linear(size_t n, const std::vector<const State*>& operands) const {
    const auto& node = graph_.nodes[n];
    if (node.op == "perigee::reshape" || node.op == "perigee::expand" ||
        node.op == "perigee::cast" || is_mean(node)) {
      return true;
    }
    const auto& pattern = rules_.at(n).pattern;
    if (!pattern) return false;
    for (const auto& group : pattern->linear) {
      bool good = true;
      for (size_t i = 0; i < operands.size(); ++i) {
        const bool in = std::find(group.begin(), group.end(), static_cast<int>(i)) != group.end();
        good &= in ? operands[i]->degree == operands[group.front()]->degree
                   : operands[i]->is(Degree::none);
      }
      if (good) return true;
    }
    return false;
  }

  // Whether the divisor is a count that is known for the whole step.
  bool averaged(const Node& node) const {
    auto v = std::get<ValueId>(*node.find("other"));
    while (graph_.values[v.index].producer >= 0) {
      const auto& maker = graph_.nodes[graph_.values[v.index].producer];
      if (maker.op == "perigee::step_average") return true;
      if (maker.op != "perigee::reshape" && maker.op != "perigee::cast") return false;
      v = std::get<ValueId>(*maker.find("self"));
    }
    return false;
  }

  const graph::Graph& graph_;
  MatchedRules rules_;
  std::vector<State> states_;
  int64_t batch_ = 0;
};

}  // namespace

LossClass classify_loss(const graph::Graph& graph) {
  auto forward = graph;
  std::erase_if(forward.outputs, [](const graph::Output& output) {
    return output.kind != graph::Output::Kind::loss;
  });
  if (forward.outputs.empty()) return {};
  forward = graph::eliminate_dead_code(std::move(forward));
  const Classifier classifier(forward);
  const auto& state = classifier.state(forward.outputs[0].value);
  const auto coupling = classifier.batch() > 1 ? state.coupling : "";
  switch (state.degree) {
    case Degree::none:
    case Degree::mean:
      return {LossKind::mean, coupling};
    case Degree::sum:
      return {LossKind::sum, coupling};
    default:
      return {LossKind::mixed, coupling};
  }
}

}  // namespace perigee::shard
