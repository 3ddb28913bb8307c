// Cuts of the blocks into homogeneous stages.
#include "search/cut/cut.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "schedule/description.h"
#include "schedule/schedule.h"
#include "search/cut/deal.h"
#include "search/cut/heterogeneous_cut.h"
#include "search/model/model.h"
#include "solve/solve.h"

namespace perigee::search {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

std::optional<int> Model::least_recomputed(const Place& place, bool& best) const {
  const auto& layers = *place.layers;
  const auto whole = stage(place, layers, all_blocks());
  const auto kept = [&](const Layer& layer) { return saved(place.choice, layer, layers); };
  const auto option = [&](const Layers& of, const Layer& layer) {
    return solve::AssignOption{
        .time = layer.forward + layer.backward, .saved = kept(layer), .transient = of.working};
  };
  solve::AssignProblem problem{.memory_limit = place.limit, .transient_count = 1};
  if (whole.step > place.limit) return std::nullopt;  // even with all recomputed
  const solve::AssignOption rest{.resident = whole.fixed() - layers.working,
                                 .saved = kept(layers.first) + kept(layers.last)};
  problem.ops.push_back({.name = "rest", .options = {rest}});
  for (const auto& block : folded_.blocks) {
    problem.ops.push_back({.name = block,
                           .options = {option(layers, layers.block),
                                       option(*layers.recomputing, layers.recomputing->block)}});
  }
  const double left = limits_.seconds_left ? limits_.seconds_left() : kInfinity;
  const auto solved = left > 0 ? solve::solve_in_time(
                                     problem, {.solver = limits_.solver, .time_limit = left})
                               : solve::Result{.verdict = solve::Verdict::unknown};
  if (solved.verdict == solve::Verdict::infeasible) return std::nullopt;
  best = solved.verdict == solve::Verdict::optimal;
  if (solved.verdict == solve::Verdict::unknown) return blocks();
  return static_cast<int>(std::count(solved.choice.begin() + 1, solved.choice.end(), 1));
}

Model::Blocks Model::blocks_of(int part, int parts, int length, int recomputed_blocks) const {
  const bool first = part == 0, last = part == parts - 1;
  const int begin = first ? 0 : last ? blocks() - length : 1;
  return {begin, begin + length, recomputed_blocks, first, last};
}

std::vector<Model::Blocks> Model::in_a_row(const std::vector<int>& lengths,
                                           const std::vector<int>& recomputed_blocks) const {
  std::vector<Blocks> parts;
  int begin = 0;
  for (size_t k = 0; k < lengths.size(); ++k) {
    const int end = begin + lengths[k];
    parts.push_back({begin, end, recomputed_blocks.empty() ? 0 : recomputed_blocks[k], k == 0,
                     k + 1 == lengths.size()});
    begin = end;
  }
  return parts;
}

int Model::least_blocks(const Layers& layers, bool last) const {
  const auto& end = last ? layers.last : layers.first;
  return end.weights > 0 && !(last && folded_.epilogue.empty()) ? 0 : 1;
}

bool Model::has_bare_ends() const {
  return !limits_.starts.empty() &&
         (limits_.starts.front() == 0 || limits_.starts.back() == blocks());
}

int Model::most_parts(const Layers& layers) const {
  return blocks() + 2 - least_blocks(layers, false) - least_blocks(layers, true);
}

std::vector<Model::Blocks> Model::cut_stages(const Choice& choice, const Place& place,
                                             const StageOf& stage_of, double& least_bytes,
                                             bool& best) const {
  const auto blocks = this->blocks();
  const auto& layers = *place.layers;
  // In-flight microbatches per later stage; 0: all stages have the same number.
  const int64_t slope = schedule::describe(choice.schedule).flight_slope;
  const auto all = static_cast<int64_t>(std::ceil(in_flight(choice, choice.pipe - 1)));
  const auto most_of = [&](const StageCosts& one) -> int64_t {
    const double room = place.limit - one.fixed() - one.prefetched;
    if (room < 0 || one.step > place.limit) return 0;
    const auto most = one.flight > 0 ? static_cast<int64_t>(std::min(1e9, room / one.flight)) : all;
    if (most >= all) return std::numeric_limits<int64_t>::max();
    return slope > 0 ? (most + slope - 1) / slope : 0;
  };
  const auto parts = [&](StageKind kind, int length) {
    const int part = kind == StageKind::first ? 0 : kind == StageKind::last ? 2 : 1;
    std::vector<StagePart> ways;
    for (int recomputed_blocks = 0; recomputed_blocks <= (layers.recomputing ? length : 0);
         ++recomputed_blocks) {
      const auto& one = stage_of(0, blocks_of(part, 3, length, recomputed_blocks));
      const auto most = most_of(one);
      if (ways.empty() || most > ways.back().most)
        ways.push_back({one.pass(), most, recomputed_blocks});
      if (most == std::numeric_limits<int64_t>::max()) break;
    }
    return ways;
  };
  // With split backward passes only the longest stage counts. With one microbatch it counts once, so
  // that cuts differ.
  const bool split = splits_backward(choice.schedule);
  const auto rounds = split ? choice.microbatches : std::max<int64_t>(1, choice.microbatches - 1);
  const auto cut = search::cut(
      {.blocks = blocks,
       .stages = choice.pipe,
       .microbatches = choice.microbatches,
       .rounds = rounds,
       .parts = parts,
       .solver = limits_.solver,
       .time_limit = limits_.seconds_left ? limits_.seconds_left() : kInfinity});
  if (!cut) {
    const int even = static_cast<int>((blocks + choice.pipe - 1) / choice.pipe);
    const int recomputed_blocks = layers.recomputing ? even : 0, kind = even < blocks - 1 ? 1 : 0;
    least_bytes = std::min(
        bytes_of(choice, stage_of(0, blocks_of(2, 3, even, recomputed_blocks)), 0),
        bytes_of(choice, stage_of(0, blocks_of(kind, 3, even, recomputed_blocks)), 0));
    return {};
  }
  best = cut->best;
  std::vector<int> lengths;
  for (int begin = 0; const int end : cut->begins) {
    lengths.push_back(end - begin);
    begin = end;
  }
  lengths.push_back(blocks - cut->begins.back());
  return in_a_row(lengths, cut->recomputed_blocks);
}

std::vector<Model::Blocks> Model::deal_parts(const Choice& choice, const Layers& layers,
                                             const Places& places, const StageOf& stage_of,
                                             double& least_bytes) const {
  Deal row{.blocks = blocks(),
           .stages = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                    static_cast<int>(choice.chunks)),
           .first = least_blocks(layers, false),
           .last = least_blocks(layers, true),
           .in_rounds = schedule::describe(choice.schedule).in_rounds};
  const int count = static_cast<int>(row.stages.size());
  const auto part_of = [&](int part, int length) -> const StageCosts& {
    return stage_of(row.stages[part], blocks_of(part, count, length));
  };
  row.seconds = [&](int part, int length) { return part_of(part, length).pass(); };
  row.held = [&](int part, int length) { return part_of(part, length).flight; };
  const auto bytes = [&](int stage, const std::vector<int>& own, const std::vector<int>& lengths) {
    StageCosts whole;
    for (int part : own) whole.join(part_of(part, lengths[part]), choice.chunks);
    return bytes_of(choice, whole, choice.pipe - 1 - stage);
  };
  // Most fit as they are fastest.
  auto lengths = deal(row);
  if (!lengths) return {};
  bool fit = true;
  least_bytes = 0;
  for (int stage = 0; stage < choice.pipe; ++stage) {
    std::vector<int> own;
    for (int part = 0; part < count; ++part) {
      if (row.stages[part] == stage) own.push_back(part);
    }
    const double needed = bytes(stage, own, *lengths);
    least_bytes = std::max(least_bytes, needed);
    fit = fit && needed <= places.at(stage).limit;
  }
  if (!fit) {
    row.fits = [&](int stage, const std::vector<int>& own, const std::vector<int>& lengths) {
      return bytes(stage, own, lengths) <= places.at(stage).limit;
    };
    lengths = deal(row);
  }
  return lengths ? in_a_row(*lengths) : std::vector<Blocks>{};
}

