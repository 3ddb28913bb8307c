// Limits of the plans that the cost model may return.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace perigee::search {

struct Limits {
  std::vector<double> bytes;             // of a rank, by kind of the cluster's devices
  std::string solver = "auto";           // solve::Options's
  std::vector<int> starts;               // the first block of each later part; empty: any
  std::function<double()> seconds_left;  // of solvers; nothing: unlimited
  double balance = 0;                    // Pins::balance

  // Returns the smallest memory limit of any rank.
  double smallest_bytes() const { return *std::min_element(bytes.begin(), bytes.end()); }
};

}  // namespace perigee::search
