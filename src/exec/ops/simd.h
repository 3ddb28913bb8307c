// Vector code that runs on any x86-64: plain loops compiled once per instruction set and chosen
// when loaded.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Before a free function (not a template) whose loop is worth vectorising. Helpers that it calls
// must be PERIGEE_INLINE, so that they are compiled for the same instruction set.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PERIGEE_SIMD \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define PERIGEE_SIMD
#endif
#define PERIGEE_INLINE __attribute__((always_inline)) inline
// After the parameters of a lambda within such a function.
#define PERIGEE_LAMBDA __attribute__((always_inline))

namespace perigee::exec {

#if defined(__x86_64__)
inline bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif

}  // namespace perigee::exec
