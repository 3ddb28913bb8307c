#include "search/model/transfers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "search/model/message.h"

namespace perigee::search {
namespace {

using cost::CollectiveKind;

constexpr double kScalar = 8;  // bytes of a loss or a norm

}  // namespace

MessageSeconds Transfers::between(const Choice& choice, const Neighbours& neighbours,
                                  const Layers& layers) const {
  const auto& [from, to, rank] = neighbours;
  const auto first = equivalent_rank(costs_.cluster(), rank);
  const auto [entry, added] = messages_.try_emplace(
      {&layers, from.tensor, from.data, to.tensor, to.data, first, choice.sequence});
  if (!added) return entry->second;
  const MessageEnd a{from, first}, b{to, first + from.ranks()};
  const auto sent = block_output(choice, from), received = block_output(choice, to);
  const double bytes = sent.bytes * static_cast<double>(from.data);
  const double sharded = std::max(sent.sharded_ratio, received.sharded_ratio);
  const auto seconds = [&](const MessageEnd& x, const MessageEnd& y) {
    return (1 - sharded) * message_seconds(x, y, bytes, false, costs_) +
           sharded * message_seconds(x, y, bytes, true, costs_);
  };
  return entry->second = {seconds(a, b), seconds(b, a)};
}

Transfers::BlockOutput Transfers::block_output(const Choice& choice, const Submesh& submesh) const {
  std::string why;
  const auto* own = tables_.find(choice_of_stage(choice, submesh), why);
  const auto* unsharded = tables_.find(choice_of_stage(choice, {1, submesh.data}), why);
  if (!own && !unsharded) return {};
  const auto ranks = static_cast<double>(submesh.tensor);
  if (!own || !unsharded || unsharded->crossing <= 0) {
    const double sharded = choice.sequence && submesh.tensor > 1 ? 1 : 0;
    return {(own ? own : unsharded)->crossing * (sharded > 0 ? ranks : 1), sharded};
  }
  if (submesh.tensor == 1) return {unsharded->crossing, 0};
  const double sharded = (1 - own->crossing / unsharded->crossing) / (1 - 1 / ranks);
  return {unsharded->crossing, std::clamp(sharded, 0.0, 1.0)};
}

double Transfers::mean_message(const Choice& choice, const Layers& layers) const {
  if (choice.pipe == 1) return 0;
  const auto ranks = choice.tensor * choice.expert * choice.parts();
  double seconds = 0;
  for (const auto& [sender, count] : senders(ranks, choice.pipe)) {
    const std::vector<int64_t> pair{sender, sender + ranks};
    seconds += static_cast<double>(count) *
               costs_
                   .collective(
                       {.kind = CollectiveKind::message, .ranks = pair, .bytes = layers.crossing})
                   .seconds;
  }
  return seconds / static_cast<double>(choice.pipe - 1);
}

const std::map<int64_t, int64_t>& Transfers::senders(int64_t ranks, int64_t stages) const {
  const auto [entry, added] = senders_.try_emplace({ranks, stages});
  if (!added) return entry->second;
  const auto& cluster = costs_.cluster();
  std::map<int, int64_t> by_level;
  for (int64_t stage = 0; stage + 1 < stages; ++stage) {
    const auto first = stage * ranks, last = first + ranks - 1;
    const int of_first = cluster.level(first, first + ranks);
    const int of_last = cluster.level(last, last + ranks);
    const auto farther = of_last > of_first ? last : first;
    ++entry->second[by_level.try_emplace(std::max(of_first, of_last), farther).first->second];
  }
  return entry->second;
}

MessageSeconds Transfers::to_next(const Choice& choice, const Places& places, int stage) const {
  if (choice.submeshes.empty()) {
    const double seconds = mean_message(choice, *places.at(0).layers);
    return {seconds, seconds};
  }
  int64_t first = 0;
  for (int before = 0; before < stage; ++before) first += submesh_of(choice, before).ranks();
  return between(choice, {submesh_of(choice, stage), submesh_of(choice, stage + 1), first},
                 *places.at(stage).layers);
}

double Transfers::round_trip(const Choice& choice, const Places& places) const {
  double seconds = 0;
  for (int stage = 0; stage + 1 < choice.pipe; ++stage) {
    seconds += to_next(choice, places, stage).both();
  }
  return seconds;
}

double Transfers::scalar_all_reduce(const Choice& choice) const {
  if (choice.pipe == 1) return 0;
  // Stages of unequal submeshes have no groups of their own: the group has all ranks.
  const bool homogeneous = choice.submeshes.empty();
  const auto stride = homogeneous ? choice.tensor * choice.expert * choice.parts() : 1;
  int64_t count = homogeneous ? choice.pipe : 0;
  for (const auto& submesh : choice.submeshes) count += submesh.ranks();
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < count; ++i) ranks.push_back(i * stride);
  return costs_.collective({.kind = CollectiveKind::all_reduce, .ranks = ranks, .bytes = kScalar})
      .seconds;
}

}  // namespace perigee::search
