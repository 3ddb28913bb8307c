// The best cut of a row of blocks into heterogeneous stages.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace perigee::search {

// Seconds of a stage with some blocks: of a microbatch, and per step after its last backward pass.
struct CutStageTimes {
  bool fits = false;
  double seconds = 0;     // a microbatch
  double backward = 0;    // of `seconds`: the next stage's message, and until it sends a gradient
  double until_norm = 0;  // per step, until the all-reduce of the gradients' norm over all stages
  double optimizer = 0;   // per step, after that all-reduce
};

struct HeterogeneousRow {
  int blocks = 0;
  int stages = 1;
  int64_t microbatches = 1;
  double until_norm_bound = 0;   // lower bound of any stage's `until_norm`
  bool identical_inner = false;  // the stages between the first and the last are identical
  // Of refine_cut(): fewest blocks of the first stage and of the last one, 0 or 1; others have one.
  int fewest_first = 1, fewest_last = 1;
  std::function<CutStageTimes(int stage, int length)> times;  // at least 1 block
};

// Returns the lengths for which this is least: the sum of the stages' seconds, (microbatches - 1)
// times the longest's, the longest `until_norm` less the backward passes of the stages before,
// which end later, and the longest `optimizer`. Nothing where none fits. Exact: dynamic programming
// over stages and blocks for each longest stage, without per-step times, then branch and bound with
// them, which stops after kMostCuts tries.
std::optional<std::vector<int>> cut_heterogeneous(const HeterogeneousRow& row);

inline constexpr int64_t kMostCuts = 20000;

// Returns the lengths of the lowest price: of all cuts where there are few; else a local optimum
// from `lengths` by moving a block from one stage to another. Of identical stages of the same
// length only the first and the last give or take one.
std::vector<int> refine_cut(const HeterogeneousRow& row, std::vector<int> lengths,
                            const std::function<double(const std::vector<int>&)>& price);

inline constexpr int64_t kFewCuts = 64;

// Returns whether there are at most kFewCuts cuts, without the stages' memory.
bool has_few_cuts(const HeterogeneousRow& row);

}  // namespace perigee::search
