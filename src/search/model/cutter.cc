#include "search/model/cutter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/infinity.h"
#include "schedule/description.h"
#include "schedule/schedule.h"
#include "search/cut/deal.h"
#include "solve/solve.h"

namespace perigee::search {
namespace {}  // namespace

std::optional<int> recomputed_to_fit(PricedStages& stages, const PartRules& rules, int stage,
                                     int length) {
  const auto& place = stages.place(stage);
  for (int recomputed_blocks = 0; recomputed_blocks <= (place.layers->recomputing ? length : 0);
       ++recomputed_blocks) {
    const auto part = rules.part({stage, stages.count()}, length, recomputed_blocks);
    if (stages.bytes(stage, part) <= place.limit) return recomputed_blocks;
  }
  return std::nullopt;
}

HeterogeneousRow row_of_parts(PricedStages& stages, const PartRules& rules) {
  const auto& choice = stages.choice();
  const bool several = choice.chunks > 1;
  return {.blocks = rules.blocks(),
          .stages = static_cast<int>(choice.pipe * choice.chunks),
          .microbatches = choice.microbatches,
          .identical_inner = true,
          .fewest_first = several ? rules.fewest_first_blocks(stages.layers()) : 1,
          .fewest_last = several ? rules.fewest_last_blocks(stages.layers()) : 1,
          .times = [&stages, &rules, several](int stage, int length) -> CutStageTimes {
            return {several || recomputed_to_fit(stages, rules, stage, length).has_value()};
          }};
}

std::vector<PartBlocks> parts_of(PricedStages& stages, const PartRules& rules,
                                 const std::vector<int>& lengths) {
  std::vector<int> recomputed_blocks;
  for (int stage = 0; stages.choice().chunks == 1 && stage < std::ssize(lengths); ++stage) {
    const int length = lengths[static_cast<size_t>(stage)];
    recomputed_blocks.push_back(recomputed_to_fit(stages, rules, stage, length).value_or(0));
  }
  return rules.consecutive(lengths, recomputed_blocks);
}

double Cutter::seconds_left() const {
  return in_.limits.seconds_left ? in_.limits.seconds_left()
                                 : std::numeric_limits<double>::infinity();
}

CutParts Cutter::cut(PricedStages& stages, double exact_below) const {
  const auto& choice = stages.choice();
  const bool pinned = in_.rules.is_pinned();
  if (choice.pipe == 1) return single_part(stages);
  auto found = choice.chunks == 1 ? cut_within(stages, {}, exact_below)
               : pinned           ? CutParts{.parts = in_.rules.pinned()}
                                  : deal_parts(stages);
  if (found.parts.empty() || in_.rules.balance() == 0) return found;
  const auto stage_of = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                       static_cast<int>(choice.chunks));
  if (in_.rules.is_balanced(found.parts, stage_of)) return found;
  return pinned ? CutParts() : cut_balanced(stages, found.parts, exact_below);
}

bool Cutter::allows(const Window& window, const PartBlocks& part) const {
  if (std::isinf(window.most)) return true;
  constexpr double kRounding = 1e-9;
  const double own = in_.rules.arithmetic(part);
  return own >= window.least * (1 - kRounding) && own <= window.most * (1 + kRounding);
}

CutParts Cutter::cut_within(PricedStages& stages, const Window& window, double exact_below) const {
  return is_heterogeneous(stages.choice(), in_.cluster) || in_.rules.is_pinned()
             ? cut_heterogeneous(stages, window, exact_below)
             : cut_homogeneous(stages, window);
}

CutParts Cutter::cut_balanced(PricedStages& stages, const std::vector<PartBlocks>& free,
                              double exact_below) const {
  CutParts best{.best = false};
  double least = kInfinity;
  const auto row = row_of_parts(stages, in_.rules);
  if (has_few_cuts(row)) {
    const auto& choice = stages.choice();
    const auto stage_of = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                         static_cast<int>(choice.chunks));
    const auto price = [&](const std::vector<int>& lengths) {
      auto parts = parts_of(stages, in_.rules, lengths);
      if (!in_.rules.is_balanced(parts, stage_of)) return kInfinity;
      const auto timed = in_.timer.time(stages, parts, exact_below);
      if (timed.bytes > timed.limit) {
        best.least_bytes = std::min(best.least_bytes, timed.bytes);
        return kInfinity;
      }
      if (timed.seconds < least) best.parts = std::move(parts), least = timed.seconds;
      return timed.seconds;
    };
    std::vector<int> lengths;
    for (const auto& part : free) lengths.push_back(part.length());
    refine_cut(row, std::move(lengths), price);
    return best;
  }
  if (stages.choice().chunks > 1) return best;
  // A balanced cut is within the window that its smallest stage begins.
  for (const double smallest : in_.rules.smallest_stages(stages.choice().pipe)) {
    auto found = cut_within(stages, {smallest, smallest / in_.rules.balance()}, exact_below);
    if (found.parts.empty()) {
      if (best.parts.empty()) best.least_bytes = std::min(best.least_bytes, found.least_bytes);
      continue;
    }
    if (!in_.rules.is_balanced(found.parts)) continue;
    const double seconds = in_.timer.time(stages, found.parts, exact_below).seconds;
    if (seconds >= least) continue;
    least = seconds;
    best.parts = std::move(found.parts);
  }
  return best;
}

