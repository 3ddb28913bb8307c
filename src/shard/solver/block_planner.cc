#include "shard/solver/block_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "shard/partition.h"
#include "shard/redistribute.h"
#include "shard/solver/repeated_blocks.h"
#include "solve/solve.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using mesh::Placements;

// Prices of a byte of memory, in bytes moved: at the lowest, memory only breaks ties of time; at
// the highest it outweighs almost all time.
constexpr double kLeastPrice = 1e-4, kMostPrice = 16;
// Numbers of further prices between these two at which shardings are searched, with saved and with recomputed activations.
constexpr int kMoreSaved = 4, kMoreRecomputed = 1;
constexpr double kSeconds = 20;  // time limit of one sharding
// Time limit of the choice of blocks' settings; past it the best so far is taken, with its bound.
constexpr double kBlockSeconds = 2;

// Contention: the fraction of overlapped communication that slows work, since both use the rank's memory.
constexpr double kContention = 0.02;

// The time that communication adds to the work that overlaps it.
double exposed(double moves, double work) {
  return std::max(0.0, moves - work) + kContention * std::min(moves, work);
}

// Relative gap at which the choice of blocks' settings stops: far below the model's error.
constexpr double kGap = 1e-4;

// A sharding of all blocks with its time, in bytes moved, and its memory.
struct Sharded {
  std::vector<int> solution;
  double time = 0, bytes = 0;
};

// An option of a block: the index of its sharding, and its setting.
struct BlockOption {
  int sharding = 0;
  BlockSetting block;
};

}  // namespace

class BlockPlanner::Impl {
 public:
  Impl(const Graph& graph, const plan::Plan& plan, std::vector<int> axes,
       const BlockPlanOptions& options)
      : graph_(graph), plan_(plan), axes_(std::move(axes)), options_(options) {
    find_groups();
    base_ = propagate(graph, plan).values;
    Assignment table(graph, plan, axes_, priced(kLeastPrice, false));
    find_shardings(table);
    std::vector<std::vector<int>> solutions;
    for (const auto& each : shardings_) {
      solutions.push_back(each.solution);
      const ValuePlacements placements{placed(table.placements(each.solution)),
                                       placed(table.saved(each.solution))};
      placements_.push_back(table.placements(each.solution));
      memory_.push_back(
          find_group_memory(graph, plan.mesh, groups_, scopes_.size(), placements, options.trains));
    }
    times_ = table.times(solutions, groups_);
    for (size_t g = 0; g < scopes_.size(); ++g) block_options_.push_back(options_of(g));
  }

  std::optional<BlockPlan> fit(std::optional<double> memory) const {
    const auto result = solve::solve(problem_of(memory),
                                     {.time_limit = kBlockSeconds, .gap = kGap});
    if (result.verdict == solve::Verdict::infeasible) return {};
    BlockPlan fitted{.cost = result.time, .memory = result.memory, .bound = result.lower_bound};
    std::vector<int> sharding;
    for (size_t g = 0; g < scopes_.size(); ++g) {
      const auto& option = block_options_[g][result.choice[g]];
      sharding.push_back(option.sharding);
      fitted.blocks.push_back(option.block);
    }
    fitted.placements = placements_of(sharding);
    for (const auto& input : graph_.inputs) {
      if (input.kind != graph::Input::Kind::parameter) continue;
      fitted.stored_with[input.name] = groups_[first_readers_[input.value.index]];
    }
    return fitted;
  }

  // Estimates each group separately.
  double least_memory() const {
    double resident = 0, saved = 0, optimizer = 0, transient = 0;
    for (size_t g = 0; g < scopes_.size(); ++g) {
      std::optional<solve::AssignOption> least;
      const auto sum = [](const solve::AssignOption& o) {
        return o.resident + std::max(o.saved, o.optimizer);
      };
      for (const auto& each : block_options_[g]) {
        const auto option = option_of(g, each);
        if (!least || sum(option) < sum(*least)) least = option;
      }
      resident += least->resident, saved += least->saved, optimizer += least->optimizer;
      transient = std::max(transient, least->transient);
    }
    return resident + std::max(saved, optimizer) + transient;
  }

