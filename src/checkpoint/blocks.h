// Blocks of a row-major tensor: one range per dim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace perigee::checkpoint {

// Returns the elements that two blocks of one tensor share; lengths are 0 where there are none.
std::vector<Range> shared_ranges(std::span<const Range> a, std::span<const Range> b);

// Returns the position of the block's first element in a row-major block that holds it.
int64_t position_in(std::span<const Range> block, std::span<const Range> whole);

// Returns the number of elements of the row-major block `whole` from the first to the last of
// `block`, which it holds.
int64_t span_in(std::span<const Range> block, std::span<const Range> whole);

// Calls `f` for parts of the block, in row-major order, whose span_in(whole) is at most `most`, or
// which are one element. If the block is `whole`, the parts lie one after the other.
void split(std::vector<Range> block, std::span<const Range> whole, int64_t most,
           const std::function<void(std::span<const Range>)>& f);

// Copies the block `shared` (not empty) of two row-major blocks of one tensor from one to the
// other. `source`: the first element of `shared` in `from`. `size`: one element's bytes.
void copy_shared(std::span<const Range> shared, std::span<const Range> from,
                 const std::byte* source, std::span<const Range> to, std::byte* out, size_t size);

}  // namespace perigee::checkpoint
