// The best distribution of a row of identical blocks to the parts of a pipeline whose stages have
// several parts each, which need not be adjacent.
#pragma once

#include <functional>
#include <optional>
#include <vector>

namespace perigee::search {

struct Deal {
  int blocks = 0;
  std::vector<int> stages;  // of the parts, in forward order
  // Fewest blocks of the first part and of the last one, 0 or 1; the others have at least one.
  int fewest_first = 1, fewest_last = 1;
  // Stages wait for each other's longest parts: parts of a stage are balanced by time, else
  // by memory.
  bool in_rounds = false;
  // Costs of a part of `length` blocks; both grow with the length.
  std::function<double(int part, int length)> seconds;
  std::function<double(int part, int length)> in_flight_bytes;  // of one microbatch
  // Whether a stage fits into memory, which is decided by the sum of its parts' blocks and by the
  // part that holds the most. `own` are its parts, `lengths` those of all parts. Nothing: any fits.
  std::function<bool(int stage, const std::vector<int>& own, const std::vector<int>& lengths)> fits;
};

// Returns the parts' lengths with the fastest slowest stage, where a stage's seconds are the sum of
// its parts'; nothing where no lengths fit. Exact where a part's seconds are linear in its blocks.
// Identical stages get blocks from the last one on, which in most schedules has fewer microbatches
// in flight.
std::optional<std::vector<int>> deal(const Deal& row);

}  // namespace perigee::search
