// Step time of a heterogeneous pipeline: sections run in the order of the schedule, and messages
// take the links of both ends, one after the other, as in the simulator.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace perigee::search {

// Seconds of one microbatch.
struct RowStage {
  double forward = 0, backward = 0;
  double recomputed = 0;  // of backward: can run before the gradient arrives
  double tail = 0;        // of backward: reductions after its gradient is sent
  // Of the two passes: transfers over the links that messages use.
  double forward_links = 0, backward_links = 0;
  double send_seconds = 0, return_seconds = 0;  // messages to the next stage, and from it
};

struct RowTimes {
  double seconds = 0;        // until the last backward pass of any stage ends
  std::vector<double> ends;  // [stage] of its last backward pass
};

// Returns the times of the schedule `name`, one that warms up (schedule::Description::warms_up).
// The time of many microbatches is extrapolated.
RowTimes time_row(const std::string& name, std::span<const RowStage> stages, int64_t microbatches);

}  // namespace perigee::search
