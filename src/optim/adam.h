// Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019): torch.optim's.
#pragma once

#include "base/host_device.h"
#include "optim/moments.h"

namespace perigee::optim {

template <bool kDecoupled>
struct AdamUpdate {
  static constexpr UpdateKind kUpdate = UpdateKind::elementwise;
  static constexpr bool kDecoupledDecay = kDecoupled;
  static constexpr State kStates[] = {{"exp_avg"}, {"exp_avg_sq"}};
  static constexpr Attribute kAttributes[] = {beta1(kTwoAverages), beta2(0.999, kTwoAverages),
                                              eps(1e-8)};
  struct Numbers {
    double beta1, beta2, eps;
  };

  template <class W>
  struct Constants {
    W shrink;  // decoupled weight decay: 1 - lr * weight_decay
    W decay;   // weight decay that adds to the gradient
    W scale;
    W one_minus_beta1, beta2, one_minus_beta2;
    W step_size;  // lr / (1 - beta1^step)
    W root2;      // sqrt(1 - beta2^step)
    W eps;
  };

  template <class W>
  static PERIGEE_BOTH Constants<W> constants(const Numbers& n, const StepNumbers& now) {
    return {static_cast<W>(kDecoupled ? 1 - now.lr * now.weight_decay : 1),
            static_cast<W>(kDecoupled ? 0 : now.weight_decay),
            static_cast<W>(now.scale),
            static_cast<W>(1 - n.beta1),
            static_cast<W>(n.beta2),
            static_cast<W>(1 - n.beta2),
            static_cast<W>(now.lr / (1 - pow(n.beta1, now.step))),
            static_cast<W>(sqrt(1 - pow(n.beta2, now.step))),
            static_cast<W>(n.eps)};
  }

  template <unsigned kHeld, class W>
  static PERIGEE_BOTH W update(W weight, W gradient, W* state, const Constants<W>& c) {
    const W grad = gradient * c.scale + c.decay * weight;
    const W first = state[0] + (grad - state[0]) * c.one_minus_beta1;
    const W second = state[1] * c.beta2 + grad * grad * c.one_minus_beta2;
    state[0] = first;
    state[1] = second;
    return weight * c.shrink - c.step_size * first / (square_root(second) / c.root2 + c.eps);
  }
};

struct Adam : AdamUpdate<false> {
  static constexpr const char* kName = "adam";
};

struct AdamW : AdamUpdate<true> {
  static constexpr const char* kName = "adamw";
};

}  // namespace perigee::optim
