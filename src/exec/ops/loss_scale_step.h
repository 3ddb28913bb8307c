// The update of the loss scale in a step, and the factor that clips its gradients, shared by CPU and
// GPU kernels.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace perigee::exec {

struct LossScaleNumbers {
  double growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  double min_scale = 0;
  int64_t hysteresis = 1;
};

// State in the device's memory.
struct LossScaleScalars {
  float* scale;
  double* growth_tracker;
  double* skipped_steps;
  double* applied_step;
  double* patience;  // nullptr: no hysteresis, every step with a non-finite norm lowers the scale
};

PERIGEE_BOTH bool is_finite(double x) { return x - x == 0; }

// torch.amp.GradScaler's update, with Megatron's lower limit and hysteresis: `patience` counts the
// steps with a non-finite norm since the scale grew. `step` counts all steps, from 1. `examined`:
// the gradients' scale after perigee::examine_step_, or nullptr; where it alone is NaN, the step is
// skipped and the loss scale stays.
PERIGEE_BOTH void update_loss_scale(const LossScaleScalars& s, const LossScaleNumbers& numbers,
                                    double squared_norm, double step, const double* examined) {
  if (!is_finite(squared_norm)) {
    if (s.patience) *s.patience += 1;
    if (!s.patience || *s.patience >= static_cast<double>(numbers.hysteresis)) {
      const auto fallen = static_cast<float>(*s.scale * numbers.backoff_factor);
      const auto least = static_cast<float>(numbers.min_scale);
      *s.scale = fallen > least ? fallen : least;
    }
    *s.growth_tracker = 0;
    *s.skipped_steps += 1;
  } else if (examined && !is_finite(*examined)) {
    *s.skipped_steps += 1;
  } else if (*s.growth_tracker + 1 >= static_cast<double>(numbers.growth_interval)) {
    const auto grown = static_cast<float>(*s.scale * numbers.growth_factor);
    if (is_finite(grown)) *s.scale = grown;
    if (s.patience) *s.patience = 0;
    *s.growth_tracker = 0;
  } else {
    *s.growth_tracker += 1;
  }
  *s.applied_step = step - *s.skipped_steps;
}

// Returns the factor of the gradients, without clipping. loss_scale: nullptr for none.
PERIGEE_BOTH double gradient_factor(double factor, const float* loss_scale) {
  return loss_scale ? factor / *loss_scale : factor;
}

// Returns `factor`, lowered where gradients that have the norm `norm` with it would exceed max_norm;
// 0 or less: no limit. Where the norm is NaN, so is the factor, as in
// torch.nn.utils.clip_grad_norm_: a minimum of 1 and NaN would be 1.
PERIGEE_BOTH double clipped_factor(double factor, double norm, double max_norm) {
  const double ratio = max_norm / (norm + 1e-6);
  return max_norm <= 0 || ratio >= 1 ? factor : factor * ratio;
}

}  // namespace perigee::exec
