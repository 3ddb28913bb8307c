// Stochastic gradient descent with momentum: torch.optim.SGD.
#pragma once

#include "base/host_device.h"
#include "optim/description.h"

namespace perigee::optim {

struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr UpdateKind kUpdate = UpdateKind::elementwise;
  static constexpr bool kDecoupledDecay = false;
  static constexpr State kStates[] = {{"momentum_buffer", "momentum"}};
  static constexpr Attribute kAttributes[] = {
      {.name = "momentum",
       .job_default = 0.9,
       .least = 0,
       .less_than = 1,
       .about = "momentum (muon's paper: 0.95)"},
      {.name = "dampening", .least = 0, .most = 1, .about = "dampening of the momentum"},
      {.name = "nesterov",
       .type = AttributeType::flag,
       .about = "Nesterov's momentum (muon's paper: true)",
       .needs = "momentum",
       .excludes = "dampening"}};
  struct Numbers {
    double momentum, dampening, nesterov;
  };

  template <class W>
  struct Constants {
    W scale, decay, momentum, one_minus_dampening, lr;
    bool first, nesterov;
  };

  template <class W>
  static PERIGEE_BOTH Constants<W> constants(const Numbers& n, const StepNumbers& now) {
    return {static_cast<W>(now.scale),
            static_cast<W>(now.weight_decay),
            static_cast<W>(n.momentum),
            static_cast<W>(1 - n.dampening),
            static_cast<W>(now.lr),
            now.step == 1,
            n.nesterov != 0};
  }

  template <unsigned kHeld, class W>
  static PERIGEE_BOTH W update(W weight, W gradient, W* state, const Constants<W>& c) {
    const W grad = gradient * c.scale + c.decay * weight;
    if constexpr ((kHeld & 1) == 0) {
      return weight - c.lr * grad;
    } else {
      const W sum = c.first ? grad : c.momentum * state[0] + c.one_minus_dampening * grad;
      state[0] = sum;
      return weight - c.lr * (c.nesterov ? grad + c.momentum * sum : sum);
    }
  }
};

}  // namespace perigee::optim
