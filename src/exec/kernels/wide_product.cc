#include "exec/kernels/wide_product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cstring>

#include "exec/kernels/product.h"

// LibTorch exports these functions of its BLAS without a header. Row-major is 101, "not transposed"
// 111 and "transposed" 112.
extern "C" {
void cblas_gemm_bf16bf16f32(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha,
                            const uint16_t* a, int lda, const uint16_t* b, int ldb, float beta,
                            float* c, int ldc);
void cblas_gemm_f16f16f32(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha,
                          const uint16_t* a, int lda, const uint16_t* b, int ldb, float beta,
                          float* c, int ldc);
}

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// A matrix of 16-bit numbers with one stride of 1; `step`: elements to the next row or column.
struct Factor {
  const uint16_t* data;
  int64_t step;
  bool transposed;  // columns are contiguous, not rows
};

Factor factor_of(const Tensor& t) {
  const bool transposed = t.stride(1) != 1;
  return {static_cast<const uint16_t*>(t.const_data_ptr()),
          std::max(t.stride(transposed ? 1 : 0), t.size(transposed ? 0 : 1)), transposed};
}

// Rows or columns are contiguous.
Tensor with_unit_stride(const Tensor& t) {
  return t.stride(0) == 1 || t.stride(1) == 1 ? t : t.contiguous();
}

constexpr int64_t kDepth = 512, kRows = 64, kColumns = 128;  // of a block

// Eight numbers of 16 bits, and the halves of the list that alternates between two of them.
using Lanes = uint16_t __attribute__((vector_size(16)));
Lanes low(Lanes a, Lanes b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
Lanes high(Lanes a, Lanes b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }

// Transposes 8 x 8 numbers; rows are `from_step` and `to_step` apart.
void transpose_lanes(const uint16_t* from, int64_t from_step, uint16_t* to, int64_t to_step) {
  Lanes rows[8], next[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&rows[i], from + i * from_step, sizeof(Lanes));
  for (int pass = 0; pass < 3; ++pass) {
    for (int i = 0; i < 4; ++i) {
      next[2 * i] = low(rows[i], rows[i + 4]);
      next[2 * i + 1] = high(rows[i], rows[i + 4]);
    }
    std::copy(next, next + 8, rows);
  }
  for (int i = 0; i < 8; ++i) std::memcpy(to + i * to_step, &rows[i], sizeof(Lanes));
}

// to [columns, rows] = from [rows, columns], transposed.
void transpose(const uint16_t* from, int64_t from_step, int64_t rows, int64_t columns, uint16_t* to,
               int64_t to_step) {
  const int64_t even_rows = rows / 8 * 8, even_columns = columns / 8 * 8;
  for (int64_t r = 0; r < even_rows; r += 8) {
    for (int64_t c = 0; c < even_columns; c += 8) {
      transpose_lanes(from + r * from_step + c, from_step, to + c * to_step + r, to_step);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < even_rows ? even_columns : 0; c < columns; ++c) {
      to[c * to_step + r] = from[r * from_step + c];
    }
  }
}

// Packs columns [begin, begin + depth) of a [m,k] as rows of `even` numbers, zeros after `depth`.
void pack_rows(const Factor& a, int64_t m, int64_t begin, int64_t depth, int64_t even,
               uint16_t* to) {
  if (a.transposed) {
    transpose(a.data + begin * a.step, a.step, depth, m, to, even);
  } else {
    for (int64_t i = 0; i < m; ++i) std::copy_n(a.data + i * a.step + begin, depth, to + i * even);
  }
  if (even > depth) {
    for (int64_t i = 0; i < m; ++i) to[i * even + depth] = 0;
  }
}

// Packs rows [begin, begin + depth) and `width` columns of b [k,n] as the bfloat16 instructions
// read them: pairs of rows, whose numbers alternate, `kColumns` pairs apart.
void pack_pairs(const Factor& b, int64_t begin, int64_t depth, int64_t column, int64_t width,
                uint16_t* to) {
  const int64_t row_step = b.transposed ? 1 : b.step, column_step = b.transposed ? b.step : 1;
  const uint16_t* from = b.data + begin * row_step + column * column_step;
  for (int64_t q = 0; q < depth; q += 2, from += 2 * row_step, to += 2 * kColumns) {
    const bool pair = q + 1 < depth;
    for (int64_t j = 0; j < width; ++j) {
      to[2 * j] = from[j * column_step];
      to[2 * j + 1] = pair ? from[j * column_step + row_step] : uint16_t{0};
    }
  }
}

void multiply_blocks(const Tensor& sum, const Factor& a, const Factor& b, int64_t k, bool add) {
  const int64_t m = sum.size(0), n = sum.size(1), row = sum.stride(0);
  const int64_t depth = std::min(kDepth, (k + 1) / 2 * 2);
  const auto packed_a = at::empty({m * depth}, at::kBFloat16);
  const auto packed_b = at::empty({depth * kColumns}, at::kBFloat16);
  auto* left = static_cast<uint16_t*>(packed_a.mutable_data_ptr());
  auto* right = static_cast<uint16_t*>(packed_b.mutable_data_ptr());
  auto* out = sum.mutable_data_ptr<float>();
  for (int64_t begin = 0; begin < k; begin += kDepth) {
    const int64_t here = std::min(kDepth, k - begin), even = (here + 1) / 2 * 2;
    pack_rows(a, m, begin, here, even, left);
    for (int64_t column = 0; column < n; column += kColumns) {
      const int64_t width = std::min(kColumns, n - column);
      pack_pairs(b, begin, here, column, width, right);
      at::parallel_for(0, (m + kRows - 1) / kRows, 1, [&](int64_t first, int64_t last) {
        for (int64_t block = first; block < last; ++block) {
          const int64_t i = block * kRows;
          at::native::cpublas::brgemm(
              std::min(kRows, m - i), width, even, even, kColumns, row, add || begin > 0,
              packed_a.const_data_ptr<at::BFloat16>() + i * even,
              packed_b.const_data_ptr<at::BFloat16>(), out + i * row + column);
        }
        at::native::cpublas::brgemm_release();
      });
    }
  }
}

}  // namespace

