#include "shard/solver/assignment.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/fail.h"
#include "base/infinity.h"
#include "shard/solver/assignment_variables.h"
#include "shard/solver/repeated_blocks.h"
#include "shard/solver/repeated_steps.h"
#include "solve/solve.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Output;
using graph::Phase;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

// Limit on the entries of all edges' tables, each of which must be priced: several times those of a
// model on two axes.
constexpr size_t kMostEntries = 5'000'000;
// Table entries that the solver reads: several seconds of a core at most.
constexpr double kMostWork = 3e8;
// Time limit where no solution is known.
constexpr double kMostSeconds = 20;

// The source of a link: a variable (a node's result or a value), or an input with fixed placements.
struct Source {
  int variable = -1;
  int result = -1;
  bool saved = false;  // the saved shard of a forward value, read by the backward pass
  int fixed = -1;      // number of the placements (PlacementNumbers)
};

// The target of a link: an operand of a node, a value's own placements, or fixed placements.
struct Target {
  int variable = -1;
  int operand = -1;
  int same_as = -1;       // earlier operand of the node with the same value
  bool is_value = false;  // the placements of a value, from those of its producer's result
  bool gradient = false;  // placements of the parameter of a gradient
  int fixed = -1;         // number of the placements
};

// Returns the representative of each node. Small graphs are not folded. Large ones fold every second
// block into one, since layers may alternate in pairs, and the steps of a loop, which share their
// weights, into the first.
std::vector<size_t> fold(const Graph& graph, const ShardingOptions& node_options) {
  constexpr size_t kSmall = 800;
  const bool small = graph.nodes.size() <= kSmall;
  auto representative = find_representatives(graph, node_options, small ? kSmall : 2);
  if (!small) fold_repeated_steps(graph, node_options, representative);
  return representative;
}

}  // namespace

