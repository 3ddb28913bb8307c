// log_sigmoid without the buffer of LibTorch's kernel, which is empty on a GPU and has the shape of
// its operand on the CPU.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace perigee::tracing {
namespace {

// Above it softplus is its operand, also in float64.
constexpr double kThreshold = 40;

std::tuple<at::Tensor, at::Tensor> log_sigmoid_forward(const at::Tensor& self) {
  return {at::softplus(self.neg(), 1, kThreshold).neg(), at::empty({0}, self.options())};
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("log_sigmoid_forward", log_sigmoid_forward);
}

}  // namespace
}  // namespace perigee::tracing
