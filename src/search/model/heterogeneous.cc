// Heterogeneous pipelines: stages of unequal submeshes, or on several kinds of devices.
#include <algorithm>
#include <limits>

#include "schedule/description.h"
#include "search/cut/heterogeneous_cut.h"
#include "search/model/model.h"
#include "search/model/row_time.h"
#include "search/model/transfer.h"

namespace perigee::search {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// No other cut of a row is taken to save more than that.
constexpr double kHopeless = 1.25;

}  // namespace

bool Model::is_heterogeneous(const Choice& choice) const {
  return !choice.submeshes.empty() || (choice.pipe > 1 && costs_.cluster().devices.size() > 1);
}

Choice Model::of_stage(const Choice& choice, const Submesh& submesh) {
  auto own = choice;
  own.submeshes.clear();
  own.tensor = submesh.tensor;
  own.data = submesh.data;
  own.micro = choice.micro * choice.batch() / submesh.data;
  own.sequence = choice.sequence && submesh.tensor > 1;
  if (submesh.data == 1) own.zero = 0;
  return own;
}

int64_t Model::aligned(int64_t rank) const {
  const auto& links = costs_.cluster().links;
  return links.size() < 2 ? 0 : rank % links[links.size() - 2].ranks;
}

Submesh Model::submesh_of(const Choice& choice, int stage) const {
  return choice.submeshes.empty() ? Submesh{choice.tensor, choice.data}
                                  : choice.submeshes[static_cast<size_t>(stage)];
}

std::optional<Model::Places> Model::places(const Choice& choice, const Layers& layers) const {
  Places places;
  const auto stages = static_cast<size_t>(choice.pipe);
  if (!is_heterogeneous(choice)) {
    places.list.push_back({choice, &layers, {}, limit(), 0});
    places.of.assign(stages, 0);
    return places;
  }
  const auto others = choice.submeshes.empty() ? choice.expert * choice.context : 1;
  const auto& devices = costs_.cluster().devices;
  int64_t first = 0;
  for (int stage = 0; stage < choice.pipe; ++stage) {
    const auto submesh = submesh_of(choice, stage);
    const auto count = submesh.ranks() * others;
    Place place{.choice = choice.submeshes.empty() ? choice : of_stage(choice, submesh),
                .ground = {.first = aligned(first), .other = costs_.cluster().ranks() - 1},
                .limit = kInfinity,
                .stage = stage};
    std::string why;
    place.layers = tables_.on_ranks(place.choice, first, count, why);
    if (!place.layers) return std::nullopt;
    int64_t begin = 0;
    for (size_t kind = 0; kind < devices.size(); begin += devices[kind++].count) {
      const bool uses_kind = begin < first + count && first < begin + devices[kind].count;
      if (uses_kind) place.limit = std::min(place.limit, limits_.bytes[kind]);
    }
    first += count;
    const auto known = std::find_if(
        places.list.begin(), places.list.end(), [&](const Place& other) {
          return other.layers == place.layers && other.limit == place.limit &&
                 other.ground.first == place.ground.first &&
                 other.choice.tensor == place.choice.tensor &&
                 other.choice.data == place.choice.data;
        });
    places.of.push_back(static_cast<int>(known - places.list.begin()));
    if (known == places.list.end()) places.list.push_back(std::move(place));
  }
  return places;
}

Model::Rates Model::rates(const Choice& own, const Layers& layers, int64_t first) const {
  Rates rates;
  rates.recomputed = layers.repeated;
  const bool in_parts = own.zero >= 2 && own.parts() > 1;
  const auto* exchanged = in_parts ? &exchanges(own, layers,
                                                {aligned(first), costs_.cluster().ranks() - 1})
                                   : nullptr;
  const auto set = [&](double* to, const Layer& layer, const LayerExchange* of, bool back_too) {
    const auto [forward_seconds, backward_seconds] = passes(own, layer, layers);
    for (size_t way = 0; way < Rates::kWays; ++way) {
      const bool gathers = of && way % 2 == 1, exchanges = of && way / 2 == 1;
      to[way] = (gathers ? of->gather_forward : forward_seconds) + (!exchanges ? backward_seconds
                                                                    : back_too ? of->gather_backward
                                                                               : 0);
    }
  };
  // A prologue that is tied to the epilogue need not be re-gathered.
  set(rates.first, layers.first, exchanged ? &exchanged->first : nullptr, false);
  set(rates.block, layers.block, exchanged ? &exchanged->block : nullptr, true);
  set(rates.last, layers.last, exchanged ? &exchanged->last : nullptr, true);
  return rates;
}

