// silu(gate) * up and its derivative for float32 and bfloat16, one pass each.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "exec/kernels/kernels.h"
#include "exec/kernels/lanes_op.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// 1 / (1 + exp(-x)); NaN stays NaN.
PERIGEE_INLINE Floats sigmoid(Floats x) {
  const Floats e = exp_negative(x < 0 ? x : -x);
  return (x < 0 ? e : splat(1)) / (1.0f + e);
}

#define PERIGEE_SWIGLU(T)                                                                     \
  PERIGEE_SIMD void forward(const T* gate, const T* up, T* y, int64_t n) {                    \
    each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {                                 \
      const Floats a = load_lanes(gate + i, count, 0), b = load_lanes(up + i, count, 0);      \
      store_lanes(y + i, a * sigmoid(a) * b, count);                                          \
    });                                                                                       \
  }                                                                                           \
  PERIGEE_SIMD void backward(const T* grad, const T* gate, const T* up, T* to_gate, T* to_up, \
                             int64_t n) {                                                     \
    each_lanes(n, [&](int64_t i, auto count) PERIGEE_LAMBDA {                                 \
      const Floats g = load_lanes(grad + i, count, 0), a = load_lanes(gate + i, count, 0),    \
                   b = load_lanes(up + i, count, 0);                                          \
      const Floats s = sigmoid(a);                                                            \
      store_lanes(to_gate + i, g * b * s * (1.0f + a * (1.0f - s)), count);                   \
      store_lanes(to_up + i, g * a * s, count);                                               \
    });                                                                                       \
  }
PERIGEE_SWIGLU(float)
PERIGEE_SWIGLU(c10::BFloat16)
#undef PERIGEE_SWIGLU

}  // namespace

Kernel swiglu(const Arguments& a) {
  if (!has_lanes(a)) return {};
  return [first = a.operand("gate"), second = a.operand("up")](std::span<const Tensor> in,
                                                               std::span<Tensor> out, const Draw&) {
    const auto gate = in[first].contiguous(), up = in[second].contiguous();
    out[0] = at::empty(gate.sizes(), gate.options());
    dispatch_lanes(gate.scalar_type(), [&]<class T>() {
      const T *x = gate.const_data_ptr<T>(), *y = up.const_data_ptr<T>();
      T* to = out[0].mutable_data_ptr<T>();
      at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
        forward(x + begin, y + begin, to + begin, end - begin);
      });
    });
  };
}

Kernel swiglu_backward(const Arguments& a) {
  if (!has_lanes(a)) return {};
  return [upstream = a.operand("grad"), first = a.operand("gate"), second = a.operand("up")](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw&) {
    const auto grad = in[upstream].contiguous(), gate = in[first].contiguous(),
               up = in[second].contiguous();
    out[0] = at::empty(gate.sizes(), gate.options());
    auto other = at::empty(gate.sizes(), gate.options());
    dispatch_lanes(gate.scalar_type(), [&]<class T>() {
      const T *g = grad.const_data_ptr<T>(), *x = gate.const_data_ptr<T>(),
              *y = up.const_data_ptr<T>();
      T *to_gate = out[0].mutable_data_ptr<T>(), *to_up = other.mutable_data_ptr<T>();
      at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
        backward(g + begin, x + begin, y + begin, to_gate + begin, to_up + begin, end - begin);
      });
    });
    if (out.size() > 1) out[1] = std::move(other);
  };
}

}  // namespace perigee::exec::kernels
