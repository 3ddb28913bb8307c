// Adagrad (Duchi, Hazan and Singer 2011): torch.optim.Adagrad.
#pragma once

#include "base/host_device.h"
#include "optim/moments.h"

namespace perigee::optim {

struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr UpdateKind kUpdate = UpdateKind::elementwise;
  static constexpr bool kDecoupledDecay = false;
  // Zero until the first step, which starts from initial_accumulator_value.
  static constexpr State kStates[] = {{"sum"}};
  static constexpr Attribute kAttributes[] = {
      {.name = "lr_decay",
       .least = 0,
       .about = "the learning rate is divided by 1 + (step - 1) lr_decay"},
      {.name = "initial_accumulator_value",
       .least = 0,
       .about = "first value of the sum of squared gradients"},
      eps(1e-10)};
  struct Numbers {
    double lr_decay, initial, eps;
  };

  template <class W>
  struct Constants {
    W scale, decay, initial, eps, lr;
    bool first;
  };

  template <class W>
  static PERIGEE_BOTH Constants<W> constants(const Numbers& n, const StepNumbers& now) {
    return {static_cast<W>(now.scale),
            static_cast<W>(now.weight_decay),
            static_cast<W>(n.initial),
            static_cast<W>(n.eps),
            static_cast<W>(now.lr / (1 + (now.step - 1) * n.lr_decay)),
            now.step == 1};
  }

  template <unsigned kHeld, class W>
  static PERIGEE_BOTH W update(W weight, W gradient, W* state, const Constants<W>& c) {
    const W grad = gradient * c.scale + c.decay * weight;
    state[0] = (c.first ? c.initial : state[0]) + grad * grad;
    return weight - c.lr * grad / (square_root(state[0]) + c.eps);
  }
};

}  // namespace perigee::optim
