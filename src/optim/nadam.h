// NAdam: Adam with Nesterov's momentum (Dozat 2016): torch.optim.NAdam.
#pragma once

#include "base/host_device.h"
#include "optim/moments.h"

namespace perigee::optim {

struct NAdam {
  static constexpr const char* kName = "nadam";
  static constexpr UpdateKind kUpdate = UpdateKind::elementwise;
  static constexpr bool kDecoupledDecay = false;
  static constexpr State kStates[] = {{"exp_avg"}, {"exp_avg_sq"}};
  static constexpr Attribute kAttributes[] = {
      beta1(kTwoAverages),
      beta2(0.999, kTwoAverages),
      eps(1e-8),
      {.name = "momentum_decay",
       .fallback = 4e-3,
       .least = 0,
       .about = "the momentum of step t is beta1 (1 - 0.96^(t momentum_decay) / 2)"},
      decoupled_weight_decay()};
  struct Numbers {
    double beta1, beta2, eps, momentum_decay, decoupled;
  };

  template <class W>
  struct Constants {
    W shrink;  // decoupled weight decay: 1 - lr * weight_decay
    W scale, decay, one_minus_beta1, beta2, one_minus_beta2;
    W root2;  // sqrt(1 - beta2^step)
    W eps;
    W of_gradient, of_average;  // step sizes of the two terms
  };

  // Returns the product of the momenta of steps 1 to `step`. Its logarithm is
  // step log(beta1) - sum over k of 0.5^k / k sum over i of r^(k i), with r = 0.96^momentum_decay.
  static PERIGEE_BOTH double momentum_product(const Numbers& n, double step) {
    const double log_r = n.momentum_decay * ::log(0.96);
    double sum = 0, half = 1;
    for (int k = 1; k <= 52; ++k) {
      half *= 0.5;
      const double log_rk = k * log_r;
      const double powers = log_rk == 0 ? step : exp(log_rk) * expm1(log_rk * step) / expm1(log_rk);
      sum += half / k * powers;
    }
    return pow(n.beta1, step) * exp(-sum);
  }

  template <class W>
  static PERIGEE_BOTH Constants<W> constants(const Numbers& n, const StepNumbers& now) {
    const bool decoupled = n.decoupled != 0;
    const auto momentum = [&](double step) {
      return n.beta1 * (1 - 0.5 * pow(0.96, step * n.momentum_decay));
    };
    const double product = momentum_product(n, now.step);
    const double next = momentum(now.step + 1);
    return {static_cast<W>(decoupled ? 1 - now.lr * now.weight_decay : 1),
            static_cast<W>(now.scale),
            static_cast<W>(decoupled ? 0 : now.weight_decay),
            static_cast<W>(1 - n.beta1),
            static_cast<W>(n.beta2),
            static_cast<W>(1 - n.beta2),
            static_cast<W>(sqrt(1 - pow(n.beta2, now.step))),
            static_cast<W>(n.eps),
            static_cast<W>(now.lr * (1 - momentum(now.step)) / (1 - product)),
            static_cast<W>(now.lr * next / (1 - product * next))};
  }

  template <unsigned kHeld, class W>
  static PERIGEE_BOTH W update(W weight, W gradient, W* state, const Constants<W>& c) {
    const W grad = gradient * c.scale + c.decay * weight;
    state[0] = state[0] + (grad - state[0]) * c.one_minus_beta1;
    state[1] = state[1] * c.beta2 + grad * grad * c.one_minus_beta2;
    const W denominator = square_root(state[1]) / c.root2 + c.eps;
    return weight * c.shrink - (c.of_gradient * grad + c.of_average * state[0]) / denominator;
  }
};

}  // namespace perigee::optim
