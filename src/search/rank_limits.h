// What ranks may use of their devices' memory.
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
  double least() const;
  double most() const;

  // Of the rank that lacks the most for its program: `more` is what its program takes beside its
  // limit, at most 0 where all fit.
  struct Lack {
    double more = 0, peak = 0, limit = 0;
  };
  Lack lack(const Compiled& compiled) const;

 private:
  double of(int64_t rank) const;

  const Request& request_;
  const cost::Cluster& cluster_;
  std::vector<double> bytes_;
};

}  // namespace perigee::search
