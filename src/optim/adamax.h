// Adamax: Adam with the infinity norm (Kingma and Ba 2015): torch.optim.Adamax.
#pragma once

#include "base/host_device.h"
#include "optim/moments.h"

namespace perigee::optim {

struct Adamax {
  static constexpr const char* kName = "adamax";
  static constexpr UpdateKind kUpdate = UpdateKind::elementwise;
  static constexpr bool kDecoupledDecay = false;
  static constexpr State kStates[] = {{"exp_avg"}, {"exp_inf"}};
  static constexpr Attribute kAttributes[] = {beta1(kTwoAverages), beta2(0.999, kTwoAverages),
                                              eps(1e-8)};
  struct Numbers {
    double beta1, beta2, eps;
  };

  template <class W>
  struct Constants {
    W scale, decay, one_minus_beta1, beta2, eps;
    W step_size;  // lr / (1 - beta1^step)
  };

  template <class W>
  static PERIGEE_BOTH Constants<W> constants(const Numbers& n, const StepNumbers& now) {
    return {static_cast<W>(now.scale),   static_cast<W>(now.weight_decay),
            static_cast<W>(1 - n.beta1), static_cast<W>(n.beta2),
            static_cast<W>(n.eps),       static_cast<W>(now.lr / (1 - pow(n.beta1, now.step)))};
  }

  template <unsigned kHeld, class W>
  static PERIGEE_BOTH W update(W weight, W gradient, W* state, const Constants<W>& c) {
    const W grad = gradient * c.scale + c.decay * weight;
    const W magnitude = (grad < 0 ? -grad : grad) + c.eps;
    const W decayed = state[1] * c.beta2;
    state[0] = state[0] + (grad - state[0]) * c.one_minus_beta1;
    state[1] = decayed > magnitude || decayed != decayed ? decayed : magnitude;  // NaN stays NaN
    return weight - c.step_size * state[0] / state[1];
  }
};

}  // namespace perigee::optim
