#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "capture/device/tensor.h"
#include "capture/shapes/tables.h"

namespace perigee::tracing {
namespace {

std::vector<at::Tensor> boolean_like(const Values& v) {
  return {meta_tensor(v.tensor(0).sizes(), at::kBool)};
}

std::vector<at::Tensor> boolean(const Values& v) {
  return {meta_tensor(at::infer_size(v.tensor(0).sizes(), v.tensor(1).sizes()), at::kBool)};
}

// Two real operands, one complex result.
std::vector<at::Tensor> complex(const Values& v) {
  return {meta_tensor(at::infer_size(v.tensor(0).sizes(), v.tensor(1).sizes()),
                      c10::toComplexType(v.tensor(0).scalar_type()))};
}

// The absolute value or the angle of a complex number is real. An integer's angle is a float.
template <bool Angle>
std::vector<at::Tensor> polar_part(const Values& v) {
  auto type = c10::toRealValueType(v.tensor(0).scalar_type());
  if (Angle && c10::isIntegralType(type, true)) type = at::kFloat;
  return {meta_tensor(v.tensor(0).sizes(), type)};
}

// Losses with `reduction` as argument R: elementwise, or a scalar.
template <size_t R>
std::vector<at::Tensor> loss(const Values& v) {
  if (v.integer(R) != at::Reduction::None) return {meta_tensor({}, v.tensor(0).scalar_type())};
  return {meta_tensor(at::infer_size(v.tensor(0).sizes(), v.tensor(1).sizes()),
                      at::result_type(v.tensor(0), v.tensor(1)))};
}

// Losses with one value for each sample.
template <size_t R>
std::vector<at::Tensor> sample_loss(const Values& v) {
  const auto self = v.tensor(0);
  const bool batched = self.dim() == 2 && v.integer(R) == at::Reduction::None;
  return {batched ? meta_tensor({self.size(0)}, self.scalar_type())
                  : meta_tensor({}, self.scalar_type())};
}

// (grad, self, target, ...)
std::vector<at::Tensor> loss_backward(const Values& v) {
  return {meta_tensor(at::infer_size(v.tensor(1).sizes(), v.tensor(2).sizes()),
                      at::result_type(v.tensor(1), v.tensor(2)))};
}

std::vector<at::Tensor> where(const Values& v) {
  auto sizes = at::infer_size(v.tensor(1).sizes(), v.tensor(2).sizes());
  return {meta_tensor(at::infer_size(v.tensor(0).sizes(), sizes),
                      at::result_type(v.tensor(1), v.tensor(2)))};
}

std::vector<at::Tensor> log_sigmoid(const Values& v) {
  const auto self = v.tensor(0);
  return {at::empty_like(self), at::empty_like(self)};
}

std::vector<at::Tensor> dropout(const Values& v) {
  return {at::empty_like(v.tensor(0)), boolean_like(v)[0]};
}

std::vector<at::Tensor> multilabel_margin(const Values& v) {
  return {sample_loss<2>(v)[0], at::empty_like(v.tensor(0))};
}

}  // namespace

ShapeTable activation_shapes() {
  return {
      {"aten::relu", like<0>},
      {"aten::hardtanh", like<0>},
      {"aten::hardtanh_backward", like<0>},
      {"aten::hardswish", like<0>},
      {"aten::hardswish_backward", like<0>},
      {"aten::celu", like<0>},
      {"aten::selu", like<0>},
      {"aten::logit", like<0>},
      {"aten::abs", polar_part<false>},
      {"aten::angle", polar_part<true>},
      {"aten::isnan", boolean_like},
      {"aten::isinf", boolean_like},
      {"aten::logical_not", boolean_like},
      {"aten::logical_and", boolean},
      {"aten::logical_or", boolean},
      {"aten::logical_xor", boolean},
      {"aten::complex", complex},
      {"aten::polar", complex},
      {"aten::where.self", where},
      {"aten::_prelu_kernel", like<0>},
      {"aten::_prelu_kernel_backward", like<1, 1>},
      {"aten::glu_backward", like<1>},
      {"aten::log_sigmoid_forward", log_sigmoid},
      {"aten::log_sigmoid_backward", like<1>},
      {"aten::rrelu_with_noise_backward", like<1>},
      {"aten::native_dropout", dropout},
      {"aten::native_dropout_backward", like<0>},
      {"aten::_masked_softmax", like<0>},
      {"aten::_safe_softmax", like<0>},
      {"aten::binary_cross_entropy", loss<3>},
      {"aten::binary_cross_entropy_backward", like<1>},
      {"aten::binary_cross_entropy_with_logits", loss<4>},
      {"aten::mse_loss_backward", loss_backward},
      {"aten::smooth_l1_loss_backward", loss_backward},
      {"aten::huber_loss", loss<2>},
      {"aten::huber_loss_backward", loss_backward},
      {"aten::soft_margin_loss", loss<2>},
      {"aten::soft_margin_loss_backward", loss_backward},
      {"aten::multi_margin_loss", sample_loss<5>},
      {"aten::multi_margin_loss_backward", like<1>},
      {"aten::multilabel_margin_loss_forward", multilabel_margin},
      {"aten::multilabel_margin_loss_backward", like<1>},
  };
}

}  // namespace perigee::tracing
