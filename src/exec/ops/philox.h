// Philox4x32-10 and the distributions computed from its words, for host and device code
// (exec/ops/random.h assigns words to elements). Includes no torch header; compiles with nvcc.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace perigee::exec {

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9, kPhiloxWeyl1 = 0xBB67AE85;

struct PhiloxWords {
  uint32_t w[4];
};

// The bijection itself, ten rounds.
PERIGEE_BOTH PhiloxWords philox_rounds(PhiloxWords c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxMultiplier0} * c.w[0];
    const uint64_t p1 = uint64_t{kPhiloxMultiplier1} * c.w[2];
    c = {{static_cast<uint32_t>(p1 >> 32) ^ c.w[1] ^ k0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c.w[3] ^ k1, static_cast<uint32_t>(p0)}};
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return c;
}

// Returns the words of elements 4 * block, ..., 4 * block + 3 of one op in one step.
PERIGEE_BOTH PhiloxWords philox_block(uint64_t seed, uint32_t key, uint32_t step, uint64_t block) {
  return philox_rounds({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), step,
                         static_cast<uint32_t>(seed >> 32)}},
                       static_cast<uint32_t>(seed), key);
}

// Returns a + b * x with two roundings; never a fused multiply-add.
PERIGEE_BOTH double add_product(double a, double b, double x) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, __dmul_rn(b, x));
#else
  return a + b * x;
#endif
}

// Returns a number in [0, 1) of that many bits.
PERIGEE_BOTH double uniform_of(uint32_t word, int bits) {
  return static_cast<double>(word >> (32 - bits)) *
         (1.0 / static_cast<double>(uint64_t{1} << bits));
}

// Returns a number in (0, 1], whose logarithm is finite.
PERIGEE_BOTH double positive_uniform_of(uint32_t word) {
  return (static_cast<double>(word) + 1) * 0x1p-32;
}

// Returns an exponential number of rate 1, at least half of the type's epsilon so that it is never 0.
// `bits`: as uniform_of takes for the type.
PERIGEE_BOTH double exponential_of(uint32_t word, int bits) {
  const double least = 1.0 / static_cast<double>(uint64_t{1} << bits);
  const double number = -::log(positive_uniform_of(word));
  return number > least ? number : least;
}

struct NormalPair {
  double first, second;
};

// Returns two standard normal numbers (Box-Muller). Bit-equal across devices only as far as log,
// sqrt, cos and sin are.
PERIGEE_BOTH NormalPair normal_pair(uint32_t first, uint32_t second) {
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = sqrt(-2 * ::log(positive_uniform_of(first)));
  const double angle = kTwoPi * static_cast<double>(second) * 0x1p-32;
  return {radius * cos(angle), radius * sin(angle)};
}

// Returns the standard normal number of the element at position `lane` of its block.
PERIGEE_BOTH double normal_of(const PhiloxWords& words, int lane) {
  const auto pair = lane < 2 ? normal_pair(words.w[0], words.w[1])
                             : normal_pair(words.w[2], words.w[3]);
  return lane % 2 == 0 ? pair.first : pair.second;
}

inline constexpr uint64_t kMostIntegers = uint64_t{1} << 32;  // of which a word can be any

// Returns an integer in [low, low + range). `range`: at most kMostIntegers.
PERIGEE_BOTH int64_t integer_of(uint32_t word, int64_t low, uint64_t range) {
  return low + static_cast<int64_t>((uint64_t{word} * range) >> 32);
}

}  // namespace perigee::exec
