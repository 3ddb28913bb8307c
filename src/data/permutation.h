// A random order that needs no memory: sample i of an epoch is a pure function of seed,
// epoch and i.
#pragma once

#include <cstdint>

namespace perigee::data {

// A bijection of [0, size), drawn by `key`: a four-round Feistel network over the next power of
// four, walked until it falls into the range (Black and Rogaway 2002).
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key);
  // Returns where i goes; i < size. Expects fewer than four rounds of walking on average.
  uint64_t operator()(uint64_t i) const;

 private:
  uint64_t size_, key_;
  int half_bits_;
};

}  // namespace perigee::data
