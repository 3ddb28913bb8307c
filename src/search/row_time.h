// When the stages of a pipeline that are not alike end a step: their sections run in the order of
// the schedule, and messages take the links of both ends, one after the other, as in the simulator.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace perigee::search {

// Of a microbatch. Seconds.
struct RowStage {
  double forward = 0, backward = 0;
  double again = 0;  // of backward: what runs again, before a gradient is there
  double tail = 0;   // of backward: what is reduced while its gradient is on its way
  // Of both: what goes over the links that messages take.
  double forward_links = 0, backward_links = 0;
  double there = 0, back = 0;  // messages to the next stage, and from it
};

struct RowTimes {
  double seconds = 0;        // until the first stage's last backward pass ends
  std::vector<double> ends;  // by stage: of its last backward pass
};

// Returns them by 1f1b, eager_1f1b or gpipe. Of many microbatches the last rounds are taken to be
// as long as those before them.
RowTimes time_row(const std::string& schedule, std::span<const RowStage> stages,
                  int64_t microbatches);

}  // namespace perigee::search