std::optional<int> Model::recomputed_to_fit(const Choice& choice, const Places& places,
                                            const StageOf& stage_of, int stage, int length) const {
  const auto stages = static_cast<int>(choice.pipe);
  const auto& place = places.at(stage);
  for (int recomputed_blocks = 0; recomputed_blocks <= (place.layers->recomputing ? length : 0);
       ++recomputed_blocks) {
    const auto& one = stage_of(stage, blocks_of(stage, stages, length, recomputed_blocks));
    if (bytes_of(choice, one, stages - 1 - stage) <= place.limit) return recomputed_blocks;
  }
  return std::nullopt;
}

void Model::settle(const Choice& choice, const Layers& layers, const Places& places,
                   const StageOf& stage_of, const std::vector<Blocks>& parts, bool best,
                   double worth, Estimate& result) const {
  // The per-step epilogue is at least that of a first stage whose parts have as few blocks as
  // they may.
  double least = result.epilogue;
  if (choice.pipe > 1) {
    const auto stage_of_part = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                              static_cast<int>(choice.chunks));
    const auto count = static_cast<int>(stage_of_part.size());
    StageCosts first;
    for (int part = 0; part < count; ++part) {
      if (stage_of_part[static_cast<size_t>(part)] != 0) continue;
      const bool last = part == count - 1, end = choice.chunks > 1 && (part == 0 || last);
      const int length = end ? least_blocks(layers, last) : 1;
      first.join(stage_of(0, blocks_of(part, count, length)), choice.chunks);
    }
    const double meeting = this->meeting(choice);
    least = meeting + std::max(meeting, first.ready()) + first.optimizer;
  }
  const double gain = result.epilogue - least;
  // Without exposed exchange the passes' sum is the same for every cut.
  const bool plain = best && (choice.pipe == 1 ||
                              (!layers.recomputing && (choice.zero < 2 || choice.parts() == 1)));
  result.lower_bound = plain ? result.seconds - gain : result.lower_bound + least;
  if (choice.pipe == 1 || choice.chunks > 1 || gain <= kOnce * result.seconds ||
      result.lower_bound >= worth)
    return;
  std::vector<int> lengths;
  for (const auto& part : parts) lengths.push_back(part.length());
  const HeterogeneousRow row{
      .blocks = blocks(),
      .stages = static_cast<int>(choice.pipe),
      .microbatches = choice.microbatches,
      .identical_inner = true,
      .times = [&](int stage, int length) -> CutStageTimes {
        return {recomputed_to_fit(choice, places, stage_of, stage, length).has_value()};
      }};
  const double bound = result.lower_bound;
  const auto price = [&](const std::vector<int>& lengths) {
    std::vector<int> recomputed_blocks;
    for (int stage = 0; stage < row.stages; ++stage) {
      const int length = lengths[static_cast<size_t>(stage)];
      recomputed_blocks.push_back(
          recomputed_to_fit(choice, places, stage_of, stage, length).value_or(0));
    }
    auto other = timed(choice, layers, places, stage_of, in_a_row(lengths, recomputed_blocks),
                       worth);
    const double seconds = other.seconds;
    if (seconds < result.seconds) result = std::move(other);
    return seconds;
  };
  refine_cut(row, lengths, price);
  result.lower_bound = bound;
}

}  // namespace perigee::search
