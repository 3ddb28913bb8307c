// Definitions for the kernels of elementwise optimizers.
#pragma once

#include <cstddef>
#include <iterator>

#include "optim/all.h"

namespace perigee::optim {

template <class O>
inline constexpr size_t kStateCount = std::size(O::kStates);

template <class O>
inline constexpr size_t kAttributeCount = std::size(O::kAttributes);

// Returns whether a set of states may exist. Bit k of the mask is O::kStates[k].
template <class O>
constexpr bool is_state_set(unsigned held) {
  if (held >> kStateCount<O>) return false;
  for (size_t k = 0; k < kStateCount<O>; ++k) {
    if (!O::kStates[k].needs && !(held >> k & 1)) return false;
  }
  return true;
}

// Calls f<kHeld>() with `held` as a compile-time constant. Returns false where is_state_set is.
template <class O, unsigned kHeld = 0, class F>
PERIGEE_BOTH bool with_states(unsigned held, F f) {
  if constexpr (kHeld >> kStateCount<O>) {
    return false;
  } else {
    if constexpr (is_state_set<O>(kHeld)) {
      if (held == kHeld) {
        f.template operator()<kHeld>();
        return true;
      }
    }
    return with_states<O, kHeld + 1>(held, f);
  }
}

}  // namespace perigee::optim