 private:
  // Group 0 has the nodes outside blocks; blocks follow in graph order.
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

  AssignmentOptions priced(double price, bool recompute) const {
    auto options = options_.assignment;
    options.replicated_factor = 0;
    options.recompute = recompute;
    options.saved_byte = recompute ? 0 : price;
    options.parameter_byte = price * (2 + options_.state_share);
    return options;
  }

  // Extends placements to all axes; open becomes replicated.
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

  // Adds shardings on the lower convex hull of time and memory, found by prices between its ends.
  void find_shardings(const Assignment& table) {
    for (const bool recompute : {false, true}) {
      if (recompute && (!options_.recompute || scopes_.size() == 1)) continue;
      const auto fast = solved(table, kLeastPrice, recompute),
                 small = solved(table, kMostPrice, recompute);
      int more = recompute ? kMoreRecomputed : kMoreSaved;
      between(table, fast, small, recompute, more);
    }
  }

  void between(const Assignment& table, const Sharded& fast, const Sharded& small, bool recompute,
               int& more) {
    if (more == 0 || fast.bytes <= small.bytes || fast.time >= small.time) return;
    --more;
    const double price = (small.time - fast.time) / (fast.bytes - small.bytes);
    const auto middle = solved(table, price, recompute);
    if (middle.solution == fast.solution || middle.solution == small.solution) return;
    between(table, fast, middle, recompute, more);
    between(table, middle, small, recompute, more);
  }

  Sharded solved(const Assignment& table, double price, bool recompute) {
    const Assignment assignment(graph_, plan_, axes_, priced(price, recompute));
    const auto result = solve::solve(assignment.problem(), {.time_limit = kSeconds});
    if (result.verdict == solve::Verdict::infeasible) {
      fail("auto_sharding", "the solver found no way to run the model over the axes");
    }
    Sharded sharded{.solution = result.choice};
    const auto times = table.times({sharded.solution}, groups_);
    for (const auto& group : times.time) sharded.time += group[0];
    for (const auto& group : times.forward) sharded.time += recompute ? group[0] : 0;
    for (const auto& [ends, table] : times.between) sharded.time += table[0];
    const ValuePlacements placements{placed(table.placements(sharded.solution)),
                                     placed(table.saved(sharded.solution))};
    for (const auto& own : find_group_memory(graph_, plan_.mesh, groups_, scopes_.size(),
                                             placements, options_.trains)) {
      sharded.bytes += own.frozen + own.trained * (2 + options_.state_share) + own.read;
      if (!recompute) sharded.bytes += own.inner;
    }
    const auto known = std::ranges::find(shardings_, sharded.solution, &Sharded::solution);
    if (known == shardings_.end()) shardings_.push_back(sharded);
    return sharded;
  }

  // Returns the block's options without those that another option of the same sharding dominates.
  std::vector<BlockOption> options_of(size_t g) const {
    std::vector<BlockOption> list;
    for (int k = 0; k < static_cast<int>(shardings_.size()); ++k) {
      const auto& memory = memory_[k][g];
      std::vector<int> levels{0};
      const bool stores = options_.store && options_.storage_ranks > 1;
      if (stores && memory.trained + memory.frozen > 0) levels = {0, 1, 2, 3};
      std::vector<BlockOption> own;
      for (int level : levels) {
        own.push_back({k, {scopes_[g], level, false, false}});
        if (g == 0 || memory.inner == 0) continue;
        if (options_.recompute) own.push_back({k, {scopes_[g], level, true, false}});
        if (options_.offload) own.push_back({k, {scopes_[g], level, false, true}});
      }
      for (size_t i = 0; i < own.size(); ++i) {
        const bool dominated = std::ranges::any_of(own, [&](const BlockOption& other) {
          const auto j = static_cast<size_t>(&other - own.data());
          return j != i && dominates(option_of(g, other), option_of(g, own[i]), j < i);
        });
        if (!dominated) list.push_back(own[i]);
      }
    }
    return list;
  }

