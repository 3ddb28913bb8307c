// Numbers of one step of an optimizer, for the CPU's and a GPU's kernels alike.
#pragma once

#include <cmath>

#include "exec/both.h"

namespace perigee::exec {

struct AdamNumbers {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool decoupled = true;  // adamw
};

struct SgdNumbers {
  double momentum = 0, dampening = 0;
  bool nesterov = false;
};

struct LionNumbers {
  double beta1 = 0.9, beta2 = 0.99;
};

// What varies by step. `scale` is the gradient's.
struct StepNumbers {
  double lr = 0, step = 1, scale = 1, weight_decay = 0;
};

// In the type of the computation.
template <class W>
struct AdamStep {
  W shrink;  // decoupled weight decay: 1 - lr * weight_decay
  W decay;   // weight decay that adds to the gradient
  W scale;   // of the gradient
  W one_minus_beta1, beta2, one_minus_beta2;
  W step_size;  // lr / (1 - beta1^step)
  W root2;      // sqrt(1 - beta2^step)
  W eps;
};

template <class W>
struct SgdStep {
  W scale, decay, momentum, one_minus_dampening, lr;
  bool first, nesterov;
};

template <class W>
PERIGEE_BOTH AdamStep<W> adam_step(const AdamNumbers& a, const StepNumbers& now) {
  return {static_cast<W>(a.decoupled ? 1 - now.lr * now.weight_decay : 1),
          static_cast<W>(a.decoupled ? 0 : now.weight_decay),
          static_cast<W>(now.scale),
          static_cast<W>(1 - a.beta1),
          static_cast<W>(a.beta2),
          static_cast<W>(1 - a.beta2),
          static_cast<W>(now.lr / (1 - pow(a.beta1, now.step))),
          static_cast<W>(sqrt(1 - pow(a.beta2, now.step))),
          static_cast<W>(a.eps)};
}

template <class W>
struct LionStep {
  W shrink;  // decoupled weight decay
  W scale, lr;
  W one_minus_beta1, one_minus_beta2;
};

template <class W>
PERIGEE_BOTH LionStep<W> lion_step(const LionNumbers& l, const StepNumbers& now) {
  return {static_cast<W>(1 - now.lr * now.weight_decay), static_cast<W>(now.scale),
          static_cast<W>(now.lr), static_cast<W>(1 - l.beta1), static_cast<W>(1 - l.beta2)};
}

template <class W>
PERIGEE_BOTH SgdStep<W> sgd_step(const SgdNumbers& s, const StepNumbers& now) {
  return {static_cast<W>(now.scale),
          static_cast<W>(now.weight_decay),
          static_cast<W>(s.momentum),
          static_cast<W>(1 - s.dampening),
          static_cast<W>(now.lr),
          now.step == 1,
          s.nesterov};
}

}  // namespace perigee::exec
