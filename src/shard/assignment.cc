#include "shard/assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/error.h"
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
// Of the tables of all edges: some times what two axes of a model have, since each must be priced.
constexpr size_t kMostEntries = 5'000'000;

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
  Impl(const Graph& graph, const plan::Plan& plan, std::vector<int> axes,
       const AssignmentOptions& options)
      : graph_(graph),
        plan_(plan),
        options_(options),
        axes_(std::move(axes)),
        sites_(graph, plan),
        base_(propagate(graph, plan)),
        ways_(graph, plan, sites_, base_, axes_, options.prices),
        stands_for_(find_alike(graph, ways_, period_of(graph))),
        first_readers_(first_readers(graph)),
        redistributor_(plan.mesh, plan.pipeline.axis, plan.forbidden),
        variables_({graph_, plan_, axes_, options_, base_, ways_, stands_for_}, redistributor_,
                   numbers_) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) connect(n);
    for (const auto& output : graph.outputs) connect(output);
    make_problem();
  }

  const solve::AssignProblem& problem() const { return problem_; }

  // `kept`: of what is kept for the backward pass.
  std::vector<Placements> placements(std::span<const int> choice, bool kept) const {
    std::vector<Placements> lying(graph_.values.size());
    for (size_t i = 0; i < lying.size(); ++i) {
      const ValueId v{static_cast<int32_t>(i)};
      const int settled = variables_.of_value(v);
      const auto producer = graph_.values[i].producer;
      if (producer >= 0 && !ways_.depends(producer)) {
        lying[i].assign(axes_.size(), Placement::open());
      } else if (settled >= 0) {
        const auto& state = variables_.at(settled).states[allowed_[settled][choice[settled]]];
        lying[i] = kept ? state.kept() : state.lies;
      } else if (producer >= 0) {
        const int op = variables_.of_node(producer);
        const auto& way = ways_.of(variables_.at(op).node)[allowed_[op][choice[op]]];
        lying[i] = variables_.on_axes(way.choice.results[graph_.values[i].result]);
      } else {
        lying[i] = variables_.on_axes(base_.values[i]);
      }
    }
    return lying;
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
        add(groups[n], s, ways_.of(n)[option(variables_.of_node(n), s)].choice.cost, forward);
      }
    }
    for (const auto& link : counted_) {
      std::map<std::pair<int, int>, double> often;
      for (const auto& [from, to] : link.ends) often[{groups[from], groups[to]}] += 1;
      std::vector<int> heres, theres;
      for (size_t s = 0; s < count; ++s) {
        heres.push_back(numbers_.of(lies(link, option(link.source.variable, s))));
        theres.push_back(numbers_.of(wanted(link, option(link.target.variable, s))));
      }
      const auto time = [&](size_t a, size_t b) {
        return cost(link, heres[a], theres[b], option(link.target.variable, b));
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
      count(v, {place_of(v), n}, source_of(v, node.phase),
            {.variable = variables_.of_node(n),
             .operand = static_cast<int>(operands.size()),
             .same_as = same});
      operands.push_back(v);
    });
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (!v.defined() || variables_.of_value(v) < 0) continue;
      count(v, {n, n}, {.variable = variables_.of_node(n), .result = static_cast<int>(r)},
            {.variable = variables_.of_value(v), .settles = true});
      if (variables_.of_value_again(v) < 0) continue;
      count(v, {n, n}, {.variable = variables_.of_value(v), .piece = true},
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
      return count(v, {place_of(v), place_of(owner->value)}, source_of(v, phase),
                   {.variable = variables_.of_value(owner->value), .gradient = gradient});
    }
    if (!owner) return;
    count(v, {place_of(v), place_of(v)}, source_of(v, phase),
          {.gradient = gradient, .fixed = numbers_.of(base_.values[owner->value.index])});
  }

  // The node in whose group a value is: which makes it, or reads it first.
  size_t place_of(ValueId v) const {
    const auto producer = graph_.values[v.index].producer;
    if (producer >= 0) return static_cast<size_t>(producer);
    return first_readers_[v.index];
  }

  // As often as it happens; `ends`: nodes, in whose groups.
  void count(ValueId v, std::pair<size_t, size_t> ends, const Source& source,
             const Target& target) {
    const bool forward = graph_.nodes[ends.second].phase == Phase::forward && !target.gradient;
    Key key;
    for (int part :
         {source.variable, source.result, int{source.piece}, source.fixed, target.variable,
          target.operand, target.same_as, int{target.settles}, int{target.gradient}, target.fixed,
          numbers_.of(base_.values[v.index]), int{forward}}) {
      key.put(part);
    }
    const auto& type = graph_.type(v);
    Key of_type;
    of_type.put(static_cast<int64_t>(type.dtype));
    for (auto size : type.shape) of_type.put(size);
    key.put(of_type.bytes());
    const auto [number, added] = links_.of(key.bytes());
    if (added) {
      counted_.push_back({v, source, target, 0, types_.of(of_type.bytes()).first, forward, {}});
    }
    counted_[number].times += forward ? variables_.runs_of(ends.second) : 1;
    counted_[number].ends.push_back(ends);
  }

  struct Link {
    ValueId value;
    Source source;
    Target target;
    double times;
    int type = 0;  // a number
    bool forward = false;
    std::vector<std::pair<size_t, size_t>> ends;  // nodes, in whose groups it happens
  };

  Placements lies(const Link& link, int option) const {
    const auto& source = link.source;
    if (source.fixed >= 0) return numbers_.at(source.fixed);
    const auto& variable = variables_.at(source.variable);
    if (source.result >= 0) {
      return ways_.of(variable.node)[option].choice.results[source.result];
    }
    const auto& state = variable.states[option];
    return variables_.placed(link.value, source.piece ? state.kept() : state.lies);
  }

  Placements wanted(const Link& link, int option) const {
    const auto& target = link.target;
    if (target.fixed >= 0) return numbers_.at(target.fixed);
    const auto& variable = variables_.at(target.variable);
    if (target.operand >= 0) {
      return ways_.of(variable.node)[option].choice.operands[target.operand];
    }
    return variables_.placed(link.value, variable.states[option].lies);
  }

  // The price of a path, of the link's value, between numbers of placements.
  double price(const Link& link, int here, int there) {
    if (here == there) return 0;
    const auto key = static_cast<uint64_t>(link.type) << 40 | static_cast<uint64_t>(here) << 20 |
                     static_cast<uint64_t>(there);
    const auto [at, added] = prices_.try_emplace(key, 0.0);
    if (added) {
      at->second =
          redistributor_.path(graph_.type(link.value), numbers_.at(here), numbers_.at(there)).cost;
    }
    return at->second;
  }

  // Axes that are planned on which the value is sharded here and whole there, as bits of their
  // order.
  unsigned gathered(int here, int there) const {
    const auto &from = numbers_.at(here), &to = numbers_.at(there);
    unsigned axes = 0;
    for (size_t k = 0; k < axes_.size(); ++k) {
      if (from[axes_[k]].is_shard() && to[axes_[k]].is_replicate()) axes |= 1u << k;
    }
    return axes;
  }

  // What it costs to bring the link's value from `here` to `there` (numbers of placements) if its
  // target takes the option `to`.
  double cost(const Link& link, int here, int there, int to) {
    const auto& target = link.target;
    if (target.operand >= 0) {
      const auto& reader = variables_.at(target.variable);
      const auto& choice = ways_.of(reader.node)[to].choice;
      if (target.same_as >= 0 &&
          choice.operands[target.same_as] == choice.operands[target.operand]) {
        return 0;
      }
      const double moved = price(link, here, there);
      // A view of what is gathered: propagation gathers the view, and again in the backward pass.
      const auto gathers = variables_.is_kept_view(reader.node) ? gathered(here, there) : 0u;
      return gathers == 0 ? moved : moved + price(link, sharded(link, here, there, gathers), there);
    }
    if (target.gradient) return cost_of_gradient(link, here, there);
    if (!target.settles) return price(link, here, there);
    if (here == there)
      return variables_.at(target.variable).states[to].piece.empty() ? 0 : kInfinity;
    return settling(link, here, there, variables_.at(target.variable).states[to]);
  }

  // A value that its node has made comes to lie in its state: whole where it was sharded only where
  // the state has the piece.
  double settling(const Link& link, int here, int there, const State& state) {
    const auto gathers = gathered(here, there);
    const bool keeps =
        graph::is_floating(graph_.type(link.value).dtype) && variables_.is_forward(link.value);
    const auto& from = numbers_.at(here);
    for (size_t k = 0; k < axes_.size(); ++k) {
      const bool again = (gathers >> k & 1) != 0;
      if (state.piece.empty()) {
        if (again && keeps) return kInfinity;
        continue;
      }
      const bool pieces = state.piece[k] != state.lies[k];
      if (pieces != again || (pieces && from[axes_[k]] != state.piece[k])) return kInfinity;
    }
    return price(link, here, there);
  }

  // A gradient lies as its parameter on the axes that are planned; on the others it may be Partial.
  // Where the parameter is whole it is reduced once a step, in buckets. While the plan is made its
  // microbatches may be unknown (0).
  double cost_of_gradient(const Link& link, int here, int there) {
    auto now = numbers_.at(here), then = now;
    for (int a : axes_) {
      const auto& p = numbers_.at(there)[a];
      then[a] = p;
      if (!p.is_replicate() || !now[a].is_partial()) now[a] = p;
    }
    const int between = numbers_.of(now), end = numbers_.of(then);
    return price(link, here, between) +
           price(link, between, end) / std::max(1.0, static_cast<double>(plan_.microbatches));
  }

  // `there`, on these axes as `here`; all as `here` where it cannot be cut so.
  int sharded(const Link& link, int here, int there, unsigned axes) {
    auto placements = numbers_.at(there);
    for (size_t k = 0; k < axes_.size(); ++k) {
      if ((axes >> k & 1) != 0) placements[axes_[k]] = numbers_.at(here)[axes_[k]];
    }
    const bool divides = mesh::runs_divide(graph_.type(link.value).shape, placements, plan_.mesh);
    return divides ? numbers_.of(placements) : here;
  }

  std::vector<int> options_of(int variable) const {
    std::vector<int> options(variable < 0 ? 1 : variables_.at(variable).time.size());
    std::iota(options.begin(), options.end(), 0);
    return options;
  }

  // Adds what the link costs, as often as it happens: `add` takes positions in the options of its
  // ends.
  template <class Add>
  void each(const Link& link, const std::vector<int>& from, const std::vector<int>& to, Add add) {
    std::vector<int> heres, theres;
    for (int option : from) heres.push_back(numbers_.of(lies(link, option)));
    for (int option : to) theres.push_back(numbers_.of(wanted(link, option)));
    const bool same = link.source.variable == link.target.variable;
    for (size_t a = 0; a < from.size(); ++a) {
      for (size_t b = 0; b < to.size(); ++b) {
        if (!same || a == b) add(a, b, link.times * cost(link, heres[a], theres[b], to[b]));
      }
    }
  }

  [[noreturn]] void fail_large() const {
    fail("tensor_parallel",
         "{} axes together leave more than {} pairs of choices for this model: plan fewer of them "
         "together, and the others behind them",
         axes_.size(), kMostEntries);
  }

  // Before anything is priced.
  void check_size() const {
    std::set<std::pair<int, int>> edges;
    size_t entries = 0;
    for (const auto& link : counted_) {
      const int from = link.source.variable, to = link.target.variable;
      if (from < 0 || to < 0 || from == to || !edges.emplace(from, to).second) continue;
      entries += variables_.at(from).time.size() * variables_.at(to).time.size();
      if (entries > kMostEntries) fail_large();
    }
  }

  void make_problem() {
    check_size();
    for (const auto& link : counted_) {
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
    for (const auto& link : counted_) {
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
  const SiteTable sites_;
  const Sharding base_;
  const Ways ways_;
  const std::vector<size_t> stands_for_, first_readers_;
  Redistributor redistributor_;
  PlacementNumbers numbers_;
  Variables variables_;
  Numbering links_, types_;
  std::unordered_map<uint64_t, double> prices_;
  std::vector<Link> counted_;
  std::vector<std::vector<int>> allowed_;  // per variable: options of the problem
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
std::vector<Placements> Assignment::kept(std::span<const int> choice) const {
  return impl_->placements(choice, true);
}
GroupTimes Assignment::times(const std::vector<std::vector<int>>& solutions,
                             const std::vector<int>& groups) const {
  return impl_->times(solutions, groups);
}

}  // namespace perigee::shard
