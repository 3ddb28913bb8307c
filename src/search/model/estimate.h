// The time and memory of a choice, as the cost model predicts them.
#pragma once

#include <vector>

namespace perigee::search {

// The seconds of a step on the slowest stage, by cause.
struct StepSeconds {
  double compute = 0;  // forward and backward passes of all microbatches
  double tensor = 0;   // waiting for collectives within layers
  double bubble = 0;   // pipeline bubble
  double data = 0;     // exposed exchange of gradients and weights
  double optimizer = 0;
  double total() const { return compute + tensor + bubble + data + optimizer; }
};

struct Estimate {
  double seconds = 0;
  double lower_bound = 0;       // seconds; no cut of the blocks into stages is faster
  double epilogue_seconds = 0;  // of `seconds`: per-step epilogue, after the last backward pass
  // Lower bound of the passes of all microbatches, for any cut with the same sum of the stages'
  // passes whose slowest stage is no faster, whichever stage that is.
  double passes_bound = 0;
  double bytes = 0;           // of the stage with the largest share of its limit
  double limit = 0;           // of that stage, in bytes
  StepSeconds parts;          // of `seconds`
  std::vector<int> cuts;      // the first block of each later stage
  std::vector<double> costs;  // of a schedule that splits backward passes: forward, input and
                              // weight gradients and a message, relative to their average
  std::vector<int> recomputed_blocks;  // where a solver chooses them
};

}  // namespace perigee::search
