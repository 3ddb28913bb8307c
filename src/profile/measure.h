// Times from samples, with their intervals, and lines through them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace perigee::profile {

struct Measured {
  double seconds = 0;   // the median or mean
  double interval = 0;  // half of its 95% confidence interval
  int64_t samples = 0;
  bool operator==(const Measured&) const = default;
};

// Returns the median of at least one sample.
Measured median_of(std::vector<double> samples);
// Returns the mean of at least one sample. Parts of a whole are measured by means, since only means
// add up where a part is occasionally much slower.
Measured mean_of(const std::vector<double>& samples);

// A collective's times by the bytes that it moves.
using Points = std::map<double, Measured>;

// A collective's time by the bytes that it moves: latency + bytes * per_byte.
struct Line {
  double latency = 0;
  double per_byte = 0;
  double interval = 0;  // the largest of the points', as a share of their times
  bool operator==(const Line&) const = default;
};

// Returns the line fitted to the points by least squares, each weighted by 1 / max(interval, 5% of
// its time); latency and per_byte are at least 0.
Line fit(const Points& points);

}  // namespace perigee::profile
