// The arguments of an elementwise optimizer's op (graph/ops.h), for the CPU's and a GPU's kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <bit>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/ops/op.h"
#include "exec/ops/step_number.h"
#include "optim/elementwise.h"

namespace perigee::exec {

// Positions of operands; -1: absent.
struct OptimizerArguments {
  std::string name;
  int self, gradient, lr, step, scale, noise;
  int low;                  // self, rounded to nearest, of a low precision
  std::vector<int> states;  // in the order of the optimizer's kStates
  StepNumber weight_decay;
  bool guarded;  // a NaN scale leaves parameters and states unchanged

  template <class O>
  static OptimizerArguments of(const Arguments& a) {
    std::vector<int> states;
    for (const auto& state : O::kStates) {
      states.push_back(state.needs ? a.optional_operand(state.name) : a.operand(state.name));
    }
    return OptimizerArguments(a, std::move(states));
  }

  // Returns the states that exist as bits, for optim::with_states.
  unsigned held() const;

  struct Types {
    at::ScalarType parameter, state, gradient;
  };
  // Returns the element types. Throws Error unless operands are contiguous, of equal size, and all
  // states of one type.
  Types types(std::span<const at::Tensor> in) const;
  // Throws Error: no kernel has these types.
  [[noreturn]] void refuse(std::span<const at::Tensor> in) const;

 private:
  bool fits_low(std::span<const at::Tensor> in) const;
  OptimizerArguments(const Arguments& arguments, std::vector<int> states);
};

// Returns whether the op is the step of optimizer O on a bucket.
template <class O>
bool is_step_of(const Arguments& a) {
  std::string_view op = a.name();
  constexpr std::string_view kPrefix = "perigee::", kName = O::kName;
  return op.size() == kPrefix.size() + kName.size() + 1 && op.starts_with(kPrefix) &&
         op.substr(kPrefix.size(), kName.size()) == kName && op.ends_with('_');
}

// Returns the values of O's attributes.
template <class O>
typename O::Numbers numbers_of(const Arguments& a) {
  std::array<double, optim::kAttributeCount<O>> values;
  static_assert(sizeof values == sizeof(typename O::Numbers));
  for (size_t k = 0; k < values.size(); ++k) {
    const auto& attribute = O::kAttributes[k];
    const bool flag = attribute.type == optim::AttributeType::flag;
    values[k] = flag ? a.flag(attribute.name, attribute.fallback != 0)
                     : a.number(attribute.name, attribute.fallback);
  }
  return std::bit_cast<typename O::Numbers>(values);
}

}  // namespace perigee::exec
