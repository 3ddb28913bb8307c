#include "search/cut/balanced_cut.h"

#include <algorithm>
#include <limits>

namespace perigee::search {

std::vector<int> balanced_cut(const std::vector<double>& weights, int parts) {
  const int blocks = static_cast<int>(weights.size());
  std::vector<double> before(weights.size() + 1);
  for (int b = 0; b < blocks; ++b) before[b + 1] = before[b] + weights[b];
  // least[p][b]: the largest part's weight with p + 1 parts of the first b blocks.
  std::vector<std::vector<double>> least(
      parts, std::vector<double>(blocks + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<int>> begin(parts, std::vector<int>(blocks + 1));
  for (int b = 1; b <= blocks; ++b) least[0][b] = before[b];
  for (int p = 1; p < parts; ++p) {
    for (int end = p + 1; end <= blocks; ++end) {
      for (int at = end - 1; at >= p; --at) {
        const double worst = std::max(least[p - 1][at], before[end] - before[at]);
        if (worst < least[p][end]) least[p][end] = worst, begin[p][end] = at;
      }
    }
  }
  std::vector<int> cuts;
  for (int p = parts - 1, end = blocks; p > 0; --p) {
    end = begin[p][end];
    cuts.insert(cuts.begin(), end);
  }
  return cuts;
}

}  // namespace perigee::search
