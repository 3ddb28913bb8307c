#include "exec/ops/optimizer_arguments.h"

#include <algorithm>

#include "base/fail.h"

namespace perigee::exec {

OptimizerArguments::OptimizerArguments(const Arguments& a, std::vector<int> of_states)
    : name(a.name()),
      self(a.operand("self")),
      gradient(a.operand("gradient")),
      lr(a.operand("lr")),
      step(a.operand("step")),
      scale(a.optional_operand("scale")),
      noise(a.optional_operand("noise")),
      low(a.optional_operand("low")),
      states(std::move(of_states)),
      weight_decay(a, "weight_decay"),
      guarded(a.flag("guarded", false)) {}

unsigned OptimizerArguments::held() const {
  unsigned held = 0;
  for (size_t k = 0; k < states.size(); ++k) held |= static_cast<unsigned>(states[k] >= 0) << k;
  return held;
}

OptimizerArguments::Types OptimizerArguments::types(std::span<const at::Tensor> in) const {
  const auto& p = in[self];
  Types types{p.scalar_type(), noise < 0 ? p.scalar_type() : at::kFloat,
              in[gradient].scalar_type()};
  for (const int state : states) {
    if (state >= 0) types.state = in[state].scalar_type();
  }
  const auto same = [&](int other, at::ScalarType type) {
    return other < 0 || (in[other].is_contiguous() && in[other].numel() == p.numel() &&
                         in[other].scalar_type() == type);
  };
  const bool fits = p.is_contiguous() && same(gradient, types.gradient) &&
                    same(noise, at::kFloat) && fits_low(in) &&
                    std::ranges::all_of(states,
                                        [&](int state) { return same(state, types.state); });
  if (!fits) refuse(in);
  return types;
}

bool OptimizerArguments::fits_low(std::span<const at::Tensor> in) const {
  if (low < 0) return true;
  const auto type = in[low].scalar_type();
  return in[self].scalar_type() == at::kFloat && (type == at::kBFloat16 || type == at::kHalf) &&
         in[low].is_contiguous() && in[low].numel() == in[self].numel();
}

void OptimizerArguments::refuse(std::span<const at::Tensor> in) const {
  auto type = noise < 0 ? in[self].scalar_type() : at::kFloat;
  for (const int state : states) {
    if (state >= 0) type = in[state].scalar_type();
  }
  fail("exec",
       "{} needs contiguous tensors of one size, all float32, float64 or bfloat16 or as "
       "graph/ops.h says, but got {} parameters of {}, states of {}, {} gradients of {}",
       name, in[self].numel(), c10::toString(in[self].scalar_type()), c10::toString(type),
       in[gradient].numel(), c10::toString(in[gradient].scalar_type()));
}

}  // namespace perigee::exec
