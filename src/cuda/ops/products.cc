#include "cuda/ops/products.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "cuda/ops/ops.h"
#include "exec/ops/dispatcher.h"
#include "exec/reference/ops.h"

namespace perigee::cuda {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

constexpr int64_t kPiece = 8;  // two-byte elements in 16 bytes

bool whole(int64_t elements) { return elements % kPiece == 0; }
int64_t round_up(int64_t elements) { return (elements + kPiece - 1) / kPiece * kPiece; }
int64_t round_down(int64_t elements) { return elements / kPiece * kPiece; }

// Whether the columns of a matrix are contiguous, and not its rows.
bool by_columns(const Tensor& t) {
  return t.stride(0) == 1 && t.stride(1) >= std::max<int64_t>(1, t.size(0)) && t.stride(1) != 1;
}

// Returns whether rows (or columns, where these are contiguous) begin at multiples of 16 bytes.
bool begins_aligned(const Tensor& t) {
  const auto rows = by_columns(t) ? t.t() : t;
  return rows.stride(1) == 1 && rows.stride(0) >= rows.size(1) && whole(rows.stride(0)) &&
         reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

// Returns whether cuBLAS reads the matrix in whole pieces.
bool aligned(const Tensor& t) { return begins_aligned(t) && whole(t.size(by_columns(t) ? 0 : 1)); }

// Returns a copy of t in the given sizes, with zeros beyond it. The rows of t are contiguous.
Tensor copied(const Tensor& t, int64_t rows, int64_t columns) {
  const auto result = at::empty({rows, columns}, t.options());
  copy_rows({t.const_data_ptr(), t.stride(0), {t.size(0), t.size(1)}}, result.mutable_data_ptr(),
            {rows, columns}, current_stream());
  check_launch("copy_rows");
  return result;
}

// Returns t in the given sizes, with zeros beyond it.
Tensor padded(const Tensor& t, int64_t rows, int64_t columns) {
  if (by_columns(t)) return padded(t.t(), columns, rows).t();
  if (t.size(0) == rows && t.size(1) == columns && aligned(t)) return t;
  return copied(t.stride(1) == 1 ? t : t.contiguous(), rows, columns);
}

ProductSizes sizes_of(const Tensor& a, const Tensor& b) {
  return {.rows = a.size(0), .inner = a.size(1), .columns = b.size(1)};
}

}  // namespace

bool padding_pays(const ProductSizes& s) {
  // On an H100 a product without padding runs at 90 TFLOP/s and one with it at 650; a copy moves
  // 2.5 TB/s. Small products take as long as the launch of the copies.
  constexpr double kLeast = 1 << 27, kLeastForEach = 100;
  const auto m = static_cast<double>(s.rows), k = static_cast<double>(s.inner),
             n = static_cast<double>(s.columns);
  return m * k * n >= kLeast && m * k * n >= kLeastForEach * (m * k + k * n + m * n);
}

std::optional<ProductSizes> padded_sizes(const Tensor& a, const Tensor& b) {
  const auto given = sizes_of(a, b);
  auto sizes = given;
  sizes.columns = round_up(sizes.columns);  // contiguous in the result
  if (by_columns(a)) sizes.rows = round_up(sizes.rows);
  if (!by_columns(a) || by_columns(b)) sizes.inner = round_up(sizes.inner);
  if (sizes == given && aligned(a) && aligned(b)) return {};
  return sizes;
}

Tensor padded_product(const Tensor& a, const Tensor& b, const ProductSizes& sizes) {
  const auto given = sizes_of(a, b);
  return at::mm(padded(a, sizes.rows, sizes.inner), padded(b, sizes.inner, sizes.columns))
      .narrow(0, 0, given.rows)
      .narrow(1, 0, given.columns);
}

Tensor empty_rows(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  constexpr int64_t kLarge = 1024;  // else the gaps are not worth while
  const bool gaps = columns >= kLarge && c10::elementSize(options.dtype().toScalarType()) == 2;
  return at::empty({rows, gaps ? round_up(columns) : columns}, options).narrow(1, 0, columns);
}

bool can_cut(const Tensor& a, const Tensor& b) {
  return whole(b.size(1)) && begins_aligned(a) && begins_aligned(b);
}

Tensor cut_product(const Tensor& a, const Tensor& b) {
  const auto [rows, inner, columns] = sizes_of(a, b);
  const auto result = at::empty({rows, columns}, a.options());
  const auto most = by_columns(a) ? round_down(rows) : rows;
  const auto summed = !by_columns(a) || by_columns(b) ? round_down(inner) : inner;
  auto first = result.narrow(0, 0, most);
  const auto upper = a.narrow(0, 0, most);
  at::mm_out(first, upper.narrow(1, 0, summed), b.narrow(0, 0, summed));
  if (summed < inner) {
    first.addmm_(upper.narrow(1, summed, inner - summed), b.narrow(0, summed, inner - summed));
  }
  if (most < rows) {
    auto rest = result.narrow(0, most, rows - most);
    at::mm_out(rest, a.narrow(0, most, rows - most), b);
  }
  return result;
}

namespace {

// Returns x y where elements have two bytes and padding or a cut is faster, else no tensor.
Tensor fitted_product(const Tensor& x, const Tensor& y) {
  if (!is_half(x.scalar_type()) || !padding_pays(sizes_of(x, y))) return {};
  const auto sizes = padded_sizes(x, y);
  if (!sizes) return {};
  return can_cut(x, y) ? cut_product(x, y) : padded_product(x, y, *sizes);
}

}  // namespace

Kernel product(const Arguments& a, const OpContext& context) {
  return [self = a.operand("self"), other = a.operand("mat2"),
          plain = exec::dispatcher_kernel_on(context.place, a.op())](Operands in, Results out,
                                                                     const Draw& draw) {
    out[0] = fitted_product(in[self], in[other]);
    if (!out[0].defined()) plain(in, out, draw);
  };
}

Kernel product_in_place(const Arguments& a, const OpContext&) {
  return [sum = a.operand("sum"), self = a.operand("self"), other = a.operand("mat2"),
          plain = exec::reference_op(a.op())](Operands in, Results out, const Draw& draw) {
    auto to = in[sum];
    const bool same_type = to.scalar_type() == in[self].scalar_type();
    const auto fitted = same_type ? fitted_product(in[self], in[other]) : Tensor();
    fitted.defined() ? void(to.add_(fitted)) : plain(in, out, draw);
  };
}

}  // namespace perigee::cuda
