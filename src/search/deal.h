// The best way to deal a row of blocks that are alike to the parts of a pipeline whose stages have
// several parts each, which need not follow each other.
#pragma once

#include <functional>
#include <optional>
#include <vector>

namespace perigee::search {

struct Deal {
  int blocks = 0;
  std::vector<int> stages;  // of the parts, in forward order
  // The least that the first part and the last have, 0 or 1; the others have a block at least.
  int first = 1, last = 1;
  // Whether stages wait for each other's longest parts, so that a stage's should take as long as
  // each other; otherwise they hold as much as each other.
  bool in_rounds = false;
  // Of a part of so many blocks: both grow with their number.
  std::function<double(int part, int length)> seconds;
  std::function<double(int part, int length)> held;  // bytes that a microbatch in flight keeps
  // Whether a stage fits into memory, which is decided by the sum of its parts' blocks and by the
  // part that holds the most. `own` are its parts, `lengths` those of all parts. Nothing: any fits.
  std::function<bool(int stage, const std::vector<int>& own, const std::vector<int>& lengths)> fits;
};

// Returns the parts' lengths for which the stage that takes the longest takes the least, where a
// stage takes as long as its parts do one after the other; nothing where no lengths fit. Exact
// where a part's seconds are linear in its blocks. Stages that are alike get blocks from the last
// one on, which in most schedules has fewer microbatches in flight.
std::optional<std::vector<int>> deal(const Deal& row);

}  // namespace perigee::search
