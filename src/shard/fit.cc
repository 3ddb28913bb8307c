#include "shard/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "shard/alike.h"
#include "shard/partition.h"
#include "shard/redistribute.h"
#include "solve/solve.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using mesh::Placements;

// Prices of a byte that is held, in bytes moved: at the first memory only decides between ways that
// take as long, at the last there is hardly anything else.
constexpr double kLeastPrice = 1e-4, kMostPrice = 16;
// Shardings between those two that are looked for, of blocks that run once and of those that run
// again.
constexpr int kMoreOnce = 4, kMoreAgain = 1;
constexpr double kSeconds = 20;  // for one sharding
// For the choice of the blocks; then the best so far is taken, with its bound.
constexpr double kBlockSeconds = 2;

// The share of what is moved beside work that slows it: both read and write the rank's memory.
constexpr double kBeside = 0.02;

// What moving adds to the work that it goes beside.
double exposed(double moves, double work) {
  return std::max(0.0, moves - work) + kBeside * std::min(moves, work);
}

// What is not told apart in the choice of the blocks, of its cost: far less than a count is off by.
constexpr double kGap = 1e-4;

// A sharding of all blocks, with what it takes.
struct Sharded {
  std::vector<int> solution;
  double time = 0, bytes = 0;
};

// What a block takes.
struct Take {
  int sharding = 0;
  BlockFit block;
};

}  // namespace

class Fitting::Impl {
 public:
  Impl(const Graph& graph, const plan::Plan& plan, std::vector<int> axes, const FitOptions& options)
      : graph_(graph), plan_(plan), axes_(std::move(axes)), options_(options) {
    find_groups();
    base_ = propagate(graph, plan).values;
    Assignment table(graph, plan, axes_, priced(kLeastPrice, false));
    find_shardings(table);
    std::vector<std::vector<int>> solutions;
    for (const auto& each : shardings_) {
      solutions.push_back(each.solution);
      const Lying lying{placed(table.placements(each.solution)), placed(table.kept(each.solution))};
      lying_.push_back(table.placements(each.solution));
      holds_.push_back(
          find_holds(graph, plan.mesh, groups_, scopes_.size(), lying, options.trains));
    }
    times_ = table.times(solutions, groups_);
    for (size_t g = 0; g < scopes_.size(); ++g) takes_.push_back(takes_of(g));
  }

  std::optional<Fitted> fit(std::optional<double> memory) const {
    const auto result =
        solve::solve(problem_of(memory), {.time_limit = kBlockSeconds, .gap = kGap});
    if (result.verdict == solve::Verdict::infeasible) return {};
    Fitted fitted{.cost = result.time, .memory = result.memory, .bound = result.lower_bound};
    std::vector<int> sharding;
    for (size_t g = 0; g < scopes_.size(); ++g) {
      const auto& take = takes_[g][result.choice[g]];
      sharding.push_back(take.sharding);
      fitted.blocks.push_back(take.block);
    }
    fitted.lying = lying_of(sharding);
    for (const auto& input : graph_.inputs) {
      if (input.kind != graph::Input::Kind::parameter) continue;
      fitted.stored_with[input.name] = groups_[first_readers_[input.value.index]];
    }
    return fitted;
  }

  // All groups, each by itself.
  double least_memory() const {
    double resident = 0, saved = 0, optimizer = 0, transient = 0;
    for (size_t g = 0; g < scopes_.size(); ++g) {
      std::optional<solve::AssignOption> least;
      const auto sum = [](const solve::AssignOption& o) {
        return o.resident + std::max(o.saved, o.optimizer);
      };
      for (const auto& take : takes_[g]) {
        const auto option = option_of(g, take);
        if (!least || sum(option) < sum(*least)) least = option;
      }
      resident += least->resident, saved += least->saved, optimizer += least->optimizer;
      transient = std::max(transient, least->transient);
    }
    return resident + std::max(saved, optimizer) + transient;
  }

 private:
  // Blocks in the order of the graph, behind what is in none.
  void find_groups() {
    std::map<std::string, int, std::less<>> known{{"", 0}};
    scopes_ = {""};
    for (const auto& node : graph_.nodes) {
      const std::string scope(block_of(node.scope));
      const auto [at, added] = known.try_emplace(scope, static_cast<int>(scopes_.size()));
      if (added) scopes_.push_back(scope);
      groups_.push_back(at->second);
    }
    first_readers_ = first_readers(graph_);
  }

  AssignmentOptions priced(double price, bool again) const {
    auto options = options_.assignment;
    options.whole = 0;
    options.again = again;
    options.kept_byte = again ? 0 : price;
    options.held_byte = price * (2 + options_.state_share);
    return options;
  }

