#include "shard/loss/classify_loss.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "graph/ops.h"
#include "shard/loss/loss_alone.h"
#include "shard/loss/loss_ops.h"
#include "shard/loss/loss_state.h"
#include "shard/loss/sample_count.h"
#include "shard/loss/sample_dim.h"
#include "shard/propagate/matched_rules.h"

namespace perigee::shard {

namespace {

using graph::Graph;
using graph::Node;
using graph::ValueId;

class Classifier {
 public:
  // `whole`: the graph with its other outputs.
  Classifier(const Graph& graph, const Graph& whole, const Graph* twice)
      : graph_(graph),
        numbers_(graph, twice),
        rules_(graph, {}),
        states_(graph.values.size()),
        of_data_(graph.values.size()),
        used_otherwise_(graph.values.size()) {
    for (const auto& node : graph.nodes) {
      const auto divisor = node.op == "aten::div.Tensor" ? value_of(node, "other") : ValueId{};
      node.each_operand([&](ValueId v) {
        if (v != divisor) used_otherwise_[v.index] = true;
      });
    }
    for (const auto& node : graph.nodes) {
      weighted_ |= node.op == "perigee::reduction" &&
                   node.get<std::string>("kind", "mean") == "weighted";
    }
    using Kind = graph::Input::Kind;
    for (const auto& input : graph.inputs) {
      of_data_[input.value.index] = input.kind == Kind::data || whole.is_fixed(input);
      if (input.kind != Kind::data || !input.batched) continue;
      const auto& shape = graph.type(input.value).shape;
      if (shape.empty()) continue;
      batch_ = std::max(batch_, shape[0]);
      states_[input.value.index] = {Degree::sample, {0, 1}};
    }
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const auto& node = graph.nodes[n];
      bool of_data = !graph::is_random(node.op);
      node.each_operand([&](ValueId v) { of_data = of_data && of_data_[v.index]; });
      for (size_t r = 0; r < node.outputs.size(); ++r) {
        if (!node.outputs[r].defined()) continue;
        of_data_[node.outputs[r].index] = of_data;
        states_[node.outputs[r].index] = result(n, r);
        if (unsure_.empty() &&
            numbers_.changes_otherwise(n, [&](ValueId v) { return !state(v).is(Degree::none); })) {
          unsure_ = fmt::format("{}, which depends on the number of samples", describe(node));
        }
      }
    }
  }

  const State& state(ValueId v) const { return states_[v.index]; }
  int64_t batch() const { return batch_; }
  const std::vector<Divisor>& divisors() const { return divisors_; }
  const std::string& undeclared() const { return undeclared_; }
  const std::string& unsure() const { return unsure_; }

 private:
  const State& operand(const Node& node, std::string_view name) const {
    static const State nothing;
    const auto v = value_of(node, name);
    return v.defined() ? state(v) : nothing;
  }

