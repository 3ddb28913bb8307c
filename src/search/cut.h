// The best cut of a row of blocks that are alike into the stages of a pipeline.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace perigee::search {

// Of a stage: with what stands before the blocks, with what stands behind, or of blocks alone.
enum class StageKind { first, middle, last };

struct StagePart {
  double seconds = 0;  // a microbatch; grows with the length
  // The microbatches in flight that it has memory for; falls with the length. 0: it does not fit.
  int64_t most = std::numeric_limits<int64_t>::max();
  int again = 0;  // its blocks that run again: the caller's
};

struct Row {
  int blocks = 0;
  int64_t stages = 2;  // at least 2
  int64_t microbatches = 1;
  // How often the longest stage counts beside the sum of all; nothing: microbatches - 1.
  std::optional<int64_t> rounds;
  // The ways to run a stage of so many blocks, at least 1: one or more, each slower than the one
  // before and with memory for more.
  std::function<std::vector<StagePart>(StageKind kind, int length)> parts;
  std::string solver = "auto";                                  // solve::Options's
  double time_limit = std::numeric_limits<double>::infinity();  // seconds; 0: even cuts alone
};

struct Cut {
  std::vector<int> begins;  // the first block of each stage behind the first
  std::vector<int> again;   // of each stage: StagePart's
  bool best = true;         // of all; false: the best that was found in time
};

// Returns the cut and the ways for which the sum of the stages' seconds and `rounds` times the
// longest's is least, and a stage with k successors has memory for k + 1 microbatches, or
// for all; nothing where no cut fits. Exact (solve/): lengths and places are left out that no cut
// as good as an even one has. Of what the time limit leaves open, the best cut that was found or an
// even one; nothing where neither is there.
std::optional<Cut> cut(const Row& row);

}  // namespace perigee::search
