#include "search/rank_limits.h"

#include <algorithm>
#include <limits>

#include "search/space/memory_model.h"

namespace perigee::search {

RankLimits::RankLimits(const Request& request, const cost::Cluster& cluster)
    : request_(request), cluster_(cluster) {
  for (const auto& device : cluster.devices) {
    const double most = request.memory_limit > 0 ? request.memory_limit
                                                 : (1 - kReserve) * device.memory;
    bytes_.push_back(std::min(most, request.pins.memory.value_or(most)));
  }
}

double RankLimits::smallest_bytes() const { return *std::ranges::min_element(bytes_); }
double RankLimits::largest_bytes() const { return *std::ranges::max_element(bytes_); }

RankLimits::Excess RankLimits::largest_excess(const Compiled& compiled) const {
  const auto& [plan, programs] = compiled;
  Excess result{.extra = -std::numeric_limits<double>::infinity()};
  const auto ranks = mesh::ranks(plan.mesh);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const double peak = peak_bytes(request_.pins.model, programs.of(i), plan,
                                   static_cast<double>(plan.prediction.peak_bytes[i]));
    const double limit = of(ranks[i]);
    if (peak - limit > result.extra) result = {peak - limit, peak, limit};
  }
  return result;
}

double RankLimits::of(int64_t rank) const {
  const auto* device = &cluster_.device(rank);
  for (size_t kind = 0; kind < bytes_.size(); ++kind) {
    if (&cluster_.devices[kind] == device) return bytes_[kind];
  }
  return smallest_bytes();
}

}  // namespace perigee::search
