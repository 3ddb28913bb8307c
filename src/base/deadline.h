// The end of a time limit.
#pragma once

#include <algorithm>
#include <chrono>

namespace perigee {

// Returns the moment in so many seconds; more than 1e9 (30 years), and infinity, count as 1e9.
inline std::chrono::steady_clock::time_point deadline_after(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr double kMost = 1e9;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, kMost)));
}

}  // namespace perigee