bool is_wide_product(const Tensor& sum, const Tensor& a, const Tensor& b) {
  return sum.scalar_type() == at::kFloat && sum.dim() == 2 && sum.stride(1) == 1 &&
         a.scalar_type() == b.scalar_type() && c10::isReducedFloatingType(a.scalar_type()) &&
         (a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf);
}

void multiply_wide(const Tensor& sum, const Tensor& a, const Tensor& b, bool add) {
  if (sum.numel() == 0) return;
  if (a.size(1) == 0) {
    if (!add) sum.zero_();
    return;
  }
  const auto left = with_unit_stride(a), right = with_unit_stride(b);
  const auto x = factor_of(left), y = factor_of(right);
  static const bool packs = __builtin_cpu_supports("avx512bf16") > 0;
  if (packs && a.scalar_type() == at::kBFloat16) return multiply_blocks(sum, x, y, a.size(1), add);
  const auto multiply = a.scalar_type() == at::kHalf ? cblas_gemm_f16f16f32
                                                     : cblas_gemm_bf16bf16f32;
  const auto number = [](int64_t n) { return static_cast<int>(n); };
  multiply(101, x.transposed ? 112 : 111, y.transposed ? 112 : 111, number(sum.size(0)),
           number(sum.size(1)), number(a.size(1)), 1.0F, x.data, number(x.step), y.data,
           number(y.step), add ? 1.0F : 0.0F, sum.mutable_data_ptr<float>(), number(sum.stride(0)));
}

Kernel product_in_place(const Arguments& arguments) {
  return [sum = arguments.operand("sum"), self = arguments.operand("self"),
          mat2 = arguments.operand("mat2"), add = arguments.name() == "perigee::addmm_"](
             std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    auto to = in[sum];
    if (is_wide_product(to, in[self], in[mat2])) {
      multiply_wide(to, in[self], in[mat2], add);
    } else if (const auto product = float_product(in[self], in[mat2]);
               product && to.is_contiguous() && prefers_onednn(*product)) {
      multiply_by_onednn(to, in[self], in[mat2], add);
    } else if (add) {
      to.addmm_(in[self], in[mat2]);
    } else {
      at::mm_out(to, in[self], in[mat2]);
    }
  };
}

}  // namespace perigee::exec::kernels
