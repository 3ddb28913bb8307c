// Lists of steps in a job: train.skip_steps.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace perigee::job {

// The steps first, ..., last.
struct StepRange {
  int64_t first = 0, last = 0;
  bool operator==(const StepRange&) const = default;
};

// Returns the steps of a text such as "12, 40-45"; none for "". Throws Error for another text.
std::vector<StepRange> parse_steps(std::string_view text);

// Returns whether one of the ranges has the step.
bool contains(const std::vector<StepRange>& ranges, int64_t step);

}  // namespace perigee::job
