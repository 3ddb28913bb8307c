// Cuts of a row of heterogeneous blocks by their arithmetic.
#pragma once

#include <vector>

namespace perigee::search {

// Returns the first block of each later part, such that the largest part has the least weight; of
// several such cuts the one whose parts are the longest first. `weights`: of each block. Requires
// 1 <= parts <= weights.size().
std::vector<int> balanced_cut(const std::vector<double>& weights, int parts);

}  // namespace perigee::search
