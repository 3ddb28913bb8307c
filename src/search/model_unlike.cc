// Pipelines whose stages differ: submeshes of their own, or other devices.
#include <algorithm>
#include <limits>

#include "search/cut_unlike.h"
#include "search/model.h"
#include "search/transfer.h"

namespace perigee::search {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

bool Model::is_unlike(const Choice& choice) const {
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
  if (!is_unlike(choice)) {
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
      const bool there = begin < first + count && first < begin + devices[kind].count;
      if (there) place.limit = std::min(place.limit, limits_.bytes[kind]);
    }
    first += count;
    const auto known =
        std::find_if(places.list.begin(), places.list.end(), [&](const Place& other) {
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
  rates.again = layers.block.forward * share_again(own);
  const bool in_parts = own.zero >= 2 && own.parts() > 1;
  const auto* exchanged =
      in_parts ? &exchanges(own, layers, {aligned(first), costs_.cluster().ranks() - 1}) : nullptr;
  const auto set = [&](double* to, const Layer& layer, const LayerExchange* of, bool back_too) {
    const auto [there, back] = passes(own, layer, layers);
    for (size_t way = 0; way < Rates::kWays; ++way) {
      const bool gathers = of && way % 2 == 1, exchanges = of && way / 2 == 1;
      to[way] = (gathers ? of->gather_forward : there) + (!exchanges ? back
                                                          : back_too ? of->gather_backward
                                                                     : 0);
    }
  };
  // What is before the blocks need not be gathered again where it is tied to what is behind.
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
  double longest = 0, sum = 0, fastest = kInfinity, again = 0;
  for (size_t way = 0; way < Rates::kWays; ++way) {
    // All stages take as long, and have all blocks together.
    double work = blocks, speed = 0;
    for (size_t stage = 0; stage < count; ++stage) {
      const double block = stages[stage]->block[way], more = extra(stage, way);
      work += more / block;
      speed += 1 / block;
      longest = std::max(longest, block + more);
    }
    if (speed < kInfinity) longest = std::max(longest, work / speed);
  }
  for (size_t stage = 0; stage < count; ++stage) {
    const double block = stages[stage]->block[0];
    sum += block + extra(stage, 0);
    fastest = std::min(fastest, block);
    again = std::max(again, stages[stage]->again);
  }
  sum += (blocks - static_cast<double>(count)) * fastest;
  const auto& name = choice.schedule;
  double lost = 0;
  if (name == "1f1b" || name == "eager_1f1b" || name == "gpipe") {
    const double hidden = again * blocks * static_cast<double>(count - 1) / double(count);
    lost = std::max(0.0, sum - longest - hidden) + transfer;
  }
  return longest * static_cast<double>(choice.microbatches) + lost;
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
  const bool split = choice.sequence;
  const double bytes = layers.crossing * static_cast<double>(from.data * (split ? from.tensor : 1));
  const auto [entry, added] =
      transfers_.try_emplace({from.tensor, from.data, to.tensor, to.data, first, split, bytes});
  if (!added) return entry->second;
  const End a{from, first}, b{to, first + from.ranks()};
  return entry->second = {transfer_seconds(a, b, bytes, split, costs_),
                          transfer_seconds(b, a, bytes, split, costs_)};
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
  const bool alike = choice.submeshes.empty();
  const auto stage = alike ? choice.tensor * choice.expert * choice.parts() : 1;
  int64_t count = alike ? choice.pipe : 0;
  for (const auto& submesh : choice.submeshes) count += submesh.ranks();
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < count; ++i) ranks.push_back(i * stage);
  return costs_.collective({cost::CollectiveKind::all_reduce, "pipe", ranks, 8}).seconds;
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
    const auto& [begin, end, again] = parts[k];
    const auto& layers = *places.at(stage_of_part[k]).layers;
    const double share = layers.again ? again : (end - begin) * share_again(choice);
    passes.again += share * layers.block.forward;
  }
  passes.transfer =
      all_transfers(choice, places) / (2 * std::max(1.0, static_cast<double>(choice.pipe - 1)));
  return passes;
}

std::vector<Model::Blocks> Model::pinned_parts() const {
  std::vector<Blocks> parts;
  int begin = 0;
  for (const int start : limits_.starts) {
    parts.push_back({begin, start});
    begin = start;
  }
  parts.push_back({begin, blocks()});
  return parts;
}

std::vector<Model::Blocks> Model::cut_unlike_stages(const Choice& choice, const Places& places,
                                                    const StageOf& stage_of,
                                                    double& least_bytes) const {
  const auto stages = static_cast<int>(choice.pipe);
  const auto pinned = limits_.starts.empty() ? std::vector<Blocks>{} : pinned_parts();
  std::map<std::pair<int, int>, int> again_of;  // by stage and length
  // Of a stage the bytes of its least way, were it so long.
  const auto least = [&](int stage, int length) {
    const int again = places.at(stage).layers->again ? length : 0;
    return bytes_of(choice, stage_of(stage, blocks_of(stage, stages, length, again)),
                    stages - 1 - stage);
  };
  const auto times = [&](int stage, int length) -> UnlikeTimes {
    if (!pinned.empty()) {
      const auto& [begin, end, again] = pinned[static_cast<size_t>(stage)];
      if (length != end - begin) return {};
    }
    const auto& place = places.at(stage);
    for (int again = 0; again <= (place.layers->again ? length : 0); ++again) {
      const auto& one = stage_of(stage, blocks_of(stage, stages, length, again));
      if (bytes_of(choice, one, stages - 1 - stage) > place.limit) continue;
      again_of[{stage, length}] = again;
      const double back = stage + 1 < stages ? hop(choice, places, stage).back : 0;
      return {true, one.pass(), one.backward + back, one.ready(), one.optimizer};
    }
    return {};
  };
  const auto lengths = cut_unlike({.blocks = blocks(),
                                   .stages = stages,
                                   .microbatches = choice.microbatches,
                                   .once = meeting(choice),
                                   .times = times});
  std::vector<Blocks> parts;
  int begin = 0;
  for (int stage = 0; stage < stages; ++stage) {
    if (!lengths) {
      const int even = std::max(1, blocks() / stages);
      const auto length = pinned.empty() ? even : pinned[stage].end - pinned[stage].begin;
      const double bytes = least(stage, length);
      least_bytes = stage == 0 ? bytes : std::max(least_bytes, bytes);
      continue;
    }
    const int length = (*lengths)[static_cast<size_t>(stage)];
    parts.push_back({begin, begin + length, again_of[{stage, length}]});
    begin += length;
  }
  return parts;
}

}  // namespace perigee::search
