#include "exec/comm/reduce.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <array>

#include "exec/kernels/element.h"

namespace perigee::exec {
namespace {

using mesh::Reduce;

PERIGEE_SIMD void add(float* sum, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}
PERIGEE_SIMD void add(double* sum, const double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}
PERIGEE_SIMD void add(float* sum, const c10::BFloat16* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += load(x, i);
}
template <class W, class T>
void add(W* sum, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<W>(x[i]);
}

template <class T, class W>
void combine(W* tile, const T* x, int64_t n, Reduce reduce) {
  switch (reduce) {
    case Reduce::sum:
    case Reduce::average:
      return add(tile, x, n);
    case Reduce::max:
      for (int64_t i = 0; i < n; ++i) tile[i] = std::max(tile[i], static_cast<W>(x[i]));
      return;
    case Reduce::min:
      for (int64_t i = 0; i < n; ++i) tile[i] = std::min(tile[i], static_cast<W>(x[i]));
  }
}

}  // namespace

void reduce_elements(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                     Reduce reduce, int64_t begin, int64_t end) {
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kBool, at::kHalf, at::kBFloat16, inputs[0].scalar_type(), "reduce", [&] {
        using W =
            std::conditional_t<std::is_same_v<scalar_t, bool>, int, at::opmath_type<scalar_t>>;
        constexpr int64_t kTile = 2048;
        alignas(64) std::array<W, kTile> tile;
        for (int64_t at = begin; at < end; at += kTile) {
          const int64_t n = std::min(kTile, end - at);
          const auto* first = inputs[0].const_data_ptr<scalar_t>() + at;
          for (int64_t i = 0; i < n; ++i) tile[i] = static_cast<W>(first[i]);
          for (const auto& input : inputs.subspan(1)) {
            combine(tile.data(), input.const_data_ptr<scalar_t>() + at, n, reduce);
          }
          if (reduce == Reduce::average) {
            const auto ranks = static_cast<W>(inputs.size());
            for (int64_t i = 0; i < n; ++i) tile[i] /= ranks;
          }
          for (const auto& output : outputs) {
            auto* to = output.mutable_data_ptr<scalar_t>() + at;
            for (int64_t i = 0; i < n; ++i) to[i] = static_cast<scalar_t>(tile[i]);
          }
        }
      });
}

}  // namespace perigee::exec
