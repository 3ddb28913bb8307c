// RMSprop (Tieleman and Hinton 2012; centered: Graves 2013): torch.optim.RMSprop.
#pragma once

#include "base/host_device.h"
#include "optim/moments.h"

namespace perigee::optim {

struct RmsProp {
  static constexpr const char* kName = "rmsprop";
  static constexpr UpdateKind kUpdate = UpdateKind::elementwise;
  static constexpr bool kDecoupledDecay = false;
  static constexpr State kStates[] = {
      {"square_avg"}, {"momentum_buffer", "momentum"}, {"grad_avg", "centered"}};
  static constexpr Attribute kAttributes[] = {
      {.name = "alpha",
       .fallback = 0.99,
       .least = 0,
       .less_than = 1,
       .about = "decay of the average of squared gradients"},
      eps(1e-8),
      {.name = "momentum",
       .least = 0,
       .less_than = 1,
       .about = "momentum of the normalised gradients"},
      {.name = "centered",
       .type = AttributeType::flag,
       .about = "whether gradients are normalised by an estimate of their variance"}};
  struct Numbers {
    double alpha, eps, momentum, centered;
  };

  template <class W>
  struct Constants {
    W scale, decay, alpha, one_minus_alpha, eps, momentum, lr;
  };

  template <class W>
  static PERIGEE_BOTH Constants<W> constants(const Numbers& n, const StepNumbers& now) {
    return {static_cast<W>(now.scale), static_cast<W>(now.weight_decay),
            static_cast<W>(n.alpha),   static_cast<W>(1 - n.alpha),
            static_cast<W>(n.eps),     static_cast<W>(n.momentum),
            static_cast<W>(now.lr)};
  }

  template <unsigned kHeld, class W>
  static PERIGEE_BOTH W update(W weight, W gradient, W* state, const Constants<W>& c) {
    const W grad = gradient * c.scale + c.decay * weight;
    state[0] = state[0] * c.alpha + grad * grad * c.one_minus_alpha;
    W variance = state[0];
    if constexpr ((kHeld & 4) != 0) {
      state[2] = state[2] + (grad - state[2]) * c.one_minus_alpha;
      variance = variance - state[2] * state[2];
    }
    const W normalised = grad / (square_root(variance) + c.eps);
    if constexpr ((kHeld & 2) == 0) {
      return weight - c.lr * normalised;
    } else {
      state[1] = state[1] * c.momentum + normalised;
      return weight - c.lr * state[1];
    }
  }
};

}  // namespace perigee::optim