  // On all axes; open is whole.
  std::vector<Placements> placed(const std::vector<Placements>& on_axes) const {
    auto all = base_;
    for (size_t v = 0; v < all.size(); ++v) {
      for (size_t k = 0; k < axes_.size(); ++k) {
        const auto& p = on_axes[v][k];
        all[v][axes_[k]] = p.is_open() ? mesh::Placement::replicate() : p;
      }
    }
    return all;
  }

  // Adds the shardings on the lower hull of time and memory, as the prices between show them.
  void find_shardings(const Assignment& table) {
    for (const bool again : {false, true}) {
      if (again && (!options_.again || scopes_.size() == 1)) continue;
      const auto fast = solved(table, kLeastPrice, again), small = solved(table, kMostPrice, again);
      int more = again ? kMoreAgain : kMoreOnce;
      between(table, fast, small, again, more);
    }
  }

  void between(const Assignment& table, const Sharded& fast, const Sharded& small, bool again,
               int& more) {
    if (more == 0 || fast.bytes <= small.bytes || fast.time >= small.time) return;
    --more;
    const double price = (small.time - fast.time) / (fast.bytes - small.bytes);
    const auto middle = solved(table, price, again);
    if (middle.solution == fast.solution || middle.solution == small.solution) return;
    between(table, fast, middle, again, more);
    between(table, middle, small, again, more);
  }

  Sharded solved(const Assignment& table, double price, bool again) {
    const Assignment assignment(graph_, plan_, axes_, priced(price, again));
    const auto result = solve::solve(assignment.problem(), {.time_limit = kSeconds});
    if (result.verdict == solve::Verdict::infeasible) {
      fail("auto_sharding", "the solver found no way to run the model over the axes");
    }
    Sharded sharded{.solution = result.choice};
    const auto times = table.times({sharded.solution}, groups_);
    for (const auto& group : times.time) sharded.time += group[0];
    for (const auto& group : times.forward) sharded.time += again ? group[0] : 0;
    for (const auto& [ends, table] : times.between) sharded.time += table[0];
    const Lying lying{placed(table.placements(sharded.solution)),
                      placed(table.kept(sharded.solution))};
    for (const auto& own :
         find_holds(graph_, plan_.mesh, groups_, scopes_.size(), lying, options_.trains)) {
      sharded.bytes += own.frozen + own.trained * (2 + options_.state_share) + own.read;
      if (!again) sharded.bytes += own.inner;
    }
    const auto known = std::ranges::find(shardings_, sharded.solution, &Sharded::solution);
    if (known == shardings_.end()) shardings_.push_back(sharded);
    return sharded;
  }

  // All that a block may take, but for what costs and holds no less than another of its sharding.
  std::vector<Take> takes_of(size_t g) const {
    std::vector<Take> list;
    for (int k = 0; k < static_cast<int>(shardings_.size()); ++k) {
      const auto& holds = holds_[k][g];
      std::vector<int> levels{0};
      const bool stores = options_.store && options_.parts > 1;
      if (stores && holds.trained + holds.frozen > 0) levels = {0, 1, 2, 3};
      std::vector<Take> own;
      for (int level : levels) {
        own.push_back({k, {scopes_[g], level, false, false}});
        if (g == 0 || holds.inner == 0) continue;
        if (options_.again) own.push_back({k, {scopes_[g], level, true, false}});
        if (options_.offload) own.push_back({k, {scopes_[g], level, false, true}});
      }
      for (size_t i = 0; i < own.size(); ++i) {
        const bool beaten = std::ranges::any_of(own, [&](const Take& other) {
          const auto j = static_cast<size_t>(&other - own.data());
          return j != i && beats(option_of(g, other), option_of(g, own[i]), j < i);
        });
        if (!beaten) list.push_back(own[i]);
      }
    }
    return list;
  }

  // `first`: of equal ones this one stays.
  static bool beats(const solve::AssignOption& a, const solve::AssignOption& b, bool first) {
    constexpr double solve::AssignOption::*kParts[] = {
        &solve::AssignOption::time, &solve::AssignOption::resident, &solve::AssignOption::saved,
        &solve::AssignOption::optimizer, &solve::AssignOption::transient};
    bool less = first;
    for (auto part : kParts) {
      if (a.*part > b.*part) return false;
      less = less || a.*part < b.*part;
    }
    return less;
  }

