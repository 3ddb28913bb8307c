// Attributes that the optimizers with running averages of the gradient share.
#pragma once

#include "optim/description.h"

namespace perigee::optim {

inline constexpr Attribute beta1(const char* about) {
  return {.name = "beta1",
          .fallback = 0.9,
          .key = "betas",
          .item = 0,
          .least = 0,
          .less_than = 1,
          .about = about};
}

inline constexpr Attribute beta2(double fallback, const char* about) {
  return {.name = "beta2",
          .fallback = fallback,
          .key = "betas",
          .item = 1,
          .job_default = 0.95,
          .least = 0,
          .less_than = 1,
          .about = about};
}

inline constexpr Attribute eps(double fallback, const char* about = "added to the denominator") {
  return {.name = "eps", .fallback = fallback, .more_than = 0, .about = about};
}

inline constexpr Attribute decoupled_weight_decay() {
  return {.name = "decoupled_weight_decay",
          .type = AttributeType::flag,
          .about = "whether weight decay is decoupled from the gradient, as adamw's"};
}

inline constexpr const char* kTwoAverages = "decay of the two averages";

}  // namespace perigee::optim
