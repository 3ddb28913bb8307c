// The elementwise optimizers (optim/all.h). The GPU reads numbers that vary from step to step.
#include "base/fail.h"
#include "cuda/ops/ops.h"
#include "exec/ops/optimizer_arguments.h"

namespace perigee::cuda {
namespace {

using exec::OptimizerArguments;
using Operands = std::span<const at::Tensor>;

const double* scalar(Operands in, int position) {
  return position < 0 ? nullptr : in[position].const_data_ptr<double>();
}

StepScalars scalars_of(const OptimizerArguments& a, Operands in) {
  return {.lr = scalar(in, a.lr),
          .step = scalar(in, a.step),
          .scale = scalar(in, a.scale),
          .weight_decay = scalar(in, a.weight_decay.position()),
          .fixed_weight_decay = a.weight_decay.attribute(),
          .guarded = a.guarded};
}

// Returns the operands' types. Throws Error for a combination that no kernel has.
OptimizerTypes types_of(const OptimizerArguments& a, Operands in) {
  const auto [p, s, g] = a.types(in);
  const bool known = (is_computed(p) && s == p && g == p) ||
                     (p == at::kFloat && s == p && (g == at::kBFloat16 || g == at::kHalf)) ||
                     (p == at::kBFloat16 && s == at::kFloat && (g == p || g == at::kFloat));
  if (!known) a.refuse(in);
  return {element_of(p), element_of(s), element_of(g)};
}

OptimizerTensors tensors_of(const OptimizerArguments& a, Operands in) {
  OptimizerTensors tensors = {.elements = in[a.self].numel(),
                              .parameter = in[a.self].mutable_data_ptr(),
                              .states = {},
                              .held = a.held(),
                              .gradient = in[a.gradient].const_data_ptr(),
                              .noise = a.noise < 0 ? nullptr : in[a.noise].const_data_ptr<float>()};
  if (a.low >= 0) {
    tensors.low = in[a.low].mutable_data_ptr();
    tensors.low_element = element_of(in[a.low].scalar_type());
  }
  for (size_t k = 0; k < a.states.size(); ++k) {
    if (a.states[k] >= 0) tensors.states[k] = in[a.states[k]].mutable_data_ptr();
  }
  return tensors;
}

template <class O>
Kernel kernel_of(const Arguments& arguments) {
  return [a = OptimizerArguments::of<O>(arguments), numbers = exec::numbers_of<O>(arguments)](
             Operands in, std::span<at::Tensor>, const Draw&) {
    step_bucket(tensors_of(a, in), types_of(a, in), numbers, scalars_of(a, in), current_stream(),
                static_cast<const O*>(nullptr));
    check_launch(O::kName);
  };
}

}  // namespace

Kernel optimizer(const Arguments& arguments) {
#define PERIGEE_KERNEL(O) \
  if (exec::is_step_of<optim::O>(arguments)) return kernel_of<optim::O>(arguments);
  PERIGEE_ELEMENTWISE_OPTIMIZERS(PERIGEE_KERNEL)
#undef PERIGEE_KERNEL
  return nullptr;
}

}  // namespace perigee::cuda
