// Counts, placement of parts and chunk costs of a schedule, for the files that build one.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace perigee::schedule {

using Orders = std::vector<std::vector<PipelineOp>>;

struct Shape {
  int stages = 1;
  int microbatches = 1;
  int chunks = 1;
  bool v_shape = false;  // chunk 1 runs through the stages in reverse
  double forward = 1;    // of one chunk
  double backward = 1;
  double wgrad = 1;
  double transfer = 0;

  int parts() const { return stages * chunks; }
  int part(int stage, int chunk) const {
    return v_shape && chunk == 1 ? 2 * stages - 1 - stage : chunk * stages + stage;
  }
  int stage_of(int part) const {
    return v_shape && part >= stages ? 2 * stages - 1 - part : part % stages;
  }
  int chunk_of(int part) const { return part / stages; }
  double duration(PipelineKind kind) const {
    switch (kind) {
      case PipelineKind::forward:
        return forward;
      case PipelineKind::backward:
        return backward + wgrad;
      case PipelineKind::input_grad:
        return backward;
      case PipelineKind::weight_grad:
        return wgrad;
    }
    return 0;
  }
  // Busy time of one stage for all microbatches.
  double busy() const { return microbatches * chunks * (forward + backward + wgrad); }
};

struct TimeLine {
  std::vector<std::vector<double>> start;  // [stage][position]
  double makespan = 0;
  double longest_span = 0;
};

// Returns the earliest start of every op. Dependencies: a forward on the previous part's forward, a
// backward on the next part's backward (the last part's on its own forward), a weight_grad on its
// input_grad; plus shape.transfer between stages. Throws std::logic_error where the orders deadlock
// or lack an op.
TimeLine earliest_start(const Shape& shape, const Orders& orders);

// Returns the most in-flight activations of each stage, in chunks.
std::vector<int> peak_chunks(const Orders& orders);

}  // namespace perigee::schedule
