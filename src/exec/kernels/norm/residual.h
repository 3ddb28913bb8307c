// What is added to the rows that a norm reads, or to the rows of its gradient, and what these become in
// a lower precision.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <span>
#include <type_traits>

#include "exec/kernels/element.h"
#include "exec/ops/op.h"
#include "exec/tensor.h"

namespace perigee::exec::kernels {

// Contiguous rows of the type of the others, or of bfloat16 beside float32; or nothing.
struct Residual {
  const void* data = nullptr;
  bool is_low = false;
};

// `operand`: contiguous.
inline Residual residual_of(const at::Tensor& operand, at::ScalarType type) {
  return {operand.const_data_ptr(), operand.scalar_type() != type};
}

// Returns the type in which a norm is computed.
inline at::ScalarType wide_type(at::ScalarType type) {
  return type == at::kBFloat16 ? at::kFloat : type;
}

// Calls f with the element type of rows that are T, or bfloat16 beside float32.
template <class T, class F>
void dispatch_beside(at::ScalarType type, F f) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == at::kBFloat16) return f.template operator()<c10::BFloat16>();
  }
  f.template operator()<T>();
}

// Returns whether rows may be of this type beside others of `type`.
inline bool fits_beside(at::ScalarType of, at::ScalarType type) {
  return of == type || (type == at::kFloat && of == at::kBFloat16);
}

// Returns whether the kernels compute an op that normalises in[self], or reads it for the gradient,
// and adds in[other] (-1: nothing).
inline bool are_computed(std::span<const at::Tensor> in, int self, int other) {
  const auto type = in[self].scalar_type();
  if (!has_element(type)) return false;
  return other < 0 || fits_beside(in[other].scalar_type(), type);
}

// Writes n elements: element i is value(i) plus, where there is a residual, its element begin + i.
// `to` may be the memory of the residual, or of what value(i) reads for the same i.
template <class T, class F>
PERIGEE_INLINE void write_row(T* to, F value, const Residual& residual, int64_t begin, int64_t n) {
  if (!residual.data) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) store(to, i, value(i));
  } else if (residual.is_low) {
    const auto* other = static_cast<const c10::BFloat16*>(residual.data) + begin;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) store(to, i, value(i) + load(other, i));
  } else {
    const auto* other = static_cast<const T*>(residual.data) + begin;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) store(to, i, value(i) + load(other, i));
  }
}

// The rows of a norm's gradient in bfloat16, beside float32; or nothing.
struct LowRows {
  c10::BFloat16* data = nullptr;

  // Writes n elements from element `begin` on, and adds them to the sums of columns, where there are any.
  template <class T>
  PERIGEE_INLINE void write(const T* from, int64_t begin, int64_t n, float* sums) const {
    if constexpr (std::is_same_v<T, float>) {
      if (!data) return;
      c10::BFloat16* to = data + begin;
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) store(to, i, from[i]);
      if (!sums) return;
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) sums[i] += load(to, i);
    }
  }
};

// The results of an op that are its gradient in a lower precision, and the sum of its rows.
class LowResults {
 public:
  // `first`: the first of both.
  LowResults(const Arguments& a, size_t first) : first_(first), sum_(a.wanted(first + 1)) {
    if (a.wanted(first)) type_ = scalar_type(a.type(first).dtype);
  }
  // Returns whether the kernels make them of a gradient of this type.
  bool fits(at::ScalarType type) const {
    return !type_ || (type == at::kFloat && *type_ == at::kBFloat16);
  }
  // Makes the gradient's tensor, of the shape of `like`, and `parts` partial sums of n elements.
  void begin(const at::Tensor& like, int64_t parts, int64_t n, std::span<at::Tensor> out) {
    if (!type_) return;
    out[first_] = at::empty(like.sizes(), like.options().dtype(*type_));
    rows_.data = out[first_].mutable_data_ptr<c10::BFloat16>();
    if (sum_) sums_ = at::zeros({parts, n}, like.options());
  }
  LowRows rows() const { return rows_; }
  // Returns the partial sums, or nullptr.
  float* sums() const { return sums_.defined() ? sums_.mutable_data_ptr<float>() : nullptr; }
  void end(std::span<at::Tensor> out) const {
    if (sums_.defined()) out[first_ + 1] = sums_.sum(0).to(*type_);
  }

 private:
  size_t first_;
  bool sum_;
  std::optional<at::ScalarType> type_;
  LowRows rows_;
  at::Tensor sums_;
};

}  // namespace perigee::exec::kernels
