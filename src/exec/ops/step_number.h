// A number of an optimizer's op that may vary from step to step.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>

#include "exec/ops/op.h"

namespace perigee::exec {

// Either an attribute of the op (0 where it is left out) or an operand, a float64 scalar.
class StepNumber {
 public:
  StepNumber(const Arguments& arguments, std::string_view name) {
    const auto* arg = arguments.find(name);
    if (arg && std::holds_alternative<graph::ValueId>(*arg)) {
      position_ = arguments.operand(name);
    } else {
      number_ = arguments.number(name, 0.0);
    }
  }

  // Returns the position of the operand, or -1 for an attribute.
  int position() const { return position_; }
  double attribute() const { return number_; }
  // Returns the number; an operand must be on the CPU.
  double of(std::span<const at::Tensor> in) const {
    return position_ < 0 ? number_ : *in[position_].const_data_ptr<double>();
  }

 private:
  int position_ = -1;
  double number_ = 0;
};

}  // namespace perigee::exec
