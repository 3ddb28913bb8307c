#include "shard/solver/submesh_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
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
// Numbers of further prices between these two at which shardings are searched, with saved and with
// recomputed activations.
constexpr int kMoreSaved = 4, kMoreRecomputed = 1;
// Time limits of the choice of blocks' settings. After the first one the best settings so far are
// taken, with their bound; if there are none yet, the solver starts again with the second limit.
constexpr double kBlockSeconds = 2, kMostBlockSeconds = 120;

// Contention: the fraction of overlapped communication that slows work, since both use the same
// memory of the rank.
constexpr double kContention = 0.02;

// The time that communication adds to the work that overlaps it.
double exposed(double moves, double work) {
  return std::max(0.0, moves - work) + kContention * std::min(moves, work);
}

// Cost of an option from which no path leads to another stage's: more than any cost.
constexpr double kForbidden = 1e60;

// Relative gap at which the choice of blocks' settings stops: far below the model's error.
constexpr double kGap = 1e-4;

solve::Result choose_blocks(const solve::AssignProblem& problem) {
  const auto result = solve::solve_in_time(problem, {.time_limit = kBlockSeconds, .gap = kGap});
  if (result.verdict != solve::Verdict::unknown) return result;
  return solve::solve(problem, {.time_limit = kMostBlockSeconds, .gap = kGap});
}

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

