// Lion: a step by the sign of an interpolated momentum (Chen et al. 2023).
#pragma once

#include "base/host_device.h"
#include "optim/moments.h"

namespace perigee::optim {

struct Lion {
  static constexpr const char* kName = "lion";
  static constexpr UpdateKind kUpdate = UpdateKind::elementwise;
  static constexpr bool kDecoupledDecay = true;
  static constexpr State kStates[] = {{"exp_avg"}};
  static constexpr const char* kAbout = "weight of the average in the step, and its decay";
  static constexpr Attribute kAttributes[] = {beta1(kAbout), beta2(0.99, kAbout)};
  struct Numbers {
    double beta1, beta2;
  };

  template <class W>
  struct Constants {
    W shrink;  // decoupled weight decay: 1 - lr * weight_decay
    W scale, lr;
    W one_minus_beta1, one_minus_beta2;
  };

  template <class W>
  static PERIGEE_BOTH Constants<W> constants(const Numbers& n, const StepNumbers& now) {
    return {static_cast<W>(1 - now.lr * now.weight_decay), static_cast<W>(now.scale),
            static_cast<W>(now.lr), static_cast<W>(1 - n.beta1), static_cast<W>(1 - n.beta2)};
  }

  template <unsigned kHeld, class W>
  static PERIGEE_BOTH W update(W weight, W gradient, W* state, const Constants<W>& c) {
    const W grad = gradient * c.scale;
    const W average = state[0];
    const W step = average + (grad - average) * c.one_minus_beta1;
    state[0] = average + (grad - average) * c.one_minus_beta2;
    const W sign = step > 0 ? W(1) : step < 0 ? W(-1) : step;  // NaN stays NaN
    return weight * c.shrink - c.lr * sign;
  }
};

}  // namespace perigee::optim
