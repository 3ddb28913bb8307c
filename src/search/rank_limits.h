// Memory limits of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "search/compiled.h"

namespace perigee::search {

class RankLimits {
 public:
  // Both kept by reference.
  RankLimits(const Request& request, const cost::Cluster& cluster);

  // Bytes of a rank by kind of the cluster's devices; of all kinds.
  const std::vector<double>& by_kind() const { return bytes_; }
  double smallest_bytes() const;
  double largest_bytes() const;

  // Bytes of the rank whose program exceeds its limit the most: `extra` is peak - limit, at most 0
  // where all fit.
  struct Excess {
    double extra = 0, peak = 0, limit = 0;
  };
  Excess largest_excess(const Compiled& compiled) const;

 private:
  double of(int64_t rank) const;

  const Request& request_;
  const cost::Cluster& cluster_;
  std::vector<double> bytes_;
};

}  // namespace perigee::search