CutParts Cutter::single_part(PricedStages& stages) const {
  CutParts found;
  const auto recomputed_blocks = stages.layers().recomputing
                                     ? fewest_recomputed(stages.place(0), found.best)
                                     : 0;
  const auto part = in_.rules.whole(recomputed_blocks.value_or(in_.rules.blocks()));
  if (recomputed_blocks) {
    found.parts = {part};
  } else {
    found.least_bytes = stages.bytes(0, part);
  }
  return found;
}

std::optional<int> Cutter::fewest_recomputed(const StagePlace& place, bool& best) const {
  const auto& layers = *place.layers;
  const auto whole = in_.prices.stage(place, layers, in_.rules.whole());
  const auto saved = [&](const Layer& layer) {
    return StagePrices::saved_bytes(place.choice, layer, layers);
  };
  const auto option = [&](const Layers& of, const Layer& layer) {
    return solve::AssignOption{
        .time = layer.forward + layer.backward, .saved = saved(layer), .transient = of.working};
  };
  solve::AssignProblem problem{.memory_limit = place.limit, .transient_count = 1};
  if (whole.optimizer_bytes > place.limit) return std::nullopt;  // even with all recomputed
  const solve::AssignOption rest{.resident = whole.fixed_bytes() - layers.working,
                                 .saved = saved(layers.prologue) + saved(layers.epilogue)};
  problem.ops.push_back({.name = "rest", .options = {rest}});
  for (const auto& block : in_.folded.blocks) {
    problem.ops.push_back({.name = block,
                           .options = {option(layers, layers.block),
                                       option(*layers.recomputing, layers.recomputing->block)}});
  }
  const double left = seconds_left();
  const auto solved = left > 0 ? solve::solve_in_time(
                                     problem, {.solver = in_.limits.solver, .time_limit = left})
                               : solve::Result{.verdict = solve::Verdict::unknown};
  if (solved.verdict == solve::Verdict::infeasible) return std::nullopt;
  best = solved.verdict == solve::Verdict::optimal;
  if (solved.verdict == solve::Verdict::unknown) return in_.rules.blocks();
  return static_cast<int>(std::count(solved.choice.begin() + 1, solved.choice.end(), 1));
}

CutParts Cutter::deal_parts(PricedStages& stages) const {
  const auto& choice = stages.choice();
  Deal row{.blocks = in_.rules.blocks(),
           .stages = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                    static_cast<int>(choice.chunks)),
           .fewest_first = in_.rules.fewest_first_blocks(stages.layers()),
           .fewest_last = in_.rules.fewest_last_blocks(stages.layers()),
           .in_rounds = schedule::describe(choice.schedule).in_rounds};
  const int count = static_cast<int>(row.stages.size());
  const auto costs = [&](int part, int length) -> const StageCosts& {
    return stages.costs(row.stages[part], in_.rules.part({part, count}, length));
  };
  row.seconds = [&](int part, int length) { return costs(part, length).pass(); };
  row.in_flight_bytes = [&](int part, int length) { return costs(part, length).in_flight_bytes; };
  const auto bytes = [&](int stage, const std::vector<int>& own, const std::vector<int>& lengths) {
    StageCosts whole;
    for (int part : own) whole.join(costs(part, lengths[part]), choice.chunks);
    return stages.bytes_of(stage, whole);
  };
  // In most cases the fastest parts also fit.
  CutParts found;
  auto lengths = deal(row);
  if (!lengths) return found;
  bool fit = true;
  found.least_bytes = 0;
  for (int stage = 0; stage < stages.count(); ++stage) {
    std::vector<int> own;
    for (int part = 0; part < count; ++part) {
      if (row.stages[part] == stage) own.push_back(part);
    }
    const double needed = bytes(stage, own, *lengths);
    found.least_bytes = std::max(found.least_bytes, needed);
    fit = fit && needed <= stages.place(stage).limit;
  }
  if (!fit) {
    found.best = false;
    row.fits = [&](int stage, const std::vector<int>& own, const std::vector<int>& lengths) {
      return bytes(stage, own, lengths) <= stages.place(stage).limit;
    };
    lengths = deal(row);
  }
  if (lengths) found.parts = in_.rules.consecutive(*lengths);
  return found;
}

}  // namespace perigee::search
