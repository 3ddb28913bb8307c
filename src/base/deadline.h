// The end of a time limit.
#pragma once

#include <algorithm>
#include <chrono>

namespace perigee {

// Returns the moment so many seconds after `start`. More than 1e9 (30 years), and infinity,
// count as 1e9.
inline std::chrono::steady_clock::time_point deadline_after(
    double seconds,
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now()) {
  using Duration = std::chrono::steady_clock::duration;
  constexpr double kMost = 1e9;
  return start + std::chrono::duration_cast<Duration>(
                     std::chrono::duration<double>(std::min(seconds, kMost)));
}

}  // namespace perigee
