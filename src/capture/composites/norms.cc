// Batch norm declares which buffers it writes; RMS norm stays one op.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <limits>

#include "capture/composites/composite.h"

namespace perigee::tracing {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// The schema of native_batch_norm does not declare that it updates the running statistics; those of
// the legit variants do.
at::Tensor batch_norm(const at::Tensor& input, const OptionalTensor& weight,
                      const OptionalTensor& bias, const OptionalTensor& mean,
                      const OptionalTensor& variance, bool training, double momentum, double eps,
                      bool) {
  const bool statistics = mean && mean->defined();
  for (const auto* of_channels : {&weight, &bias, &mean, &variance}) {
    const auto given = tensor_or_none(*of_channels);
    if (!given.defined() || (input.dim() > 1 && given.sizes() == input.sizes().slice(1, 1)))
      continue;
    fail("capture",
         "batch_norm takes an input [n, c, *] and statistics, weight and bias of [c], but got [{}] "
         "and [{}]{}",
         fmt::join(input.sizes(), ", "), fmt::join(given.sizes(), ", "),
         Session::current()->where());
  }
  if (!training) {
    return std::get<0>(
        at::native_batch_norm(input, weight, bias, mean, variance, false, momentum, eps));
  }
  if (!statistics) {
    return std::get<0>(at::_native_batch_norm_legit(input, weight, bias, training, momentum, eps));
  }
  auto running_mean = *mean, running_variance = *variance;
  return std::get<0>(at::_native_batch_norm_legit(input, weight, bias, running_mean,
                                                  running_variance, training, momentum, eps));
}

using Pair = std::tuple<at::Tensor, at::Tensor>;

// Composed of ordinary ops, so that the derivative can be differentiated again.
variable_list rms_norm_backward_in_parts(const at::Tensor& grad, const at::Tensor& self,
                                         const at::Tensor& weight, double eps) {
  const auto rstd = (self.square().mean(-1, true) + eps).rsqrt();
  const auto normal = self * rstd;
  const auto weighted = weight.defined() ? grad * weight : grad;
  const auto d_self = rstd * (weighted - normal * (weighted * normal).mean(-1, true));
  at::Tensor d_weight;
  if (weight.defined()) d_weight = (grad * normal).reshape({-1, weight.size(0)}).sum(0);
  return {d_self, d_weight, {}};
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self,
                            const OptionalTensor& weight, double eps) {
    static const auto op = typed_op<Pair(const at::Tensor&, const OptionalTensor&, double)>(
        "perigee::rms_norm");
    at::AutoDispatchBelowADInplaceOrView below;
    auto [output, rstd] = op.call(self, weight, eps);
    context->save_for_backward({self, tensor_or_none(weight), rstd});
    context->saved_data["eps"] = eps;
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    static const auto op = typed_op<Pair(const at::Tensor&, const at::Tensor&,
                                         const OptionalTensor&, const at::Tensor&)>(
        "perigee::rms_norm_backward");
    const auto saved = context->get_saved_variables();
    if (at::GradMode::is_enabled()) {
      return rms_norm_backward_in_parts(grads[0], saved[0], saved[1],
                                        context->saved_data["eps"].toDouble());
    }
    auto [d_self, d_weight] = op.call(grads[0], saved[0], optional(saved[1]), saved[2]);
    return {d_self, d_weight, {}};
  }
};

at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                    const OptionalTensor& weight, std::optional<double> eps) {
  const auto dims = static_cast<int64_t>(normalized_shape.size());
  int64_t n = 1;
  for (const auto& size : normalized_shape) n *= size.expect_int();
  if (dims > input.dim() || dims == 0 ||
      input.sizes().slice(input.dim() - dims) != C10_AS_INTARRAYREF_SLOW(normalized_shape)) {
    fail("capture", "rms_norm's normalized_shape is the input's last dims, but got [{}] for [{}]",
         fmt::join(C10_AS_INTARRAYREF_SLOW(normalized_shape), ", "),
         fmt::join(input.sizes(), ", "));
  }
  const double least = input.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                          : std::numeric_limits<float>::epsilon();
  const auto flat = dims == 1 ? input : input.flatten(-dims);
  const auto scale = tensor_or_none(weight);
  const auto output = RmsNorm::apply(
      flat, scale.defined() ? std::optional(scale.reshape({n})) : std::nullopt,
      eps.value_or(least));
  return dims == 1 ? output : output.view(input.sizes());
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("batch_norm", batch_norm);
  m.impl("rms_norm", rms_norm);
}

}  // namespace
}  // namespace perigee::tracing
