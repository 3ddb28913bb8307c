// Offline placement: blocks of known size and lifetime share one piece of memory
// (dynamic storage allocation).
#pragma once

#include <cstdint>
#include <vector>

namespace perigee::compile {

// Memory of `bytes`, in use in [start, end).
struct Block {
  int64_t bytes = 0;
  int64_t start = 0;
  int64_t end = 0;
};

struct Packing {
  std::vector<int64_t> offsets;  // like the blocks, multiples of kAlignment
  int64_t bytes = 0;             // size of the packed memory
  int64_t lower_bound = 0;       // of all packings: the most bytes in use at one time
};

constexpr int64_t kAlignment = 64;

inline int64_t align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Packs blocks so that those in use at the same time do not overlap. Tries several orders and keeps
// the best; the same blocks always give the same packing.
Packing pack(const std::vector<Block>& blocks);

}  // namespace perigee::compile
