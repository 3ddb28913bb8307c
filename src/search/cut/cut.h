// The best cut of a row of identical blocks into the stages of a pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace perigee::search {

// A stage with the prologue, with the epilogue, or of blocks only.
enum class StageKind { first, middle, last };

struct StagePart {
  double seconds = 0;  // a microbatch; grows with the length
  // In-flight microbatches that it has memory for; falls with the length. 0: it does not fit.
  int64_t most = std::numeric_limits<int64_t>::max();
  int recomputed_blocks = 0;  // for the caller
};

struct Row {
  int blocks = 0;
  int64_t stages = 2;  // at least 2
  int64_t microbatches = 1;
  // Weight of the longest stage, beside the sum of all; nothing: microbatches - 1.
  std::optional<int64_t> rounds;
  // Returns the ways to run a stage of `length` blocks (at least 1): one or more, each slower than
  // the previous one and with memory for more microbatches.
  std::function<std::vector<StagePart>(StageKind kind, int length)> parts;
  // Returns whether a stage may have the blocks [begin, end); nothing: all may.
  std::function<bool(int begin, int end)> allowed = {};
  std::string solver = "auto";                                  // solve::Options's
  double time_limit = std::numeric_limits<double>::infinity();  // seconds; 0: only even cuts
};

struct Cut {
  std::vector<int> begins;             // the first block of each later stage
  std::vector<int> recomputed_blocks;  // of each stage: StagePart's
  bool best = true;                    // of all cuts; false: the best one found in time
};

// Returns the cut and the ways with the least sum of the stages' seconds plus `rounds` times the
// longest's, where a stage with k successors has memory for k + 1 microbatches, or for all; nothing
// where no cut fits. Exact (solve/): it prunes lengths and places that no cut as good as an even
// one has. When the time limit ends the search: the best cut found, or an even one; nothing where
// neither fits.
std::optional<Cut> cut(const Row& row);

}  // namespace perigee::search
