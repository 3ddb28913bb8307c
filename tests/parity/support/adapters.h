// Models with adapters (the method lora).
#pragma once

#include <string>

#include "tests/parity/support/models.h"

namespace perigee::parity {

// Returns the model with the adapters that lora of this config adds, A and B with random values
// (B would be zero at first, and A's gradient with it).
Given with_adapters(const Given& given, const std::string& config);

}  // namespace perigee::parity