  static ValueId value_of(const Node& node, std::string_view name) {
    const auto* arg = node.find(name);
    const auto* value = arg ? std::get_if<ValueId>(arg) : nullptr;
    return value ? *value : ValueId{};
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
  // Where there is a second graph, it tells.
  bool divides_by_batch(double number) const {
    return !numbers_.known() && is_multiple(number, batch_);
  }

  State result(size_t n, size_t r) {
    const auto& node = graph_.nodes[n];
    std::vector<const State*> operands;
    node.each_operand([&](ValueId o) { operands.push_back(&state(o)); });
    const auto has = [&](Degree degree) {
      return std::any_of(operands.begin(), operands.end(),
                         [&](const State* s) { return s->is(degree); });
    };
    const auto of_samples = [&](ValueId v) { return !state(v).is(Degree::none); };
    State out;
    std::string coupling;
    for (const auto* s : operands) {
      if (coupling.empty()) coupling = s->coupling;
    }
    if (node.op == "perigee::reduction") {
      out = declared(node, *operands.front());
    } else if (divides_by_mean(node) && !operands.front()->is(Degree::mixed) &&
               !operands.front()->is(Degree::none)) {
      coupling = operands.front()->coupling;
      out = divide_by_mean(n, r, operands);
    } else if (weighted_ && divides_by_data(node) && !operands.front()->is(Degree::mixed) &&
               !operands.front()->is(Degree::none)) {
      out = divide_by_weights(node, *operands.front());
    } else if (const double growth = numbers_.factor_of(n, of_samples);
               growth != 1 && !has(Degree::mixed)) {
      const auto* self = *std::ranges::find_if(operands,
                                               [](const State* s) { return !s->is(Degree::none); });
      out = scale_by_samples(n, r, *self, growth, operands);
    } else if (has(Degree::mixed)) {
      out.degree = Degree::mixed;
      for (const auto* s : operands) {
        if (out.ended.empty()) out.ended = s->ended;
      }
    } else if (has(Degree::sample)) {
      out = follow_samples(n, r, operands);
    } else if (has(Degree::pool)) {
      out.degree = Degree::pool;
      if (has(Degree::mean) || has(Degree::sum) || has(Degree::total)) {
        out = end_at(node, "which combines rows of experts with a mean or a sum over samples");
      }
    } else if (has(Degree::mean) || has(Degree::sum) || has(Degree::total)) {
      out = combine_statistics(n, operands);
    }
    if (!coupling.empty()) out.coupling = coupling;
    return out;
  }

  // Handles a factor or divisor that is a multiple of the number of samples.
  State scale_by_samples(size_t n, size_t r, const State& self, double growth,
                         const std::vector<const State*>& operands) {
    const auto& node = graph_.nodes[n];
    const bool divides = std::abs(growth - 0.5) < 1e-9, multiplies = std::abs(growth - 2) < 1e-9;
    if (self.is(Degree::sum) && divides) return {Degree::mean};
    if (self.is(Degree::mean) && multiplies) return {Degree::sum};
    if (self.is(Degree::sample) && divides && !self.share) {
      auto out = follow_samples(n, r, operands);
      out.share = out.is(Degree::sample);
      return out;
    }
    if (self.is(Degree::sample) && multiplies && self.share) {
      auto out = self;
      out.share = false;
      return out;
    }
    return end_at(node,
                  "which uses the number of samples, and not so that a mean or a sum follows");
  }

  // The model says what its loss is. A proof, where there is one, comes first.
  State declared(const Node& node, const State& self) {
    const auto kind = node.get<std::string>("kind", "mean");
    if (kind == "mixed") {
      State out{Degree::mixed};
      out.ended = node.get<std::string>("ended", "");
      return out;
    }
    const bool sum = kind == "sum";
    const auto degree = sum ? Degree::sum : Degree::mean;
    if (node.find("ended")) undeclared_ = node.get<std::string>("ended", "");
    if (self.is(degree) || self.is(Degree::none)) return self;
    if (node.get<bool>("proven", false)) return {degree};
    undeclared_ = !self.ended.empty() ? self.ended
                                      : fmt::format("the loss, which is a {} over samples",
                                                    self.is(Degree::sum) ? "sum" : "mean");
    return {degree};
  }

  // Of a loss that is declared weighted: the divisor is taken for a sum of weights.
  State divide_by_weights(const Node& node, const State& self) {
    const auto& other = operand(node, "other");
    note_divisor(value_of(node, "other"));
    if (!other.is(Degree::sum) && !other.is(Degree::total)) {
      undeclared_ = other.is(Degree::mixed)
                        ? other.ended
                        : fmt::format("{}, whose divisor is no sum over samples", describe(node));
    }
    if (self.is(Degree::sum) || self.is(Degree::mean)) return {Degree::mean};
    auto out = self;
    out.share = true;
    return out;
  }

  // Handles a division by a mean of data, of which that of the whole step is taken.
  State divide_by_mean(size_t n, size_t r, const std::vector<const State*>& operands) {
    const auto& self = *operands.front();
    State out{self.degree};
    if (self.is(Degree::sample)) out = follow_samples(n, r, operands);
    if (self.is(Degree::pool) || self.is(Degree::total)) {
      return end_at(graph_.nodes[n], "which divides neither samples nor a mean or sum over them");
    }
    if (!out.is(Degree::mixed)) note_divisor(value_of(graph_.nodes[n], "other"));
    out.coupling.clear();
    return out;
  }

  // Handles a node with an operand that has a dim over samples.
  State follow_samples(size_t n, size_t r, const std::vector<const State*>& operands) {
    const auto& node = graph_.nodes[n];
    bool others = false;   // an operand depends on all samples
    bool divides = false;  // by a sum over all samples
    for (const auto* s : operands) {
      if (s->is(Degree::sum) || s->is(Degree::total)) {
        if (!divides_by_sum(node)) {
          return end_at(node, "which combines a sum over all samples with each sample");
        }
        divides = true;
      }
      others |= s->is(Degree::mean) || s->is(Degree::pool);
    }
    State out;
    if (const auto at = special_position(n, r, operands)) {
      out = {Degree::sample, *at};
    } else {
      out = follow_pattern(n, r, operands);
    }
    if (out.is(Degree::mixed)) return out;
    if (out.coupling.empty() && others) out.coupling = describe(node);
    return with_share(n, operands, divides, std::move(out));
  }

  // Returns the samples' position for ops whose results it does not follow from their rules.
  std::optional<SampleDim> special_position(size_t n, size_t r,
                                            const std::vector<const State*>& operands) const {
    const auto& node = graph_.nodes[n];
    if (node.op == "perigee::reshape") {
      return reshaped(graph_.type(value_of(node, "self")).shape, graph_.type(node.outputs[r]).shape,
                      operands[0]->at, batch_);
    }
    std::vector<std::optional<SampleDim>> positions;
    for (const auto* s : operands) {
      positions.push_back(s->is(Degree::sample) ? std::optional(s->at) : std::nullopt);
    }
    return moved(graph_, node, r, positions, batch_);
  }

  State follow_pattern(size_t n, size_t r, const std::vector<const State*>& operands) const {
    const auto& node = graph_.nodes[n];
    const auto& pattern = rules_.at(n).pattern;
    if (!pattern || r >= pattern->results.size()) {
      return end_at(node, "which has no sharding rule");
    }
    if (node.op == "perigee::reshape") {
      return end_at(node, "which divides the samples over several dims");
    }
    std::optional<State> found;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i]->is(Degree::sample)) continue;
      const auto next = follow_dim(n, r, i, operands[i]->at);
      if (next.is(Degree::mixed)) return next;
      if (found && (found->degree != next.degree || found->at != next.at)) {
        return end_at(node, "which combines samples with each other");
      }
      if (!found || found->coupling.empty()) found = next;
    }
    return *found;
  }

  // Follows operand i's dim over samples to the result.
  State follow_dim(size_t n, size_t r, size_t i, SampleDim at) const {
    const auto& node = graph_.nodes[n];
    const auto& pattern = *rules_.at(n).pattern;
    const auto& letters = pattern.results[r];
    const int letter = pattern.operands[i][at.dim];
    std::vector<ValueId> values;
    node.each_operand([&](ValueId o) { values.push_back(o); });
    const auto& from = graph_.type(values[i]).shape;
    const auto& to = graph_.type(node.outputs[r]).shape;
    if (letter < 0) {
      // The op works along the samples. A result of the same shape has an element for each.
      const bool keeps = from.size() == to.size() && from[at.dim] == to[at.dim] &&
                         letters[at.dim] < 0;
      if (keeps) return {Degree::sample, at, false, describe(node)};
      if (dispatches(node)) return {Degree::pool, {}, false, describe(node)};
      return end_at(node, "which takes some of the samples or combines them with each other");
    }
    const auto found = std::find(letters.begin(), letters.end(), letter);
    if (found != letters.end()) {
      const bool agrees = pattern.dims[letter].role == Role::agreed;  // batch norm
      const SampleDim next{static_cast<int>(found - letters.begin()), at.inner};
      if (from[at.dim] != to[next.dim]) {
        return end_at(node, "which changes the number of the samples");
      }
      return {Degree::sample, next, false, agrees ? describe(node) : ""};
    }
    if (dispatches(node)) return {Degree::pool, {}, false, describe(node)};
    if (is_mean(node)) return {Degree::mean};
    if (node.op.ends_with("_loss")) {
      const auto reduction = node.get<int64_t>("reduction", 1);
      return {reduction == 2 ? Degree::sum : Degree::mean};
    }
    switch (pattern.dims[letter].role) {
      case Role::sum:
        // Ranks' results add up where samples are looked up, or beside another value, too.
        if (node.op == "aten::embedding") return end_at(node, "which takes some of the samples");
        if (std::ranges::any_of(pattern.addends, [&](int a) { return !is_zero(values[a]); })) {
          return end_at(node, "which adds a value to a sum over samples");
        }
        return {Degree::sum};
      case Role::agreed:
        return {Degree::mean, {}, false, describe(node)};
      default:
        return end_at(node, "which reduces the samples in another way than by a sum or a mean");
    }
  }

  bool is_zero(ValueId v) const {
    const auto n = graph_.values[v.index].producer;
    if (n < 0 || graph_.nodes[static_cast<size_t>(n)].op != "perigee::full") return false;
    return graph_.nodes[static_cast<size_t>(n)].get<double>("value", 1) == 0;
  }

  // Shares of a sum over samples: their sum is a mean. An op keeps them where it is linear in them.
  State with_share(size_t n, const std::vector<const State*>& operands, bool divides, State out) {
    const auto& node = graph_.nodes[n];
    const auto shares = std::count_if(operands.begin(), operands.end(),
                                      [](const State* s) { return s->share; });
    if (shares == 0 && !divides) return out;
    const auto fails = [&] {
      return end_at(node, "which is not linear in a sample's share of a sum over samples");
    };
    if (shares > 0 && divides) return fails();
    if (shares > 0 &&
        !is_linear(node, rules_.at(n).pattern, operands, [](const State& s) { return s.share; })) {
      return fails();
    }
    if (divides) note_divisor(value_of(node, "other"));
    if (out.is(Degree::sample)) {
      out.share = true;
    } else if (out.is(Degree::sum)) {
      out.degree = Degree::mean;
    } else {
      return fails();
    }
    return out;
  }

  // Handles a node whose operands are means and sums over samples, or independent of them.
  State combine_statistics(size_t n, const std::vector<const State*>& operands) {
    const auto& node = graph_.nodes[n];
    const auto any = [&](Degree degree) {
      return std::ranges::any_of(operands, [&](const State* s) { return s->is(degree); });
    };
    const bool sums = any(Degree::sum), totals = any(Degree::total);
    const auto& self = operand(node, "self");
    if (node.op == "perigee::step_average") return {self.degree};
    if (node.op == "aten::div.Scalar" && self.is(Degree::sum) && divides_by_batch(scalar(node))) {
      return {Degree::mean};
    }
    if (self.is(Degree::sum) && divides_by_sum(node)) {
      note_divisor(value_of(node, "other"));
      return {Degree::mean};
    }
    const auto& pattern = rules_.at(n).pattern;
    if (sums && !totals &&
        is_linear(node, pattern, operands, [](const State& s) { return s.is(Degree::sum); })) {
      return {Degree::sum};
    }
    if (sums || totals) {
      auto out = end_at(node,
                        "which is not linear in a sum over samples (only sums of weights or "
                        "counts that depend on data alone may divide a sum)");
      if (!divisor_at(node.outputs[0]).values.empty()) out.degree = Degree::total;
      return out;
    }
    // Any function of means is unchanged when the samples are doubled. Unless it is affine, its
    // value for the batch is not the mean of its values for the microbatches.
    const bool linear = is_linear(node, pattern, operands,
                                  [](const State& s) { return !s.is(Degree::none); });
    State out{Degree::mean};
    if (!linear && !is_affine(node)) out.coupling = describe(node);
    return out;
  }

  // Whether the node divides by a function of a sum, or of a mean, over samples whose value for the
  // whole step can be known: it depends on data alone.
  bool divides_by_sum(const Node& node) const { return divides_by(node, false); }
  bool divides_by_mean(const Node& node) const { return divides_by(node, true); }
  bool divides_by(const Node& node, bool mean) const {
    const auto other = value_of(node, "other");
    if (node.op != "aten::div.Tensor" || !other.defined() || used_otherwise_[other.index]) {
      return false;
    }
    const auto divisor = divisor_at(other);
    return !divisor.values.empty() && divisor.mean == mean;
  }

  // Returns the number as a divisor by a function of a sum or mean; without values: it is none.
  Divisor divisor_at(ValueId v) const {
    return find_divisor(
        graph_, v,
        {[&](ValueId u) { return !state(u).is(Degree::none); },
         [&](ValueId u) { return state(u).is(Degree::sum); },
         [&](ValueId u) { return state(u).is(Degree::mean) && state(u).coupling.empty(); },
         [&](ValueId u) { return of_data_[u.index]; }});
  }

  // Whether the node divides by one number that depends on the samples of a batch through data.
  bool divides_by_data(const Node& node) const {
    const auto other = value_of(node, "other");
    return node.op == "aten::div.Tensor" && other.defined() && !state(other).is(Degree::none) &&
           !state(other).is(Degree::sample) && graph_.type(other).numel() == 1 &&
           of_data_[other.index] && !used_otherwise_[other.index];
  }

  void note_divisor(ValueId v) {
    auto divisor = divisor_at(v);
    if (divisor.values.empty()) divisor.values = {v};
    if (is_of_step(graph_, divisor)) return;
    if (std::find(divisors_.begin(), divisors_.end(), divisor) == divisors_.end()) {
      divisors_.push_back(std::move(divisor));
    }
  }

  const Graph& graph_;
  const CountedNumbers numbers_;
  MatchedRules rules_;
  std::vector<State> states_;
  std::vector<bool> of_data_;         // by value: depends on data and fixed values alone
  std::vector<bool> used_otherwise_;  // by value: an operand, but not only a divisor
  std::vector<Divisor> divisors_;
  bool weighted_ = false;   // the loss is declared a weighted mean
  std::string undeclared_;  // where the proof ended, of a declared loss
  std::string unsure_;      // the first op at which the second graph has another constant
  int64_t batch_ = 0;
};