class SubmeshPlanner::Impl {
 public:
  Impl(const Graph& graph, const plan::Plan& plan, std::vector<int> axes,
       const BlockPlanOptions& options)
      : graph_(graph),
        plan_(plan),
        axes_(std::move(axes)),
        options_(options),
        storage_ranks_(options.storage_axis.empty()
                           ? 1
                           : static_cast<double>(plan.mesh.size_of(options.storage_axis))) {
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
          find_group_memory(graph, plan.mesh, groups_, stages_, placements, options.trains));
    }
    times_ = table.times(solutions, groups_);
    for (size_t g = 0; g < scopes_.size(); ++g) block_options_.push_back(options_of(g));
  }

  std::optional<StageChoice> fit(const StageRange& range, std::optional<double> memory,
                                 std::span<const StageChoice* const> decided) const {
    const auto groups = groups_of(range);
    auto problem = problem_of(groups, range.in_flight, memory);
    const bool crosses = add_crossings(problem, groups, decided);
    const auto result = choose_blocks(problem);
    if (result.verdict == solve::Verdict::infeasible || result.time >= kForbidden) return {};
    StageChoice choice{
        .range = range, .cost = result.time, .memory = result.memory, .bound = result.lower_bound};
    if (crosses)
      choice.bound = choose_blocks(problem_of(groups, range.in_flight, memory)).lower_bound;
    for (size_t i = 0; i < groups.size(); ++i) {
      choice.options[groups[i]] = result.choice[i];
      const auto& option = problem.ops[i].options[result.choice[i]];
      choice.transient = std::max(choice.transient, option.transient);
    }
    return choice;
  }

  void write(const StageChoice& choice, const std::vector<int>& axes, BlockPlan& plan) const {
    std::map<int, int> block;  // by group: index into plan.blocks
    for (const auto& [group, option] : choice.options) {
      block[group] = static_cast<int>(plan.blocks.size());
      plan.blocks.push_back(block_options_[group][option].block);
    }
    for (const auto& input : graph_.inputs) {
      if (input.kind != graph::Input::Kind::parameter) continue;
      const auto own = block.find(groups_[first_readers_[input.value.index]]);
      if (own != block.end()) plan.stored_with[input.name] = own->second;
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const auto producer = graph_.values[v].producer;
      const int group = groups_[producer < 0 ? first_readers_[v] : static_cast<size_t>(producer)];
      const auto own = choice.options.find(group);
      if (own == choice.options.end()) continue;
      const auto& placed = placements_[block_options_[group][own->second].sharding][v];
      plan.stage_of[v] = choice.range.first;
      auto& placements = plan.placements[v];
      placements.assign(axes.size(), mesh::Placement::replicate());
      for (size_t k = 0; k < axes_.size(); ++k) {
        if (plan_.mesh.axes[axes_[k]].size == 1) continue;
        placements[std::ranges::find(axes, axes_[k]) - axes.begin()] = placed[k];
      }
    }
  }

  // Estimates each group separately.
  double least_memory(const StageRange& range) const {
    double resident = 0, saved = 0, optimizer = 0, transient = 0;
    for (const int g : groups_of(range)) {
      std::optional<solve::AssignOption> least;
      const auto sum = [](const solve::AssignOption& o) {
        return o.resident + std::max(o.saved, o.optimizer);
      };
      for (const auto& each : block_options_[g]) {
        const auto option = option_of(g, each, range.in_flight);
        if (!least || sum(option) < sum(*least)) least = option;
      }
      resident += least->resident, saved += least->saved, optimizer += least->optimizer;
      transient = std::max(transient, least->transient);
    }
    return resident + std::max(saved, optimizer) + transient;
  }

 private:
  // A group has a stage's nodes of one block, or those outside blocks; in graph order.
  void find_groups() {
    std::map<std::pair<int, std::string>, int> known;
    std::map<std::string, int> stage_of_block;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const std::string scope(block_of(graph_.nodes[n].scope));
      const int stage = options_.stages.empty() ? 0 : options_.stages[n];
      const auto [at, added] = known.try_emplace({stage, scope}, static_cast<int>(scopes_.size()));
      if (added) {
        scopes_.push_back(scope);
        stages_.push_back(stage);
      }
      groups_.push_back(at->second);
      if (scope.empty()) continue;
      const auto [first, fresh] = stage_of_block.try_emplace(scope, stage);
      if (!fresh && first->second != stage) cut_blocks_.insert(scope);
    }
    first_readers_ = first_readers(graph_);
  }

  std::vector<int> groups_of(const StageRange& range) const {
    std::vector<int> groups;
    for (size_t g = 0; g < scopes_.size(); ++g) {
      if (stages_[g] >= range.first && stages_[g] <= range.last)
        groups.push_back(static_cast<int>(g));
    }
    return groups;
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
      if (recompute && (!(options_.recompute || options_.recompute_all) || !has_blocks())) continue;
      const auto fast = solved(table, kLeastPrice, recompute),
                 small = solved(table, kMostPrice, recompute);
      int more = recompute ? kMoreRecomputed : kMoreSaved;
      between(table, fast, small, recompute, more);
    }
  }

  bool has_blocks() const {
    return std::ranges::any_of(scopes_, [](const auto& scope) { return !scope.empty(); });
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
    const auto result = solve_assignment(assignment);
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
    for (const auto& own :
         find_group_memory(graph_, plan_.mesh, groups_, stages_, placements, options_.trains)) {
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
      const bool stores = options_.store && storage_ranks_ > 1;
      // A block of which several stages have a part cannot be recomputed or offloaded as one.
      const bool whole = !scopes_[g].empty() && !cut_blocks_.contains(scopes_[g]);
      if (stores && memory.trained + memory.frozen > 0) levels = {0, 1, 2, 3};
      if (options_.storage_level) levels = {storage_ranks_ > 1 ? *options_.storage_level : 0};
      std::vector<BlockOption> own;
      for (int level : levels) {
        if (options_.recompute_all && !scopes_[g].empty() && memory.inner > 0) {
          own.push_back({k, {scopes_[g], stages_[g], level, true, false}});
          continue;
        }
        own.push_back({k, {scopes_[g], stages_[g], level, false, false}});
        if (!whole || memory.inner == 0) continue;
        if (options_.recompute) own.push_back({k, {scopes_[g], stages_[g], level, true, false}});
        if (options_.offload) own.push_back({k, {scopes_[g], stages_[g], level, false, true}});
      }
      for (size_t i = 0; i < own.size(); ++i) {
        const bool dominated = std::ranges::any_of(own, [&](const BlockOption& other) {
          const auto j = static_cast<size_t>(&other - own.data());
          return j != i && dominates(option_of(g, other, 1), option_of(g, own[i], 1), j < i);
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

  // `in_flight`: microbatches.
  solve::AssignOption option_of(size_t g, const BlockOption& chosen, double in_flight) const {
    const auto& memory = memory_[chosen.sharding][g];
    const auto& block = chosen.block;
    const double time = times_.time[g][chosen.sharding];
    const double forward = times_.forward[g][chosen.sharding];
    const double backward = time - forward;
    solve::AssignOption option{.time = time +
                                       exchange(memory, block.storage_level, forward, backward)};

    const double parts = storage_ranks_;
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

    option.saved = in_flight * memory.read;
    if (block.recompute) {
      option.time += forward;
      option.transient += memory.inner;
    } else if (block.offload) {
      const double copy = options_.host_byte * memory.inner;
      option.time += exposed(copy, forward) + exposed(copy, backward);
      option.transient += 2 * memory.inner;
    } else {
      option.saved += in_flight * memory.inner;
    }
    return option;
  }

  // Exposed communication of the ranks that share parameter storage, or average gradients.
  double exchange(const GroupMemory& memory, int level, double forward, double backward) const {
    if (storage_ranks_ <= 1) return 0;
    const double share = (storage_ranks_ - 1) / storage_ranks_ * options_.storage_byte;
    const double latency = Redistributor::kLatency;
    const auto moved = [&](double bytes) { return bytes > 0 ? latency + share * bytes : 0; };
    const double gather = moved(memory.trained + memory.frozen), reduce = moved(memory.trained);
    const double steps = options_.microbatches;
    switch (level) {
      case 0:
        return reduce > 0 ? exposed(2 * reduce - latency, backward) / steps : 0;
      case 1:
        return (exposed(reduce, backward) + moved(memory.trained)) / steps;
      case 2:
        return exposed(reduce, backward) + moved(memory.trained) / steps;
      default:
        return exposed(gather, forward) + exposed(gather + reduce, backward);
    }
  }

  solve::AssignProblem problem_of(const std::vector<int>& groups, double in_flight,
                                  std::optional<double> memory) const {
    solve::AssignProblem problem;
    problem.memory_limit = memory;
    problem.transient_count = 1;
    std::map<int, int> at;  // by group: op
    for (const int g : groups) {
      at[g] = static_cast<int>(problem.ops.size());
      auto& op = problem.ops.emplace_back();
      op.name = scopes_[g].empty() ? "the rest" : scopes_[g];
      for (const auto& option : block_options_[g])
        op.options.push_back(option_of(g, option, in_flight));
    }
    for (const auto& [ends, table] : times_.between) {
      const auto from = at.find(ends.first), to = at.find(ends.second);
      if (from == at.end() || to == at.end()) continue;
      solve::AssignEdge edge{from->second, to->second, {}};
      for (const auto& a : block_options_[ends.first]) {
        for (const auto& b : block_options_[ends.second]) edge.time.push_back(price(table, a, b));
      }
      problem.edges.push_back(std::move(edge));
    }
    return problem;
  }

  // Returns the cost of the redistributes between two groups; infinity: forbidden.
  double price(const std::vector<double>& table, const BlockOption& from,
               const BlockOption& to) const {
    return table[static_cast<size_t>(from.sharding) * shardings_.size() + to.sharding];
  }

  // Adds the redistributes from and to decided stages to the options' times. Returns whether there
  // are any.
  bool add_crossings(solve::AssignProblem& problem, const std::vector<int>& groups,
                     std::span<const StageChoice* const> decided) const {
    bool any = false;
    const auto fixed = [&](int group) -> const BlockOption* {
      for (const auto* stage : decided) {
        const auto found = stage->options.find(group);
        if (found != stage->options.end()) return &block_options_[group][found->second];
      }
      return nullptr;
    };
    for (const auto& [ends, table] : times_.between) {
      for (const bool arrives : {true, false}) {
        const int own = arrives ? ends.second : ends.first;
        const auto* other = fixed(arrives ? ends.first : ends.second);
        const auto at = std::ranges::find(groups, own);
        if (!other || at == groups.end()) continue;
        for (size_t o = 0; o < block_options_[own].size(); ++o) {
          const auto& option = block_options_[own][o];
          const double cost = arrives ? price(table, *other, option) : price(table, option, *other);
          problem.ops[at - groups.begin()].options[o].time += std::min(cost, kForbidden);
        }
        any = true;
      }
    }
    return any;
  }

  const Graph& graph_;
  const plan::Plan& plan_;
  const std::vector<int> axes_;
  const BlockPlanOptions options_;
  const double storage_ranks_;
  std::vector<std::string> scopes_;    // per group
  std::vector<int> stages_;            // per group
  std::set<std::string> cut_blocks_;   // scopes of blocks that several stages have a part of
  std::vector<int> groups_;            // per node
  std::vector<size_t> first_readers_;  // per value: nodes
  std::vector<Placements> base_;       // per value: placements before planning
  std::vector<Sharded> shardings_;
  std::vector<std::vector<Placements>> placements_;  // [sharding][value]
  std::vector<std::vector<GroupMemory>> memory_;     // [sharding][group]
  GroupTimes times_;
  std::vector<std::vector<BlockOption>> block_options_;  // per group
};

SubmeshPlanner::SubmeshPlanner(const Graph& graph, const plan::Plan& plan, std::vector<int> axes,
                               const BlockPlanOptions& options)
    : impl_(std::make_unique<Impl>(graph, plan, std::move(axes), options)) {}
SubmeshPlanner::~SubmeshPlanner() = default;
std::optional<StageChoice> SubmeshPlanner::fit(const StageRange& range,
                                               std::optional<double> memory,
                                               std::span<const StageChoice* const> decided) const {
  return impl_->fit(range, memory, decided);
}
double SubmeshPlanner::least_memory(const StageRange& range) const {
  return impl_->least_memory(range);
}
void SubmeshPlanner::write(const StageChoice& choice, const std::vector<int>& axes,
                           BlockPlan& plan) const {
  impl_->write(choice, axes, plan);
}

}  // namespace perigee::shard
