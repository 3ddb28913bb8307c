// Rotary position embedding and its derivative for float32 and bfloat16, one pass each over
// strided rows. Angles beside bfloat16 may be float32.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "exec/kernels/kernels.h"
#include "exec/kernels/lanes_op.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// y = x * cos + cat(-x2, x1) * sin of one row of two halves, and its derivative.
#define PERIGEE_ROTARY(T, A)                                                                \
  PERIGEE_SIMD void turn(const T* x, const A* cos, const A* sin, T* y, int64_t half) {      \
    each_lanes(half, [&](int64_t i, auto count) PERIGEE_LAMBDA {                            \
      const Floats a = load_lanes(x + i, count, 0), b = load_lanes(x + half + i, count, 0); \
      const Floats c = load_lanes(cos + i, count, 0), s = load_lanes(sin + i, count, 0);    \
      const Floats d = load_lanes(cos + half + i, count, 0),                                \
                   t = load_lanes(sin + half + i, count, 0);                                \
      store_lanes(y + i, a * c - b * s, count);                                             \
      store_lanes(y + half + i, b * d + a * t, count);                                      \
    });                                                                                     \
  }                                                                                         \
  PERIGEE_SIMD void turn_back(const T* g, const A* cos, const A* sin, T* x, int64_t half) { \
    each_lanes(half, [&](int64_t i, auto count) PERIGEE_LAMBDA {                            \
      const Floats a = load_lanes(g + i, count, 0), b = load_lanes(g + half + i, count, 0); \
      const Floats c = load_lanes(cos + i, count, 0), s = load_lanes(sin + i, count, 0);    \
      const Floats d = load_lanes(cos + half + i, count, 0),                                \
                   t = load_lanes(sin + half + i, count, 0);                                \
      store_lanes(x + i, a * c + b * t, count);                                             \
      store_lanes(x + half + i, b * d - a * s, count);                                      \
    });                                                                                     \
  }
PERIGEE_ROTARY(float, float)
PERIGEE_ROTARY(c10::BFloat16, c10::BFloat16)
PERIGEE_ROTARY(c10::BFloat16, float)
#undef PERIGEE_ROTARY

// Returns the offset of a row by strides, since heads are often a transposed dim.
int64_t offset_of(const Tensor& x, int64_t row) {
  int64_t offset = 0;
  for (int64_t d = x.dim() - 2; d >= 0; --d) {
    offset += row % x.size(d) * x.stride(d);
    row /= x.size(d);
  }
  return offset;
}

Kernel rotation(const Arguments& a, const char* operand, bool backward) {
  if (!has_lanes(a)) return {};
  return [self = a.operand(operand), first = a.operand("cos"), second = a.operand("sin"), backward](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw&) {
    const auto x = in[self].stride(-1) == 1 ? in[self] : in[self].contiguous();
    const bool wide = in[first].scalar_type() == at::kFloat;
    const auto angle_type = wide ? at::kFloat : x.scalar_type();
    const auto cos = in[first].to(angle_type).contiguous(),
               sin = in[second].to(angle_type).contiguous();
    out[0] = at::empty(x.sizes(), x.options());
    const int64_t width = x.size(-1), positions = x.size(-2);
    if (x.numel() == 0) return;
    dispatch_lanes(x.scalar_type(), [&]<class T>() {
      const T* from = x.const_data_ptr<T>();
      T* to = out[0].mutable_data_ptr<T>();
      const auto turn_all = [&]<class A>() {
        const A *c = cos.const_data_ptr<A>(), *s = sin.const_data_ptr<A>();
        at::parallel_for(0, x.numel() / width, std::max<int64_t>(1, kGrain / width),
                         [&](int64_t begin, int64_t end) {
                           for (int64_t row = begin; row < end; ++row) {
                             const int64_t angle = row % positions * width;
                             const T* one = from + offset_of(x, row);
                             if (backward) {
                               turn_back(one, c + angle, s + angle, to + row * width, width / 2);
                             } else {
                               turn(one, c + angle, s + angle, to + row * width, width / 2);
                             }
                           }
                         });
      };
      wide ? turn_all.template operator()<float>() : turn_all.template operator()<T>();
    });
  };
}

}  // namespace

Kernel rotary(const Arguments& a) { return rotation(a, "self", false); }
Kernel rotary_backward(const Arguments& a) { return rotation(a, "grad", true); }

}  // namespace perigee::exec::kernels
