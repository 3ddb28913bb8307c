// Vector code for any x86-64: plain loops are compiled once per instruction set, and the loader
// picks the version for the CPU.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Attribute of a free function (not a template) with a loop to vectorise. Helpers that it calls
// must be PERIGEE_INLINE, so that they are compiled for the same instruction set.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PERIGEE_SIMD \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define PERIGEE_SIMD
#endif
#define PERIGEE_INLINE __attribute__((always_inline)) inline
// Goes after the parameters of a lambda in such a function.
#define PERIGEE_LAMBDA __attribute__((always_inline))

namespace perigee::exec {

#if defined(__x86_64__)
inline bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif

}  // namespace perigee::exec
