// The median of measured times.
#pragma once

#include <algorithm>
#include <vector>

namespace perigee::bench {

// Returns the median of at least one value, of an even number the mean of the middle two.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace perigee::bench