LossClass classify(const Graph& forward, const Graph& whole, const Graph* twice) {
  if (forward.outputs.empty()) return {};
  const Classifier classifier(forward, whole, twice);
  const auto& state = classifier.state(forward.outputs[0].value);
  LossClass found;
  if (classifier.batch() > 1) found.coupling = state.coupling;
  found.declared = !classifier.undeclared().empty();
  found.ended = found.declared ? classifier.undeclared() : state.ended;
  // Coupled samples have another loss in microbatches, which a check by number would refuse.
  if (!found.declared && !classifier.unsure().empty() && state.coupling.empty()) {
    found.declared = true;
    found.ended = classifier.unsure();
  }
  found.divisors = classifier.divisors();
  if (state.is(Degree::sum)) {
    found.kind = LossKind::sum;
  } else if (!state.is(Degree::none) && !state.is(Degree::mean)) {
    found.kind = LossKind::mixed;
    if (found.ended.empty()) found.ended = "the loss, which has a value for each sample";
  }
  return found;
}

}  // namespace

LossClass classify_loss(const Graph& graph) { return classify(loss_alone(graph), graph, nullptr); }

LossClass classify_loss(const Graph& graph, const Graph& twice) {
  const auto forward = loss_alone(graph), other = loss_alone(twice);
  const bool same_nodes = std::ranges::equal(
      forward.nodes, other.nodes,
      [](const Node& a, const Node& b) { return a.op == b.op && a.outputs == b.outputs; });
  if (same_nodes) return classify(forward, graph, &other);
  LossClass mixed{LossKind::mixed};
  mixed.ended = "the loss, whose ops depend on the number of samples";
  mixed.comparable = false;
  return mixed;
}

}  // namespace perigee::shard