  // `first`: of equal ones the first is kept.
  static bool dominates(const solve::AssignOption& a, const solve::AssignOption& b, bool first) {
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

  solve::AssignOption option_of(size_t g, const BlockOption& chosen) const {
    const auto& memory = memory_[chosen.sharding][g];
    const auto& block = chosen.block;
    const double time = times_.time[g][chosen.sharding];
    const double forward = times_.forward[g][chosen.sharding];
    const double backward = time - forward;
    solve::AssignOption option{.time = time +
                                       exchange(memory, block.storage_level, forward, backward)};

    const double parts = options_.storage_ranks;
    const double stored = memory.trained + memory.frozen, gradients = memory.trained;
    const double states = options_.state_share * memory.trained;
    option.resident = stored / (block.storage_level >= 3 ? parts : 1) +
                      states / (block.storage_level >= 1 ? parts : 1);
    // With one microbatch gradients appear as saved activations are freed.
    const double kept_gradients = gradients / (block.storage_level >= 2 ? parts : 1);
    (options_.microbatches > 1 ? option.resident : option.optimizer) += kept_gradients;
    option.transient = memory.working;
    // The next unit is prefetched while one computes.
    if (block.storage_level >= 3) option.transient += 2 * stored;
    if (block.storage_level >= 2) option.transient += gradients;

    option.saved = memory.read;
    if (block.recompute) {
      option.time += forward;
      option.transient += memory.inner;
    } else if (block.offload) {
      const double copy = options_.host_byte * memory.inner;
      option.time += exposed(copy, forward) + exposed(copy, backward);
      option.transient += 2 * memory.inner;
    } else {
      option.saved += memory.inner;
    }
    return option;
  }

  // Exposed communication of the ranks that share parameter storage, or average gradients.
  double exchange(const GroupMemory& memory, int level, double forward, double backward) const {
    if (options_.storage_ranks <= 1) return 0;
    const double share = (options_.storage_ranks - 1) / options_.storage_ranks *
                         options_.storage_byte;
    const double latency = Redistributor::kLatency;
    const auto moved = [&](double bytes) { return bytes > 0 ? latency + share * bytes : 0; };
    const double gather = moved(memory.trained + memory.frozen), reduce = moved(memory.trained);
    const double steps = options_.microbatches;
    switch (level) {
      case 0:
        return exposed(2 * reduce - latency, backward) / steps;
      case 1:
        return (exposed(reduce, backward) + moved(memory.trained)) / steps;
      case 2:
        return exposed(reduce, backward) + moved(memory.trained) / steps;
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
      for (const auto& option : block_options_[g]) op.options.push_back(option_of(g, option));
    }
    const size_t count = shardings_.size();
    for (const auto& [ends, table] : times_.between) {
      const auto &from = block_options_[ends.first], &to = block_options_[ends.second];
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

  std::vector<Placements> placements_of(const std::vector<int>& sharding) const {
    std::vector<Placements> placements;
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const auto producer = graph_.values[v].producer;
      const auto node = producer < 0 ? first_readers_[v] : static_cast<size_t>(producer);
      placements.push_back(placements_[sharding[groups_[node]]][v]);
    }
    return placements;
  }

  const Graph& graph_;
  const plan::Plan& plan_;
  const std::vector<int> axes_;
  const BlockPlanOptions options_;
  std::vector<std::string> scopes_;    // per group
  std::vector<int> groups_;            // per node
  std::vector<size_t> first_readers_;  // per value: nodes
  std::vector<Placements> base_;       // per value: placements before planning
  std::vector<Sharded> shardings_;
  std::vector<std::vector<Placements>> placements_;  // [sharding][value]
  std::vector<std::vector<GroupMemory>> memory_;     // [sharding][group]
  GroupTimes times_;
  std::vector<std::vector<BlockOption>> block_options_;  // per group
};

BlockPlanner::BlockPlanner(const Graph& graph, const plan::Plan& plan, std::vector<int> axes,
                           const BlockPlanOptions& options)
    : impl_(std::make_unique<Impl>(graph, plan, std::move(axes), options)) {}
BlockPlanner::~BlockPlanner() = default;
std::optional<BlockPlan> BlockPlanner::fit(std::optional<double> memory) const {
  return impl_->fit(memory);
}
double BlockPlanner::least_memory() const { return impl_->least_memory(); }

}  // namespace perigee::shard