double Model::lower_bound(const Choice& choice, const std::vector<const Rates*>& stages,
                          double transfer) const {
  const auto count = stages.size();
  const auto blocks = static_cast<double>(this->blocks());
  const auto extra = [&](size_t stage, size_t way) {
    return (stage == 0 ? stages[stage]->first[way] : 0) +
           (stage + 1 == count ? stages[stage]->last[way] : 0);
  };
  double longest = 0, sum = 0, fastest = kInfinity, recomputed = 0;
  for (size_t way = 0; way < Rates::kWays; ++way) {
    // The bound has equally slow stages that share all blocks.
    double work = blocks, speed = 0;
    for (size_t stage = 0; stage < count; ++stage) {
      const double block = stages[stage]->block[way], more = extra(stage, way);
      work += more / block;
      speed += 1 / block;
      longest = std::max(longest, more + (choice.chunks > 1 ? 0 : block));
    }
    if (speed < kInfinity) longest = std::max(longest, work / speed);
  }
  for (size_t stage = 0; stage < count; ++stage) {
    const double block = stages[stage]->block[0];
    sum += block + extra(stage, 0);
    fastest = std::min(fastest, block);
    recomputed = std::max(recomputed, stages[stage]->recomputed);
  }
  sum += (blocks - static_cast<double>(count)) * fastest;
  const double busy = longest * static_cast<double>(choice.microbatches);
  if (!schedule::describe(choice.schedule).warms_up) return busy;
  // A microbatch's way through all stages and back, without recomputation, which overlaps with it.
  return std::max(busy, sum - recomputed * (blocks - 1) + transfer);
}

std::optional<double> Model::lower_bound(const Choice& choice, const Layers& layers) const {
  const auto placed = places(choice, layers);
  if (!placed) return std::nullopt;
  std::vector<Rates> known;
  for (const auto& place : placed->list) {
    known.push_back(rates(place.choice, *place.layers, place.ground.first));
  }
  std::vector<const Rates*> stages;
  for (const int index : placed->of) stages.push_back(&known[static_cast<size_t>(index)]);
  return lower_bound(choice, stages, all_transfers(choice, *placed));
}

Model::Hop Model::transfer(const Choice& choice, const Submesh& from, const Submesh& to,
                           int64_t rank, const Layers& layers) const {
  const auto first = aligned(rank);
  const auto [entry, added] = transfers_.try_emplace(
      {&layers, from.tensor, from.data, to.tensor, to.data, first, choice.sequence});
  if (!added) return entry->second;
  const End a{from, first}, b{to, first + from.ranks()};
  const auto sent = handed_on(choice, from), received = handed_on(choice, to);
  const double bytes = sent.bytes * static_cast<double>(from.data);
  const double parts = std::max(sent.in_parts, received.in_parts);
  const auto seconds = [&](const End& x, const End& y) {
    return (1 - parts) * transfer_seconds(x, y, bytes, false, costs_) +
           parts * transfer_seconds(x, y, bytes, true, costs_);
  };
  return entry->second = {seconds(a, b), seconds(b, a)};
}

Model::HandedOn Model::handed_on(const Choice& choice, const Submesh& submesh) const {
  std::string why;
  const auto* own = tables_.find(of_stage(choice, submesh), why);
  const auto* whole = tables_.find(of_stage(choice, {1, submesh.data}), why);
  if (!own && !whole) return {};
  const auto ranks = static_cast<double>(submesh.tensor);
  if (!own || !whole || whole->crossing <= 0) {
    const double in_parts = choice.sequence && submesh.tensor > 1 ? 1 : 0;
    return {(own ? own : whole)->crossing * (in_parts > 0 ? ranks : 1), in_parts};
  }
  if (submesh.tensor == 1) return {whole->crossing, 0};
  const double less = (1 - own->crossing / whole->crossing) / (1 - 1 / ranks);
  return {whole->crossing, std::clamp(less, 0.0, 1.0)};
}

