// The recompute regions for a memory limit.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "base/text/bytes.h"
#include "compile/graph/recompute.h"
#include "compile/rank.h"
#include "graph/flops.h"

namespace perigee::compile {

namespace {

// The most sets of regions that are compared; more are thinned out.
constexpr size_t kMostSets = 4096;

// Recomputed regions, by region of the plan, with their cost and saving.
struct Set {
  double flops = 0;
  int64_t bytes = 0;
  std::vector<bool> has;
};

// Returns the Pareto-optimal sets (no other saves as many bytes for less arithmetic), the least
// arithmetic first; all of them unless `thinned` is set. Of equal sets the one with earlier
// regions, which saves memory for longer.
std::vector<Set> best_sets(const std::vector<RegionCost>& costs, bool& thinned) {
  std::vector<Set> sets{{0, 0, std::vector<bool>(costs.size())}};
  for (size_t r = 0; r < costs.size(); ++r) {
    if (costs[r].bytes <= 0) continue;
    const size_t count = sets.size();
    for (size_t k = 0; k < count; ++k) {
      Set more = sets[k];
      more.flops += costs[r].flops;
      more.bytes += costs[r].bytes;
      more.has[r] = true;
      sets.push_back(std::move(more));
    }
    std::sort(sets.begin(), sets.end(), [](const Set& a, const Set& b) {
      if (a.flops != b.flops) return a.flops < b.flops;
      if (a.bytes != b.bytes) return a.bytes > b.bytes;
      return a.has > b.has;
    });
    std::vector<Set> front;
    for (auto& set : sets) {
      if (front.empty() || set.bytes > front.back().bytes) front.push_back(std::move(set));
    }
    if (front.size() > kMostSets) {
      thinned = true;
      std::vector<Set> fewer;
      for (size_t k = 0; k < front.size(); k += 2) fewer.push_back(std::move(front[k]));
      if (front.size() % 2 == 0) fewer.push_back(std::move(front.back()));
      front = std::move(fewer);
    }
    sets = std::move(front);
  }
  return sets;
}

std::string text_of(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

// The ranks of one stage of a pipeline, or all.
class Group {
 public:
  Group(const Common& common, const plan::Plan& plan, const StepSpec& spec, TraceSource& traces,
        std::vector<int64_t> ranks)
      : common_(common),
        plan_(plan),
        budget_(std::exchange(plan_.recompute.budget_bytes, 0)),
        spec_(spec),
        traces_(traces),
        ranks_(std::move(ranks)) {}

  // Returns, by region, whether it is recomputed.
  std::vector<bool> fit() {
    const auto& regions = plan_.recompute.regions;
    std::vector<RegionCost> costs(regions.size());
    auto kept = plan_;
    kept.recompute = {};
    for (int64_t rank : ranks_) {
      const auto graph = localize(common_, kept, rank).graph.graph;
      double step = 0;
      for (const auto& node : graph.nodes) step += graph::flops_of(graph, node);
      step_ = std::max(step_, step);
      const auto found = recompute_costs(graph, plan_.recompute);
      for (size_t r = 0; r < costs.size(); ++r) {
        costs[r].flops = std::max(costs[r].flops, found[r].flops);
        costs[r].bytes = std::max(costs[r].bytes, found[r].bytes);
      }
    }
    sets_ = best_sets(costs, thinned_);
    size_t low = 0, high = sets_.size() - 1;
    if (peak(high) > budget_) refuse(high);
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (peak(middle) <= budget_) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    taken_ = low;
    return sets_[low].has;
  }

  // "3 of 12 scopes (blocks.0 to blocks.2): ..."
  std::string sentence() {
    const auto& set = sets_[taken_];
    const auto& regions = plan_.recompute.regions;
    size_t count = 0;
    std::string first, last;
    for (size_t r = 0; r < regions.size(); ++r) {
      if (!set.has[r]) continue;
      if (count++ == 0) first = regions[r].front();
      last = regions[r].back();
    }
    if (count == 0) return fmt::format("nothing: {} are enough", text_of(peak(taken_)));
    auto text = fmt::format(
        "{} of {} regions ({}{}), {:.3g} % more arithmetic for {} at most instead of {}", count,
        regions.size(), first, first == last ? "" : " to " + last, 100 * set.flops / step_,
        text_of(peak(taken_)), text_of(peak(0)));
    if (taken_ > 1) {
      text += fmt::format("; the next cheaper set needs {}", text_of(peak(taken_ - 1)));
    }
    if (thinned_) text += " (not all sets were examined)";
    return text;
  }

  bool exact() const { return exact_; }

 private:
  // Returns the largest peak of the ranks' programs.
  int64_t peak(size_t k) {
    auto& known = peaks_[k];
    if (known) return *known;
    auto plan = plan_;
    plan.recompute.regions.clear();
    for (size_t r = 0; r < sets_[k].has.size(); ++r) {
      if (sets_[k].has[r]) plan.recompute.regions.push_back(plan_.recompute.regions[r]);
    }
    int64_t most = 0;
    for (int64_t rank : ranks_) {
      const auto program = lower(common_, localize(common_, plan, rank), plan, spec_, rank,
                                 traces_);
      exact_ = exact_ && program.exact_memory;
      if (program.peak_bytes > most) worst_ = rank;
      most = std::max(most, program.peak_bytes);
    }
    known = most;
    return most;
  }

  [[noreturn]] void refuse(size_t k) {
    const auto most = peak(k);
    std::string stage;
    if (plan_.pipeline.cuts()) {
      const auto axis = plan_.mesh.find(plan_.pipeline.axis);
      stage = fmt::format(" (stage {})", mesh::coordinates(plan_.mesh, worst_)[axis]);
    }
    fail("checkpoint",
         "no rank may need more than {} bytes, but with all {} regions recomputed rank {}{} needs "
         "{}, {} too many: name more scopes, shard further or take smaller microbatches",
         budget_, plan_.recompute.regions.size(), worst_, stage, most, most - budget_);
  }

  const Common& common_;
  plan::Plan plan_;  // without the budget
  int64_t budget_;
  const StepSpec& spec_;
  TraceSource& traces_;
  std::vector<int64_t> ranks_;  // those whose programs differ
  double step_ = 0;             // flops of a microbatch
  std::vector<Set> sets_;
  std::map<size_t, std::optional<int64_t>> peaks_;
  size_t taken_ = 0;
  int64_t worst_ = 0;
  bool thinned_ = false, exact_ = true;
};

}  // namespace

plan::Plan fit_recompute(const graph::Graph& graph, plan::Plan plan, const StepSpec& spec,
                         TraceSource& traces) {
  if (plan.recompute.budget_bytes == 0) return plan;
  auto kept = plan;
  kept.recompute = {};
  const Views views(graph, kept, spec);
  // By stage: its ranks that differ.
  std::map<int64_t, std::vector<int64_t>> stages;
  const auto found = find_equivalent_ranks(views);
  const auto &ranks = found.ranks, &representative = found.representative;
  const auto axis = plan.pipeline.cuts() ? plan.mesh.find(plan.pipeline.axis) : -1;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (representative[r] != ranks[r]) continue;
    stages[axis < 0 ? 0 : mesh::coordinates(plan.mesh, ranks[r])[axis]].push_back(ranks[r]);
  }
  std::vector<bool> taken(plan.recompute.regions.size());
  const auto budget = plan.recompute.budget_bytes;
  for (auto& [stage, members] : stages) {
    const auto first = members.front();
    Group group(views.common(first), views.plan(plan, first), spec, traces, std::move(members));
    const auto own = group.fit();
    for (size_t r = 0; r < own.size(); ++r) taken[r] = taken[r] || own[r];
    plan.decisions.push_back(
        {"checkpoint",
         fmt::format("to stay within {}{}, the backward pass recomputes {}{}", text_of(budget),
                     axis < 0 ? "" : fmt::format(" on stage {}", stage), group.sentence(),
                     group.exact() ? "" : " (estimate)")});
  }
  auto& regions = plan.recompute.regions;
  std::vector<std::vector<std::string>> chosen;
  for (size_t r = 0; r < regions.size(); ++r) {
    if (taken[r]) {
      chosen.push_back(std::move(regions[r]));
    } else if (!regions[r].empty()) {
      plan.recompute.keep_in.erase(regions[r].front());
    }
  }
  if (chosen.empty()) {
    plan.recompute = {};
  } else {
    regions = std::move(chosen);
    plan.recompute.budget_bytes = 0;
  }
  return plan;
}

}  // namespace perigee::compile
