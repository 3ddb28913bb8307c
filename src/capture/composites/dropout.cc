// Dropout stays one op forward and backward: the backward draws the same mask again.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "capture/composites/composite.h"

namespace perigee::tracing {
namespace {

at::Tensor call_dropout(const at::Tensor& self, double p, int64_t key) {
  static const auto op = typed_op<at::Tensor(const at::Tensor&, double, int64_t)>(
      "perigee::dropout");
  return op.call(self, p, key);
}

// Linear in self, so its derivative, of any order, is the op itself.
struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self, double p,
                            int64_t key) {
    context->saved_data["p"] = p;
    context->saved_data["key"] = key;
    at::AutoDispatchBelowADInplaceOrView below;
    return call_dropout(self, p, key);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {call_dropout(grads[0], context->saved_data["p"].toDouble(),
                         context->saved_data["key"].toInt()),
            {},
            {}};
  }
};

at::Tensor differentiable_dropout(const at::Tensor& self, double p, int64_t key) {
  return Dropout::apply(self, p, key);
}

at::Tensor masked(const at::Tensor& self, double p, bool train) {
  if (p < 0 || p > 1) fail("capture", "a dropout probability lies in [0, 1], but got {}", p);
  if (!train || p == 0 || self.numel() == 0) return self;
  return p == 1 ? self * 0 : call_dropout(self, p, random_key());
}

at::Tensor& masked_in_place(at::Tensor& self, double p, bool train) {
  return train && p > 0 ? self.copy_(masked(self, p, train)) : self;
}

// Negative elements are scaled by a random slope, which is a constant to autograd.
at::Tensor leaky(const at::Tensor& self, const at::Scalar& lower, const at::Scalar& upper,
                 bool training, std::optional<at::Generator>) {
  if (!training) return at::leaky_relu(self, (lower.toDouble() + upper.toDouble()) / 2);
  const auto slope = at::empty_like(self).uniform_(lower.toDouble(), upper.toDouble());
  return self * at::where(self.detach() <= 0, slope, at::ones_like(slope));
}

at::Tensor& leaky_in_place(at::Tensor& self, const at::Scalar& lower, const at::Scalar& upper,
                           bool training, std::optional<at::Generator> generator) {
  return self.copy_(leaky(self, lower, upper, training, std::move(generator)));
}

TORCH_LIBRARY_IMPL(perigee, AutogradPrivateUse1, m) { m.impl("dropout", differentiable_dropout); }

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("dropout", masked);
  m.impl("dropout_", masked_in_place);
  m.impl("rrelu", leaky);
  m.impl("rrelu_", leaky_in_place);
}

}  // namespace
}  // namespace perigee::tracing