Model::Hop Model::hop(const Choice& choice, const Places& places, int stage) const {
  if (choice.submeshes.empty()) {
    const double seconds = transfer(choice, *places.at(0).layers);
    return {seconds, seconds};
  }
  int64_t first = 0;
  for (int before = 0; before < stage; ++before) first += submesh_of(choice, before).ranks();
  return transfer(choice, submesh_of(choice, stage), submesh_of(choice, stage + 1), first,
                  *places.at(stage).layers);
}

double Model::all_transfers(const Choice& choice, const Places& places) const {
  double seconds = 0;
  for (int stage = 0; stage + 1 < choice.pipe; ++stage) {
    seconds += hop(choice, places, stage).both();
  }
  return seconds;
}

double Model::meeting(const Choice& choice) const {
  if (choice.pipe == 1) return 0;
  // Stages of unequal submeshes have no groups of their own: all ranks meet.
  const bool homogeneous = choice.submeshes.empty();
  const auto stage = homogeneous ? choice.tensor * choice.expert * choice.parts() : 1;
  int64_t count = homogeneous ? choice.pipe : 0;
  for (const auto& submesh : choice.submeshes) count += submesh.ranks();
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < count; ++i) ranks.push_back(i * stage);
  return costs_.collective({.kind = cost::CollectiveKind::all_reduce, .ranks = ranks, .bytes = 8})
      .seconds;
}

Passes Model::passes_of(const Choice& choice, const Places& places,
                        const std::vector<StageCosts>& made, const std::vector<Blocks>& parts,
                        const std::vector<int>& stage_of_part) const {
  Passes passes;
  for (const auto& stage : made) {
    passes.forward += stage.forward;
    passes.weights += stage.gradient;
    passes.backward += stage.backward - stage.gradient;
  }
  for (size_t k = 0; k < parts.size(); ++k) {
    const auto& layers = *places.at(stage_of_part[k]).layers;
    passes.recomputed += (layers.recomputing ? parts[k].recomputed_blocks : parts[k].length()) *
                         layers.repeated;
  }
  passes.transfer = all_transfers(choice, places) /
                    (2 * std::max(1.0, static_cast<double>(choice.pipe - 1)));
  return passes;
}

bool Model::runs_as_row(const Choice& choice) const {
  return choice.pipe > 1 && choice.chunks == 1 && !splits_backward(choice.schedule) &&
         is_heterogeneous(choice);
}

bool Model::sees_all_cuts(const Choice& choice, double seconds, double worth) const {
  const auto stages = static_cast<int>(choice.pipe);
  return runs_as_row(choice) && has_few_cuts(blocks(), stages) && seconds < kHopeless * worth;
}

Model::RowStep Model::step_of_row(const Choice& choice, const Places& places,
                                  const std::vector<StageCosts>& made,
                                  const std::vector<Blocks>& parts) const {
  const auto& cluster = costs_.cluster();
  std::vector<RowStage> row;
  int64_t first = 0;
  for (int stage = 0; stage < choice.pipe; ++stage) {
    const auto& one = made[static_cast<size_t>(stage)];
    const auto& part = parts[static_cast<size_t>(stage)];
    const auto& place = places.at(stage);
    const double blocks = place.layers->recomputing ? part.recomputed_blocks : part.length();
    auto& timed = row.emplace_back(RowStage{.forward = one.forward,
                                            .backward = one.backward,
                                            .recomputed = blocks * place.layers->repeated,
                                            .tail = one.tail});
    const auto ranks = place.choice.tensor * place.choice.expert * place.choice.parts();
    if (stage + 1 < choice.pipe) {
      const auto [forward_seconds, backward_seconds] = hop(choice, places, stage);
      timed.send_seconds = forward_seconds;
      timed.return_seconds = backward_seconds;
    }
    const auto tensor = place.choice.tensor;
    const auto next = stage + 1 < choice.pipe ? first + ranks : first - 1;
    if (tensor > 1 && cost::level_of(cluster, {first, first + tensor - 1}) ==
                          cost::level_of(cluster, {first, next})) {
      timed.forward_links = one.forward_tensor;
      timed.backward_links = one.tensor - one.forward_tensor;
    }
    first += ranks;
  }
  const auto timed = time_row(choice.schedule, row, choice.microbatches);
  const double meeting = this->meeting(choice);
  double exchanged = timed.seconds, met = timed.seconds + meeting, optimizer = 0;
  for (size_t s = 0; s < made.size(); ++s) {
    exchanged = std::max(exchanged, timed.ends[s] + made[s].once);
    met = std::max(met, timed.ends[s] + made[s].ready());
    optimizer = std::max(optimizer, made[s].optimizer);
  }
  return {.passes = timed.seconds,
          .once = exchanged - timed.seconds,
          .optimizer = met + meeting - exchanged + optimizer};
}

