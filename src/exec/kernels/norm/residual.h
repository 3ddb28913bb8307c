// What is added to the rows that a norm reads, or to the rows of its gradient.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <type_traits>

#include "exec/kernels/element.h"

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

}  // namespace perigee::exec::kernels