  solve::AssignOption option_of(size_t g, const Take& take) const {
    const auto& holds = holds_[take.sharding][g];
    const auto& block = take.block;
    const double time = times_.time[g][take.sharding], forward = times_.forward[g][take.sharding];
    const double backward = time - forward;
    solve::AssignOption option{.time = time + exchange(holds, block.level, forward, backward)};

    const double parts = options_.parts;
    const double stored = holds.trained + holds.frozen, gradients = holds.trained;
    const double states = options_.state_share * holds.trained;
    option.resident =
        stored / (block.level >= 3 ? parts : 1) + states / (block.level >= 1 ? parts : 1);
    // Gradients of one microbatch come as what they are made of goes.
    const double kept_gradients = gradients / (block.level >= 2 ? parts : 1);
    (options_.microbatches > 1 ? option.resident : option.optimizer) += kept_gradients;
    option.transient = holds.working;
    // The next unit is gathered while one is at work.
    if (block.level >= 3) option.transient += 2 * stored;
    if (block.level >= 2) option.transient += gradients;

    option.saved = holds.read;
    if (block.again) {
      option.time += forward;
      option.transient += holds.inner;
    } else if (block.offload) {
      const double copy = options_.host_byte * holds.inner;
      option.time += exposed(copy, forward) + exposed(copy, backward);
      option.transient += 2 * holds.inner;
    } else {
      option.saved += holds.inner;
    }
    return option;
  }

  // What ranks that store parts, or the whole, move between each other, where nothing hides it.
  double exchange(const Holds& holds, int level, double forward, double backward) const {
    if (options_.parts <= 1) return 0;
    const double share = (options_.parts - 1) / options_.parts * options_.part_byte;
    const double latency = Redistributor::kLatency;
    const auto moved = [&](double bytes) { return bytes > 0 ? latency + share * bytes : 0; };
    const double gather = moved(holds.trained + holds.frozen), reduce = moved(holds.trained);
    const double steps = options_.microbatches;
    switch (level) {
      case 0:
        return exposed(2 * reduce - latency, backward) / steps;
      case 1:
        return (exposed(reduce, backward) + moved(holds.trained)) / steps;
      case 2:
        return exposed(reduce, backward) + moved(holds.trained) / steps;
      default:
        return exposed(gather, forward) + exposed(gather + reduce, backward);
    }
  }

  solve::AssignProblem problem_of(std::optional<double> memory) const {
    solve::AssignProblem problem;
    problem.memory_limit = memory;
    problem.transient_count = 1;
    for (size_t g = 0; g < scopes_.size(); ++g) {
      auto& op = problem.ops.emplace_back();
      op.name = scopes_[g].empty() ? "the rest" : scopes_[g];
      for (const auto& take : takes_[g]) op.options.push_back(option_of(g, take));
    }
    const size_t count = shardings_.size();
    for (const auto& [ends, table] : times_.between) {
      const auto &from = takes_[ends.first], &to = takes_[ends.second];
      solve::AssignEdge edge{ends.first, ends.second, {}};
      for (const auto& a : from) {
        for (const auto& b : to) {
          edge.time.push_back(table[static_cast<size_t>(a.sharding) * count + b.sharding]);
        }
      }
      problem.edges.push_back(std::move(edge));
    }
    return problem;
  }

  std::vector<Placements> lying_of(const std::vector<int>& sharding) const {
    std::vector<Placements> lying;
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const auto producer = graph_.values[v].producer;
      const auto node = producer < 0 ? first_readers_[v] : static_cast<size_t>(producer);
      lying.push_back(lying_[sharding[groups_[node]]][v]);
    }
    return lying;
  }

  const Graph& graph_;
  const plan::Plan& plan_;
  const std::vector<int> axes_;
  const FitOptions options_;
  std::vector<std::string> scopes_;    // per group
  std::vector<int> groups_;            // per node
  std::vector<size_t> first_readers_;  // per value: nodes
  std::vector<Placements> base_;       // per value: without what is planned
  std::vector<Sharded> shardings_;
  std::vector<std::vector<Placements>> lying_;  // [sharding][value]
  std::vector<std::vector<Holds>> holds_;       // [sharding][group]
  GroupTimes times_;
  std::vector<std::vector<Take>> takes_;  // per group
};

Fitting::Fitting(const Graph& graph, const plan::Plan& plan, std::vector<int> axes,
                 const FitOptions& options)
    : impl_(std::make_unique<Impl>(graph, plan, std::move(axes), options)) {}
Fitting::~Fitting() = default;
std::optional<Fitted> Fitting::fit(std::optional<double> memory) const {
  return impl_->fit(memory);
}
double Fitting::least_memory() const { return impl_->least_memory(); }

}  // namespace perigee::shard