std::vector<Model::Blocks> Model::pinned_parts() const {
  std::vector<int> lengths;
  int begin = 0;
  for (const int start : limits_.starts) {
    lengths.push_back(start - begin);
    begin = start;
  }
  lengths.push_back(blocks() - begin);
  return in_a_row(lengths);
}

std::vector<Model::Blocks> Model::cut_heterogeneous_stages(const Choice& choice,
                                                           const Places& places,
                                                           const StageOf& stage_of,
                                                           double& least_bytes,
                                                           double worth) const {
  const auto stages = static_cast<int>(choice.pipe);
  const auto pinned = limits_.starts.empty() ? std::vector<Blocks>{} : pinned_parts();
  std::map<std::pair<int, int>, int> recomputed_of;  // by stage and length
  // Least bytes of a stage with `length` blocks.
  const auto least = [&](int stage, int length) {
    const int recomputed_blocks = places.at(stage).layers->recomputing ? length : 0;
    return bytes_of(choice, stage_of(stage, blocks_of(stage, stages, length, recomputed_blocks)),
                    stages - 1 - stage);
  };
  const auto times = [&](int stage, int length) -> CutStageTimes {
    if (!pinned.empty()) {
      if (length != pinned[static_cast<size_t>(stage)].length()) return {};
    }
    const auto recomputed_blocks = recomputed_to_fit(choice, places, stage_of, stage, length);
    if (!recomputed_blocks) return {};
    recomputed_of[{stage, length}] = *recomputed_blocks;
    const auto& one = stage_of(stage, blocks_of(stage, stages, length, *recomputed_blocks));
    const double backward_seconds = stage + 1 < stages ? hop(choice, places, stage).backward_seconds
                                                       : 0;
    return {true, one.pass(), one.backward + backward_seconds, one.ready(), one.optimizer};
  };
  const HeterogeneousRow row{.blocks = blocks(),
                             .stages = stages,
                             .microbatches = choice.microbatches,
                             .once = meeting(choice),
                             .times = times};
  const auto parts_of = [&](const std::vector<int>& lengths) {
    std::vector<int> recomputed_blocks;
    for (int stage = 0; const int length : lengths)
      recomputed_blocks.push_back(recomputed_of[{stage++, length}]);
    return in_a_row(lengths, recomputed_blocks);
  };
  auto lengths = cut_heterogeneous(row);
  if (lengths && pinned.empty() && runs_as_row(choice)) {
    double best = kInfinity;
    const auto price = [&](const std::vector<int>& cut) {
      std::vector<StageCosts> made;
      const auto parts = parts_of(cut);
      double before = 0;  // the first microbatch comes to a stage, and the last one leaves it
      for (int stage = 0; stage < stages; ++stage) {
        const auto& part = parts[static_cast<size_t>(stage)];
        made.push_back(stage_of(stage, part));
        const double pass = made.back().pass();
        if (before + static_cast<double>(choice.microbatches) * pass >= best) return kInfinity;
        before += pass - made.back().tail - part.length() * places.at(stage).layers->block.forward;
      }
      const double seconds = step_of_row(choice, places, made, parts).total();
      best = std::min(best, seconds);
      return seconds;
    };
    if (price(*lengths) < kHopeless * worth) lengths = refine_cut(row, *lengths, price);
  }
  if (lengths) return parts_of(*lengths);
  for (int stage = 0; stage < stages; ++stage) {
    const int even = std::max(1, blocks() / stages);
    const double bytes = least(stage, pinned.empty() ? even : pinned[stage].length());
    least_bytes = stage == 0 ? bytes : std::max(least_bytes, bytes);
  }
  return {};
}

}  // namespace perigee::search
