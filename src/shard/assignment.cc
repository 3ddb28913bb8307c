#include "shard/assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "shard/alike.h"
#include "shard/assignment_variables.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Output;
using graph::Phase;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What is read: a variable (of a node one of its results), or an input that lies fixed.
struct Source {
  int variable = -1;
  int result = -1;
  bool piece = false;  // by the backward pass, of what the forward pass made
  int fixed = -1;      // a number of placements
};

// Where it must be: an operand of a node, or a value's own place, or one that is fixed.
struct Target {
  int variable = -1;
  int operand = -1;
  int same_as = -1;       // an earlier operand of the node that is the same value
  bool settles = false;   // the place of a value of the forward pass that its node has made
  bool gradient = false;  // the place of the parameter whose gradient the value is
  int fixed = -1;         // a number of placements
};

// Small graphs are not folded; in large ones every second block does the same, since layers may go
// in pairs.
size_t period_of(const Graph& graph) {
  constexpr size_t kSmall = 800;
  return graph.nodes.size() <= kSmall ? kSmall : 2;
}

}  // namespace

class Assignment::Impl {
 public:
  Impl(const Graph& graph, const plan::Plan& plan, int axis, const AssignmentOptions& options)
      : graph_(graph),
        plan_(plan),
        options_(options),
        axis_(axis),
        sites_(graph, plan),
        base_(propagate(graph, plan)),
        ways_(graph, plan, sites_, base_, axis, options.prices),
        stands_for_(find_alike(graph, ways_, period_of(graph))),
        redistributor_(plan.mesh, plan.pipeline.axis, plan.forbidden),
        variables_({graph_, plan_, axis_, options_, base_, ways_, stands_for_}, redistributor_,
                   numbers_) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) connect(n);
    for (const auto& output : graph.outputs) connect(output);
    make_problem();
  }

  const solve::AssignProblem& problem() const { return problem_; }

  std::vector<Placement> placements(std::span<const int> choice) const {
    std::vector<Placement> lying(graph_.values.size());
    for (size_t i = 0; i < lying.size(); ++i) {
      const ValueId v{static_cast<int32_t>(i)};
      const int settled = variables_.of_value(v);
      const auto producer = graph_.values[i].producer;
      if (producer >= 0 && !ways_.depends(producer)) {
        lying[i] = Placement::open();
      } else if (settled >= 0) {
        lying[i] = option_of(settled, choice[settled]);
      } else if (producer >= 0) {
        const int op = variables_.of_node(producer);
        const auto& way = ways_.of(variables_.at(op).node)[allowed_[op][choice[op]]];
        lying[i] = way.choice.results[graph_.values[i].result][axis_];
      } else {
        lying[i] = base_.values[i][axis_];
      }
    }
    return lying;
  }

  int op_of(ValueId parameter) const { return variables_.of_value(parameter); }
  Placement option_of(int op, int option) const {
    return variables_.at(op).states[allowed_[op][option]].lies;
  }

 private:
  Source source_of(ValueId v, Phase phase) {
    const auto producer = graph_.values[v.index].producer;
    const int settled = variables_.of_value(v);
    if (producer < 0) {
      if (settled >= 0) return {.variable = settled};
      return {.fixed = numbers_.of(base_.values[v.index])};
    }
    if (settled < 0) {
      return {.variable = variables_.of_node(producer), .result = graph_.values[v.index].result};
    }
    const bool later = phase == Phase::backward && variables_.is_forward(v);
    if (later && variables_.of_value_again(v) >= 0)
      return {.variable = variables_.of_value_again(v)};
    return {.variable = settled, .piece = later};
  }

  void connect(size_t n) {
    const auto& node = graph_.nodes[n];
    std::vector<ValueId> operands;
    node.each_operand([&](ValueId v) {
      const auto first = std::find(operands.begin(), operands.end(), v);
      const int same = first == operands.end() ? -1 : static_cast<int>(first - operands.begin());
      count(v, source_of(v, node.phase),
            {.variable = variables_.of_node(n),
             .operand = static_cast<int>(operands.size()),
             .same_as = same});
      operands.push_back(v);
    });
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (!v.defined() || variables_.of_value(v) < 0) continue;
      count(v, {.variable = variables_.of_node(n), .result = static_cast<int>(r)},
            {.variable = variables_.of_value(v), .settles = true});
      if (variables_.of_value_again(v) < 0) continue;
      count(v, {.variable = variables_.of_value(v), .piece = true},
            {.variable = variables_.of_value_again(v)});
    }
  }

  void connect(const Output& output) {
    const auto v = output.value;
    if (graph_.values[v.index].producer < 0 || output.kind == Output::Kind::loss) return;
    const auto phase = variables_.is_forward(v) ? Phase::forward : Phase::backward;
    const auto* owner =
        output.kind == Output::Kind::result ? nullptr : graph_.find_input(output.name);
    const bool gradient = output.kind == Output::Kind::gradient;
    if (owner && variables_.of_value(owner->value) >= 0) {
      return count(v, source_of(v, phase),
                   {.variable = variables_.of_value(owner->value), .gradient = gradient});
    }
    if (!owner) return;
    count(v, source_of(v, phase),
          {.gradient = gradient, .fixed = numbers_.of(base_.values[owner->value.index])});
  }

  // As often as it happens.
  void count(ValueId v, const Source& source, const Target& target) {
    Key key;
    for (int part : {source.variable, source.result, int{source.piece}, source.fixed,
                     target.variable, target.operand, target.same_as, int{target.settles},
                     int{target.gradient}, target.fixed, numbers_.of(base_.values[v.index])}) {
      key.put(part);
    }
    const auto& type = graph_.type(v);
    key.put(static_cast<int64_t>(type.dtype));
    for (auto size : type.shape) key.put(size);
    const auto [number, added] = links_.of(key.bytes());
    if (added) counted_.push_back({v, source, target, 0});
    counted_[number].times += 1;
  }

  struct Link {
    ValueId value;
    Source source;
    Target target;
    double times;
  };

  Placements lies(const Link& link, int option) const {
    const auto& [v, source, target, times] = link;
    if (source.fixed >= 0) return numbers_.at(source.fixed);
    const auto& variable = variables_.at(source.variable);
    if (source.result >= 0) {
      return ways_.of(variable.node)[option].choice.results[source.result];
    }
    const auto& state = variable.states[option];
    return variables_.placed(v, source.piece ? state.piece.value_or(state.lies) : state.lies);
  }

  double cost(const Link& link, int from, int to) {
    const auto& [v, source, target, times] = link;
    const auto& type = graph_.type(v);
    const auto here = lies(link, from);
    if (target.operand >= 0) {
      const auto& choice = ways_.of(variables_.at(target.variable).node)[to].choice;
      const auto& there = choice.operands[target.operand];
      if (target.same_as >= 0 && choice.operands[target.same_as] == there) return 0;
      const double moved = redistributor_.path(type, here, there).cost;
      // A view of what is gathered: propagation gathers the view, and again in the backward pass.
      const bool gathers = here[axis_].is_shard() && there[axis_].is_replicate();
      const auto reader = variables_.at(target.variable).node;
      return gathers && variables_.is_kept_view(reader) ? 2 * moved : moved;
    }
    auto there = target.variable < 0
                     ? numbers_.at(target.fixed)
                     : variables_.placed(v, variables_.at(target.variable).states[to].lies);
    if (target.gradient && there[axis_].is_replicate() && here[axis_].is_partial()) {
      // Reduced once a step, in buckets.
      return redistributor_.path(type, here, there).cost / static_cast<double>(plan_.microbatches);
    }
    // A gradient lies as its parameter on this axis; on the others it may be Partial.
    if (target.gradient) there = with(here, there[axis_]);
    if (!target.settles) return redistributor_.path(type, here, there).cost;
    const auto& state = variables_.at(target.variable).states[to];
    if (state.piece && here[axis_] != *state.piece) return kInfinity;
    const auto& path = redistributor_.path(type, here, there);
    const bool gathered = !path.steps.empty() && graph::is_floating(type.dtype) &&
                          variables_.is_forward(v) && here[axis_].is_shard() &&
                          there[axis_].is_replicate();
    return gathered && !state.piece ? kInfinity : path.cost;
  }

  Placements with(Placements placements, const Placement& p) const {
    placements[axis_] = p;
    return placements;
  }

  void make_problem() {
    for (const auto& link : counted_) {
      const int from = link.source.variable, to = link.target.variable;
      if (from >= 0 && to >= 0 && from != to) continue;
      auto& time = variables_.at(std::max(from, to)).time;
      for (size_t o = 0; o < time.size(); ++o) {
        const int option = static_cast<int>(o);
        time[o] += link.times * cost(link, from < 0 ? 0 : option, to < 0 ? 0 : option);
      }
    }
    for (int v = 0; v < variables_.size(); ++v) {
      const auto& variable = variables_.at(v);
      auto& op = problem_.ops.emplace_back();
      op.name = variable.name;
      auto& allowed = allowed_.emplace_back();
      for (size_t o = 0; o < variable.time.size(); ++o) {
        if (!std::isfinite(variable.time[o])) continue;
        allowed.push_back(static_cast<int>(o));
        op.options.push_back({.time = variable.time[o]});
      }
    }
    std::map<std::pair<int, int>, size_t> edge_of;
    for (const auto& link : counted_) {
      const int from = link.source.variable, to = link.target.variable;
      if (from < 0 || to < 0 || from == to) continue;
      const auto [at, added] = edge_of.try_emplace({from, to}, problem_.edges.size());
      const size_t size = allowed_[from].size() * allowed_[to].size();
      if (added) problem_.edges.push_back({from, to, std::vector<double>(size)});
      auto cell = problem_.edges[at->second].time.begin();
      for (int a : allowed_[from]) {
        for (int b : allowed_[to]) *cell++ += link.times * cost(link, a, b);
      }
    }
  }

  const Graph& graph_;
  const plan::Plan& plan_;
  const AssignmentOptions options_;
  const int axis_;
  const SiteTable sites_;
  const Sharding base_;
  const Ways ways_;
  const std::vector<size_t> stands_for_;
  Redistributor redistributor_;
  PlacementNumbers numbers_;
  Variables variables_;
  Numbering links_;
  std::vector<Link> counted_;
  std::vector<std::vector<int>> allowed_;  // per variable: options of the problem
  solve::AssignProblem problem_;
};

Assignment::Assignment(const Graph& graph, const plan::Plan& plan, int axis,
                       const AssignmentOptions& options)
    : impl_(std::make_unique<Impl>(graph, plan, axis, options)) {}
Assignment::~Assignment() = default;
const solve::AssignProblem& Assignment::problem() const { return impl_->problem(); }
std::vector<Placement> Assignment::placements(std::span<const int> choice) const {
  return impl_->placements(choice);
}
int Assignment::op_of(ValueId parameter) const { return impl_->op_of(parameter); }
Placement Assignment::option_of(int op, int option) const { return impl_->option_of(op, option); }

}  // namespace perigee::shard
