// The best cut of a row of blocks into stages of which each has times of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace perigee::search {

// What a stage takes: of a microbatch, and once a step behind its last backward pass: until all
// stages meet in the gradients' norm, and behind that (the optimizer).
struct UnlikeTimes {
  bool fits = false;
  double seconds = 0;   // a microbatch
  double backward = 0;  // of it, and of the next stage's message, before a gradient is there
  double once = 0, behind = 0;
};

struct UnlikeRow {
  int blocks = 0;
  int stages = 1;
  int64_t microbatches = 1;
  double once = 0;     // of any stage, at least
  bool alike = false;  // stages between the first and the last are
  std::function<UnlikeTimes(int stage, int length)> times;  // of so many blocks, at least 1
};

// Returns the lengths for which this is least: the sum of the stages' seconds, (microbatches - 1)
// times the longest's, the longest `once` less the backward passes of the stages before, which end
// later, and the longest `behind`. Nothing where none fits. Exact: without what comes once a step
// by dynamic programming over stages and blocks for each longest stage, and with it by branch and
// bound from there, which stops at kMostCuts tries.
std::optional<std::vector<int>> cut_unlike(const UnlikeRow& row);

inline constexpr int64_t kMostCuts = 20000;

// Returns the lengths of the least price: of all where there are few cuts; else of those that one
// comes to from `lengths` where moving a block from a stage to another helps. Of stages that are
// alike and as long only the first and the last give or take one.
std::vector<int> refine_cut(const UnlikeRow& row, std::vector<int> lengths,
                            const std::function<double(const std::vector<int>&)>& price);

inline constexpr int64_t kFewCuts = 64;

// Returns whether there are so few cuts that all are looked at.
bool has_few_cuts(int blocks, int stages);

}  // namespace perigee::search
