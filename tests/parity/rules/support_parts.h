// The parts of rule_cases.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "tests/parity/support/case.h"

namespace perigee::parity {

using Cases = std::map<std::string, Build>;

inline graph::TensorType real_type(Shape shape) {
  return {graph::DType::float64, std::move(shape)};
}

void add_math_cases(Cases& cases);
void add_norm_cases(Cases& cases);
void add_layout_cases(Cases& cases);
void add_expert_cases(Cases& cases);
void add_image_cases(Cases& cases);
void add_transform_cases(Cases& cases);

}  // namespace perigee::parity
