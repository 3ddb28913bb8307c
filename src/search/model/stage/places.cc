#include "search/model/stage/places.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace perigee::search {

bool is_heterogeneous(const Choice& choice, const cost::Cluster& cluster) {
  return !choice.submeshes.empty() || (choice.pipe > 1 && cluster.devices.size() > 1);
}

Choice choice_of_stage(const Choice& choice, const Submesh& submesh) {
  auto own = choice;
  own.submeshes.clear();
  own.tensor = submesh.tensor;
  own.data = submesh.data;
  own.micro = choice.micro * choice.batch() / submesh.data;
  own.sequence = choice.sequence && submesh.tensor > 1;
  if (submesh.data == 1) own.zero = 0;
  return own;
}

Submesh submesh_of(const Choice& choice, int stage) {
  return choice.submeshes.empty() ? Submesh{choice.tensor, choice.data}
                                  : choice.submeshes[static_cast<size_t>(stage)];
}

int64_t equivalent_rank(const cost::Cluster& cluster, int64_t rank) {
  const auto& links = cluster.links;
  return links.size() < 2 ? 0 : rank % links[links.size() - 2].ranks;
}

std::optional<Places> places_of_stages(const Choice& choice, const Layers& layers,
                                       LayerTables& tables, const cost::Cluster& cluster,
                                       const Limits& limits) {
  Places places;
  if (!is_heterogeneous(choice, cluster)) {
    places.list.push_back({choice, &layers, {}, limits.smallest_bytes()});
    places.of.assign(static_cast<size_t>(choice.pipe), 0);
    return places;
  }
  const auto others = choice.submeshes.empty() ? choice.expert * choice.context : 1;
  const auto& devices = cluster.devices;
  int64_t first = 0;
  for (int stage = 0; stage < choice.pipe; ++stage) {
    const auto submesh = submesh_of(choice, stage);
    const auto count = submesh.ranks() * others;
    StagePlace place{
        .choice = choice.submeshes.empty() ? choice : choice_of_stage(choice, submesh),
        .ranks = {.first = equivalent_rank(cluster, first), .opposite = cluster.ranks() - 1},
        .limit = std::numeric_limits<double>::infinity()};
    std::string why;
    place.layers = tables.on_ranks(place.choice, first, count, why);
    if (!place.layers) return std::nullopt;
    int64_t begin = 0;
    for (size_t kind = 0; kind < devices.size(); begin += devices[kind++].count) {
      const bool uses_kind = begin < first + count && first < begin + devices[kind].count;
      if (uses_kind) place.limit = std::min(place.limit, limits.bytes[kind]);
    }
    first += count;
    const auto same = std::ranges::find_if(places.list, [&](const StagePlace& other) {
      return other.layers == place.layers && other.limit == place.limit &&
             other.ranks.first == place.ranks.first && other.choice.tensor == place.choice.tensor &&
             other.choice.data == place.choice.data;
    });
    places.of.push_back(static_cast<int>(same - places.list.begin()));
    if (same == places.list.end()) places.list.push_back(std::move(place));
  }
  return places;
}

}  // namespace perigee::search