class Assignment::Impl {
 public:
  Impl(const Graph& graph, const plan::Plan& plan, std::vector<int> axes,
       const AssignmentOptions& options)
      : graph_(graph),
        plan_(plan),
        options_(options),
        axes_(std::move(axes)),
        rules_(graph, plan),
        base_(propagate(graph, plan)),
        node_options_(graph, plan, rules_, base_, axes_, options.prices),
        representative_(fold(graph, node_options_)),
        first_readers_(first_readers(graph)),
        redistributor_(plan.mesh, plan.pipeline.axis, plan.forbidden),
        variables_({graph_, plan_, axes_, options_, base_, node_options_, representative_},
                   redistributor_, numbers_) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) connect(n);
    for (const auto& output : graph.outputs) connect(output);
    make_problem();
  }

  const solve::AssignProblem& problem() const { return problem_; }

  // `saved`: placements of the shards saved for the backward pass.
  std::vector<Placements> placements(std::span<const int> choice, bool saved) const {
    std::vector<Placements> placements(graph_.values.size());
    for (size_t i = 0; i < placements.size(); ++i) {
      const ValueId v{static_cast<int32_t>(i)};
      const int variable = variables_.of_value(v);
      const auto producer = graph_.values[i].producer;
      if (producer >= 0 && !node_options_.depends(producer)) {
        placements[i].assign(axes_.size(), Placement::open());
      } else if (variable >= 0) {
        const auto& state = variables_.at(variable).states[allowed_[variable][choice[variable]]];
        placements[i] = saved ? state.saved() : state.placements;
      } else if (producer >= 0) {
        const int op = variables_.of_node(producer);
        const auto& node_option = node_options_.of(
            variables_.at(op).node)[allowed_[op][choice[op]]];
        placements[i] = variables_.on_axes(node_option.sharding.results[graph_.values[i].result]);
      } else {
        placements[i] = variables_.on_axes(base_.values[i]);
      }
    }
    return placements;
  }

  GroupTimes times(const std::vector<std::vector<int>>& solutions, const std::vector<int>& groups) {
    const size_t count = solutions.size();
    const size_t last = groups.empty() ? 0 : *std::max_element(groups.begin(), groups.end());
    GroupTimes times;
    times.time.assign(last + 1, std::vector<double>(count));
    times.forward = times.time;
    const auto option = [&](int variable, size_t s) {
      return variable < 0 ? 0 : allowed_[variable][solutions[s][variable]];
    };
    const auto add = [&](int group, size_t s, double time, bool forward) {
      times.time[group][s] += time;
      if (forward) times.forward[group][s] += time;
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const bool forward = graph_.nodes[n].phase == Phase::forward;
      for (size_t s = 0; s < count; ++s) {
        add(groups[n], s, node_options_.of(n)[option(variables_.of_node(n), s)].sharding.cost,
            forward);
      }
    }
    for (const auto& link : link_list_) {
      std::map<std::pair<int, int>, double> often;
      for (const auto& [from, to] : link.ends) often[{groups[from], groups[to]}] += 1;
      std::vector<int> source_numbers, target_numbers;
      for (size_t s = 0; s < count; ++s) {
        source_numbers.push_back(
            numbers_.of(source_placements(link, option(link.source.variable, s))));
        target_numbers.push_back(
            numbers_.of(target_placements(link, option(link.target.variable, s))));
      }
      const auto time = [&](size_t a, size_t b) {
        return cost(link, source_numbers[a], target_numbers[b], option(link.target.variable, b));
      };
      for (const auto& [ends, number] : often) {
        if (ends.first == ends.second) {
          for (size_t s = 0; s < count; ++s) add(ends.first, s, number * time(s, s), link.forward);
          continue;
        }
        auto& table = times.between[ends];
        table.resize(count * count);
        for (size_t k = 0; k < table.size(); ++k) table[k] += number * time(k / count, k % count);
      }
    }
    return times;
  }

 private:
  Source source_of(ValueId v, Phase phase) {
    const auto producer = graph_.values[v.index].producer;
    const int variable = variables_.of_value(v);
    if (producer < 0) {
      if (variable >= 0) return {.variable = variable};
      return {.fixed = numbers_.of(base_.values[v.index])};
    }
    if (variable < 0) {
      return {.variable = variables_.of_node(producer), .result = graph_.values[v.index].result};
    }
    const bool later = phase == Phase::backward && variables_.is_forward(v);
    if (later && variables_.of_value_in_backward(v) >= 0)
      return {.variable = variables_.of_value_in_backward(v)};
    return {.variable = variable, .saved = later};
  }

  void connect(size_t n) {
    const auto& node = graph_.nodes[n];
    std::vector<ValueId> operands;
    node.each_operand([&](ValueId v) {
      const auto first = std::find(operands.begin(), operands.end(), v);
      const int same = first == operands.end() ? -1 : static_cast<int>(first - operands.begin());
      count(v, {group_node(v), n}, source_of(v, node.phase),
            {.variable = variables_.of_node(n),
             .operand = static_cast<int>(operands.size()),
             .same_as = same});
      operands.push_back(v);
    });
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (!v.defined() || variables_.of_value(v) < 0) continue;
      count(v, {n, n}, {.variable = variables_.of_node(n), .result = static_cast<int>(r)},
            {.variable = variables_.of_value(v), .is_value = true});
      if (variables_.of_value_in_backward(v) < 0) continue;
      count(v, {n, n}, {.variable = variables_.of_value(v), .saved = true},
            {.variable = variables_.of_value_in_backward(v)});
    }
  }

  void connect(const Output& output) {
    const auto v = output.value;
    if (graph_.values[v.index].producer < 0 || output.kind == Output::Kind::loss) return;
    const auto phase = variables_.is_forward(v) ? Phase::forward : Phase::backward;
    const auto* owner = output.kind == Output::Kind::result ? nullptr
                                                            : graph_.find_input(output.name);
    const bool gradient = output.kind == Output::Kind::gradient;
    if (owner && variables_.of_value(owner->value) >= 0) {
      return count(v, {group_node(v), group_node(owner->value)}, source_of(v, phase),
                   {.variable = variables_.of_value(owner->value), .gradient = gradient});
    }
    if (!owner) return;
    count(v, {group_node(v), group_node(v)}, source_of(v, phase),
          {.gradient = gradient, .fixed = numbers_.of(base_.values[owner->value.index])});
  }

  // The node whose group a value belongs to: its producer, or its first reader.
  size_t group_node(ValueId v) const {
    const auto producer = graph_.values[v.index].producer;
    if (producer >= 0) return static_cast<size_t>(producer);
    return first_readers_[v.index];
  }

  // Adds a link, or counts one more use of an equal link. `ends`: the nodes at its ends, which give
  // its groups.
  void count(ValueId v, std::pair<size_t, size_t> ends, const Source& source,
             const Target& target) {
    const bool forward = graph_.nodes[ends.second].phase == Phase::forward && !target.gradient;
    ContentKey key;
    for (int part :
         {source.variable, source.result, int{source.saved}, source.fixed, target.variable,
          target.operand, target.same_as, int{target.is_value}, int{target.gradient}, target.fixed,
          numbers_.of(base_.values[v.index]), int{forward}}) {
      key.put(part);
    }
    const auto& type = graph_.type(v);
    ContentKey of_type;
    of_type.put(static_cast<int64_t>(type.dtype));
    for (auto size : type.shape) of_type.put(size);
    key.put(of_type.bytes());
    const auto [number, added] = links_.of(key.bytes());
    if (added) {
      link_list_.push_back({v, source, target, 0, types_.of(of_type.bytes()).first, forward, {}});
    }
    link_list_[number].times += forward ? variables_.runs_of(ends.second) : 1;
    link_list_[number].ends.push_back(ends);
  }

  struct Link {
    ValueId value;
    Source source;
    Target target;
    double times;
    int type = 0;  // number of the value's type
    bool forward = false;
    std::vector<std::pair<size_t, size_t>> ends;  // pairs of nodes, which give the groups
  };

  Placements source_placements(const Link& link, int option) const {
    const auto& source = link.source;
    if (source.fixed >= 0) return numbers_.at(source.fixed);
    const auto& variable = variables_.at(source.variable);
    if (source.result >= 0) {
      return node_options_.of(variable.node)[option].sharding.results[source.result];
    }
    const auto& state = variable.states[option];
    return variables_.placed(link.value, source.saved ? state.saved() : state.placements);
  }

  Placements target_placements(const Link& link, int option) const {
    const auto& target = link.target;
    if (target.fixed >= 0) return numbers_.at(target.fixed);
    const auto& variable = variables_.at(target.variable);
    if (target.operand >= 0) {
      return node_options_.of(variable.node)[option].sharding.operands[target.operand];
    }
    return variables_.placed(link.value, variable.states[option].placements);
  }

  // The cost of redistributing the link's value between two placements, given by number.
  double price(const Link& link, int source, int destination) {
    if (source == destination) return 0;
    const auto key = static_cast<uint64_t>(link.type) << 40 | static_cast<uint64_t>(source) << 20 |
                     static_cast<uint64_t>(destination);
    const auto [at, added] = prices_.try_emplace(key, 0.0);
    if (added) {
      at->second = redistributor_
                       .path(graph_.type(link.value), numbers_.at(source), numbers_.at(destination))
                       .cost;
    }
    return at->second;
  }

  // Bits of the planned axes on which the value is sharded at the source and replicated at
  // the destination.
  unsigned gathered(int source, int destination) const {
    const auto &from = numbers_.at(source), &to = numbers_.at(destination);
    unsigned axes = 0;
    for (size_t k = 0; k < axes_.size(); ++k) {
      if (from[axes_[k]].is_shard() && to[axes_[k]].is_replicate()) axes |= 1u << k;
    }
    return axes;
  }

  // The cost of redistributing the link's value from `source` to `destination` (numbers of
  // placements) if its target takes the option.
  double cost(const Link& link, int source, int destination, int option) {
    const auto& target = link.target;
    if (target.operand >= 0) {
      const auto& reader = variables_.at(target.variable);
      const auto& choice = node_options_.of(reader.node)[option].sharding;
      if (target.same_as >= 0 &&
          choice.operands[target.same_as] == choice.operands[target.operand]) {
        return 0;
      }
      const double moved = price(link, source, destination);
      // A view of a gathered value: propagation gathers the view, and re-gathers it in the
      // backward pass.
      const auto gathers = variables_.is_saved_view(reader.node) ? gathered(source, destination)
                                                                 : 0u;
      return gathers == 0
                 ? moved
                 : moved + price(link, sharded(link, source, destination, gathers), destination);
    }
    if (target.gradient) return cost_of_gradient(link, source, destination);
    if (!target.is_value) return price(link, source, destination);
    if (source == destination)
      return variables_.at(target.variable).states[option].shard.empty() ? 0 : kInfinity;
    return cost_of_state(link, source, destination, variables_.at(target.variable).states[option]);
  }

  // The cost of redistributing a value from its producer's placements to its state. A sharded value
  // may become whole only if the state saves the shard.
  double cost_of_state(const Link& link, int source, int destination, const ValueState& state) {
    const auto gathers = gathered(source, destination);
    const bool saved = graph::is_floating(graph_.type(link.value).dtype) &&
                       variables_.is_forward(link.value);
    const auto& from = numbers_.at(source);
    for (size_t k = 0; k < axes_.size(); ++k) {
      const bool gathered_here = (gathers >> k & 1) != 0;
      if (state.shard.empty()) {
        if (gathered_here && saved) return kInfinity;
        continue;
      }
      const bool saves_shard = state.shard[k] != state.placements[k];
      if (saves_shard != gathered_here || (saves_shard && from[axes_[k]] != state.shard[k]))
        return kInfinity;
    }
    return price(link, source, destination);
  }

  // A gradient has its parameter's placements on the planned axes, and may be Partial on the
  // others. Where the parameter is replicated the gradient is reduced once a step, in buckets. The
  // plan's microbatches may be unknown (0).
  double cost_of_gradient(const Link& link, int source, int destination) {
    auto now = numbers_.at(source), then = now;
    for (int a : axes_) {
      const auto& p = numbers_.at(destination)[a];
      then[a] = p;
      if (!p.is_replicate() || !now[a].is_partial()) now[a] = p;
    }
    const int between = numbers_.of(now), end = numbers_.of(then);
    return price(link, source, between) +
           price(link, between, end) / std::max(1.0, static_cast<double>(plan_.microbatches));
  }

  // Returns `destination` with the placements of `source` on these axes; `source` if that does not
  // divide the tensor.
  int sharded(const Link& link, int source, int destination, unsigned axes) {
    auto placements = numbers_.at(destination);
    for (size_t k = 0; k < axes_.size(); ++k) {
      if ((axes >> k & 1) != 0) placements[axes_[k]] = numbers_.at(source)[axes_[k]];
    }
    const bool divides = mesh::runs_divide(graph_.type(link.value).shape, placements, plan_.mesh);
    return divides ? numbers_.of(placements) : source;
  }

  std::vector<int> options_of(int variable) const {
    std::vector<int> options(variable < 0 ? 1 : variables_.at(variable).time.size());
    std::iota(options.begin(), options.end(), 0);
    return options;
  }

  // Adds the link's cost times its count. `add` takes positions in the options of its ends, and
  // the cost.
  template <class Add>
  void each(const Link& link, const std::vector<int>& from, const std::vector<int>& to, Add add) {
    std::vector<int> source_numbers, target_numbers;
    for (int option : from) source_numbers.push_back(numbers_.of(source_placements(link, option)));
    for (int option : to) target_numbers.push_back(numbers_.of(target_placements(link, option)));
    const bool same = link.source.variable == link.target.variable;
    for (size_t a = 0; a < from.size(); ++a) {
      for (size_t b = 0; b < to.size(); ++b) {
        if (!same || a == b)
          add(a, b, link.times * cost(link, source_numbers[a], target_numbers[b], to[b]));
      }
    }
  }

  [[noreturn]] void fail_large() const {
    fail("tensor_parallel",
         "{} axes together leave more than {} pairs of choices for this model: plan fewer of them "
         "together, and the others after them",
         axes_.size(), kMostEntries);
  }

  // Throws Error if the edges have too many entries, before any is priced.
  void check_size() const {
    std::set<std::pair<int, int>> edges;
    size_t entries = 0;
    for (const auto& link : link_list_) {
      const int from = link.source.variable, to = link.target.variable;
      if (from < 0 || to < 0 || from == to || !edges.emplace(from, to).second) continue;
      entries += variables_.at(from).time.size() * variables_.at(to).time.size();
      if (entries > kMostEntries) fail_large();
    }
  }

  void make_problem() {
    check_size();
    for (const auto& link : link_list_) {
      const int from = link.source.variable, to = link.target.variable;
      if (from >= 0 && to >= 0 && from != to) continue;
      auto& time = variables_.at(std::max(from, to)).time;
      each(link, options_of(from), options_of(to),
           [&](size_t a, size_t b, double cost) { time[std::max(a, b)] += cost; });
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
    for (const auto& link : link_list_) {
      const int from = link.source.variable, to = link.target.variable;
      if (from < 0 || to < 0 || from == to) continue;
      const auto [at, added] = edge_of.try_emplace({from, to}, problem_.edges.size());
      const size_t width = allowed_[to].size();
      if (added) {
        problem_.edges.push_back({from, to, std::vector<double>(allowed_[from].size() * width)});
      }
      auto& time = problem_.edges[at->second].time;
      each(link, allowed_[from], allowed_[to],
           [&](size_t a, size_t b, double cost) { time[a * width + b] += cost; });
    }
  }

  const Graph& graph_;
  const plan::Plan& plan_;
  const AssignmentOptions options_;
  const std::vector<int> axes_;
  const MatchedRules rules_;
  const Sharding base_;
  const ShardingOptions node_options_;
  const std::vector<size_t> representative_, first_readers_;
  Redistributor redistributor_;
  PlacementNumbers numbers_;
  AssignmentVariables variables_;
  Numbering links_, types_;
  std::unordered_map<uint64_t, double> prices_;
  std::vector<Link> link_list_;
  std::vector<std::vector<int>> allowed_;  // per variable: its options in the problem
  solve::AssignProblem problem_;
};

Assignment::Assignment(const Graph& graph, const plan::Plan& plan, std::vector<int> axes,
                       const AssignmentOptions& options)
    : impl_(std::make_unique<Impl>(graph, plan, std::move(axes), options)) {}
Assignment::~Assignment() = default;
const solve::AssignProblem& Assignment::problem() const { return impl_->problem(); }
std::vector<Placements> Assignment::placements(std::span<const int> choice) const {
  return impl_->placements(choice, false);
}
std::vector<Placements> Assignment::saved(std::span<const int> choice) const {
  return impl_->placements(choice, true);
}
GroupTimes Assignment::times(const std::vector<std::vector<int>>& solutions,
                             const std::vector<int>& groups) const {
  return impl_->times(solutions, groups);
}

solve::Result solve_assignment(const Assignment& assignment) {
  const auto& problem = assignment.problem();
  // The first option of every op and value is replicated on the planned axes.
  return solve::solve(problem, {.solver = "labels",
                                .time_limit = kMostSeconds,
                                .most_work = kMostWork,
                                .start = std::vector<int>(problem.ops.size(), 0)});
}

}  // namespace perigee::shard
