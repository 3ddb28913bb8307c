// RAdam: Adam whose adaptive rate is rectified while its variance is large (Liu et
// al. 2020): torch.optim.RAdam.
#pragma once

#include "base/host_device.h"
#include "optim/moments.h"

namespace perigee::optim {

struct RAdam {
  static constexpr const char* kName = "radam";
  static constexpr UpdateKind kUpdate = UpdateKind::elementwise;
  static constexpr bool kDecoupledDecay = false;
  static constexpr State kStates[] = {{"exp_avg"}, {"exp_avg_sq"}};
  static constexpr Attribute kAttributes[] = {beta1(kTwoAverages), beta2(0.999, kTwoAverages),
                                              eps(1e-8), decoupled_weight_decay()};
  struct Numbers {
    double beta1, beta2, eps, decoupled;
  };

  template <class W>
  struct Constants {
    W shrink;  // decoupled weight decay: 1 - lr * weight_decay
    W scale, decay, one_minus_beta1, beta2, one_minus_beta2, eps;
    W step_size;  // lr / (1 - beta1^step), times the rectification where the rate is adaptive
    bool adaptive;
  };

  template <class W>
  static PERIGEE_BOTH Constants<W> constants(const Numbers& n, const StepNumbers& now) {
    const bool decoupled = n.decoupled != 0;
    // Length of the simple moving average that approximates the exponential one: its limit, and its
    // present value.
    const double rest = 1 - pow(n.beta2, now.step);
    const double limit = 2 / (1 - n.beta2) - 1;
    const double length = limit - 2 * now.step * (1 - rest) / rest;
    const bool adaptive = length > 5;
    double step_size = now.lr / (1 - pow(n.beta1, now.step));
    if (adaptive) {
      step_size *= sqrt(rest * (length - 4) * (length - 2) * limit /
                        ((limit - 4) * (limit - 2) * length));
    }
    return {static_cast<W>(decoupled ? 1 - now.lr * now.weight_decay : 1),
            static_cast<W>(now.scale),
            static_cast<W>(decoupled ? 0 : now.weight_decay),
            static_cast<W>(1 - n.beta1),
            static_cast<W>(n.beta2),
            static_cast<W>(1 - n.beta2),
            static_cast<W>(n.eps),
            static_cast<W>(step_size),
            adaptive};
  }

  template <unsigned kHeld, class W>
  static PERIGEE_BOTH W update(W weight, W gradient, W* state, const Constants<W>& c) {
    const W grad = gradient * c.scale + c.decay * weight;
    state[0] = state[0] + (grad - state[0]) * c.one_minus_beta1;
    state[1] = state[1] * c.beta2 + grad * grad * c.one_minus_beta2;
    const W denominator = c.adaptive ? square_root(state[1]) + c.eps : W(1);
    return weight * c.shrink - c.step_size * state[0] / denominator;
  }
};

}  // namespace perigee::optim
