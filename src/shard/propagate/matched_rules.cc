#include "shard/propagate/matched_rules.h"

#include <algorithm>
#include <cstring>

#include "shard/propagate/content_key.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

struct ArgWriter {
  ContentKey& key;
  void operator()(std::monostate) const {}
  void operator()(ValueId) const {}
  void operator()(const std::vector<ValueId>& v) const { key.put(static_cast<int64_t>(v.size())); }
  void operator()(bool b) const { key.put(int64_t{b}); }
  void operator()(int64_t n) const { key.put(n); }
  void operator()(double d) const {
    int64_t bits;
    std::memcpy(&bits, &d, sizeof bits);
    key.put(bits);
  }
  void operator()(const std::string& s) const { key.put(s); }
  void operator()(graph::DType d) const { key.put(static_cast<int64_t>(d)); }
  void operator()(const std::vector<int64_t>& v) const {
    key.put(static_cast<int64_t>(v.size()));
    for (auto n : v) key.put(n);
  }
  void operator()(const std::vector<double>& v) const {
    key.put(static_cast<int64_t>(v.size()));
    for (auto d : v) (*this)(d);
  }
  void operator()(const std::vector<bool>& v) const {
    key.put(static_cast<int64_t>(v.size()));
    for (bool b : v) key.put(int64_t{b});
  }
};

Rules rules_of(const plan::Plan& plan) {
  Rules rules = Rules::built_in();
  for (const auto& [op, text] : plan.rules) rules.add_rule(op, text);
  return rules;
}

}  // namespace

std::vector<Placements> place_inputs(const Graph& graph, const plan::Plan& plan) {
  const size_t axes = plan.mesh.axes.size();
  const auto batch_axes = plan.batch_axes;
  std::vector<Placements> placed;
  for (const auto& input : graph.inputs) {
    Placements placements(axes);
    const auto pin = plan.placements.find(input.name);
    if (input.kind == graph::Input::Kind::constant) {
      // Every rank holds the whole constant.
    } else if (pin != plan.placements.end()) {
      placements = pin->second;
    } else {
      placements.assign(axes, Placement::open());
    }
    const bool has_batch = input.kind == graph::Input::Kind::data && input.batched &&
                           !graph.type(input.value).shape.empty();
    for (size_t a = 0; a < axes; ++a) {
      if (!placements[a].is_open()) continue;
      const bool batch = has_batch && std::find(batch_axes.begin(), batch_axes.end(),
                                                plan.mesh.axes[a].name) != batch_axes.end();
      placements[a] = batch ? Placement::shard(0) : Placement::replicate();
    }
    placed.push_back(std::move(placements));
  }
  return placed;
}

class MatchedRulesImpl {
 public:
  MatchedRulesImpl(const Graph& graph, const plan::Plan& plan)
      : graph_(graph), rules_(rules_of(plan)) {
    Numbering types;
    std::vector<int> type_of;
    ContentKey key;
    for (const auto& value : graph.values) {
      key.clear();
      key.put(static_cast<int64_t>(value.type.dtype));
      for (auto size : value.type.shape) key.put(size);
      type_of.push_back(types.of(key.bytes()).first);
    }
    Numbering signatures;
    for (const auto& node : graph.nodes) {
      key.clear();
      key.put(node.op);
      std::vector<ValueId> operands;
      for (const auto& [name, arg] : node.args) {
        key.put(name);
        key.put(static_cast<int64_t>(arg.index()));
        const auto operand = [&](ValueId v) {
          if (!v.defined()) return key.put(-1);
          // Nodes whose operands repeat a value differ from nodes with distinct operands.
          const auto first = std::find(operands.begin(), operands.end(), v) - operands.begin();
          operands.push_back(v);
          key.put(type_of[v.index]);
          key.put(static_cast<int64_t>(first));
        };
        if (const auto* v = std::get_if<ValueId>(&arg)) {
          operand(*v);
        } else if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
          for (auto v : *list) operand(v);
        }
        std::visit(ArgWriter{key}, arg);
      }
      for (auto v : node.outputs) key.put(v.defined() ? type_of[v.index] : -1);
      const auto [number, added] = signatures.of(key.bytes());
      if (added) matched_.push_back(make(node));
      numbers_.push_back(number);
    }
  }

  const MatchedRule& at(size_t node) const { return matched_[numbers_[node]]; }
  int number(size_t node) const { return numbers_[node]; }

 private:
  MatchedRule make(const Node& node) const {
    MatchedRule matched;
    const Call call(graph_, node);
    const auto* rule = rules_.find(node.op);
    if (!rule) return matched;
    matched.pattern = rule->pattern(call);
    if (matched.pattern && !fits(*matched.pattern, call)) matched.pattern.reset();
    if (matched.pattern) matched.lower = rule->lower;
    return matched;
  }

  const Graph& graph_;
  Rules rules_;
  std::vector<MatchedRule> matched_;
  std::vector<int> numbers_;  // per node
};

MatchedRules::MatchedRules(const Graph& graph, const plan::Plan& plan)
    : impl_(std::make_unique<MatchedRulesImpl>(graph, plan)) {}
MatchedRules::~MatchedRules() = default;
const MatchedRule& MatchedRules::at(size_t node) const { return impl_->at(node); }
int MatchedRules::number(size_t node) const { return impl_->number(node); }

std::vector<UncoveredOp> uncovered_ops(const Graph& graph, const plan::Plan& plan) {
  const MatchedRules rules(graph, plan);
  std::vector<bool> of_samples(graph.values.size());
  for (const auto& input : graph.inputs) {
    of_samples[input.value.index] = input.kind == graph::Input::Kind::data && input.batched;
  }
  std::vector<UncoveredOp> found;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    bool depends = false, has_dims = false;
    node.each_operand([&](ValueId v) {
      depends = depends || of_samples[v.index];
      has_dims = has_dims || !graph.type(v).shape.empty();
    });
    for (const auto v : node.outputs) {
      if (v.defined()) of_samples[v.index] = depends;
    }
    if (rules.at(n).pattern || !depends || !has_dims) continue;
    auto known = std::find_if(found.begin(), found.end(),
                              [&](const UncoveredOp& op) { return op.op == node.op; });
    if (known == found.end()) known = found.insert(known, {node.op, node.scope});
    ++known->nodes;
  }
  return found;
}

}  // namespace perigee::shard
