#include "checkpoint/blocks.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/files.h"

namespace perigee::checkpoint {

std::vector<Range> shared_ranges(std::span<const Range> a, std::span<const Range> b) {
  std::vector<Range> shared;
  for (size_t d = 0; d < a.size(); ++d) {
    const auto begin = std::max(a[d].begin, b[d].begin);
    const auto end = std::min(a[d].begin + a[d].length, b[d].begin + b[d].length);
    shared.push_back({begin, std::max<int64_t>(0, end - begin)});
  }
  return shared;
}

int64_t position_in(std::span<const Range> block, std::span<const Range> whole) {
  int64_t position = 0;
  for (size_t d = 0; d < block.size(); ++d) {
    position = position * whole[d].length + block[d].begin - whole[d].begin;
  }
  return position;
}

int64_t span_in(std::span<const Range> block, std::span<const Range> whole) {
  int64_t last = 0;
  for (size_t d = 0; d < block.size(); ++d) last = last * whole[d].length + block[d].length - 1;
  return last + 1;
}

void split(std::vector<Range> block, std::span<const Range> whole, int64_t most,
           const std::function<void(std::span<const Range>)>& f) {
  size_t d = 0;
  while (d < block.size() && block[d].length == 1) ++d;
  if (d == block.size() || span_in(block, whole) <= most) return f(block);
  const auto [begin, length] = block[d];
  block[d] = {begin, length / 2};
  split(block, whole, most, f);
  block[d] = {begin + length / 2, length - length / 2};
  split(std::move(block), whole, most, f);
}

void copy_shared(std::span<const Range> shared, std::span<const Range> from,
                 const std::byte* source, std::span<const Range> to, std::byte* out, size_t size) {
  const size_t dims = shared.size();
  const int64_t run = dims == 0 ? 1 : shared[dims - 1].length;
  const int64_t count = count_of(shared), first = position_in(shared, from);
  std::vector<Range> at(shared.begin(), shared.end());
  for (int64_t done = 0; done < count; done += run) {
    std::memcpy(out + position_in(at, to) * size, source + (position_in(at, from) - first) * size,
                run * size);
    for (size_t d = dims - (dims > 0); d-- > 0;) {
      if (++at[d].begin < shared[d].begin + shared[d].length) break;
      at[d].begin = shared[d].begin;
    }
  }
}

}  // namespace perigee::checkpoint
