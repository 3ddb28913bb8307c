#include "exec/kernels/product/product.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "exec/kernels/kernels.h"
#include "exec/kernels/product/blocked_product.h"
#include "exec/ops/activated_product.h"

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

constexpr int64_t kFewest = int64_t{1} << 18;  // multiplications of a product by blocks
constexpr int64_t kSmallestSide = 8;

bool can_go_by_blocks(at::ScalarType factors, int64_t m, int64_t n, int64_t k) {
  return std::min({m, n, k}) >= kSmallestSide && has_blocks(factors);
}

// Rows or columns are contiguous, and no two elements share memory.
bool is_plain(const Tensor& t) {
  return (t.stride(1) == 1 && t.stride(0) >= t.size(1)) ||
         (t.stride(0) == 1 && t.stride(1) >= t.size(0));
}

enum class Way : uint8_t { usual, blocks, library };

Way way_of(const Arguments& arguments) {
  const auto text = arguments.text("way", "");
  return text == "blocks" ? Way::blocks : text == "library" ? Way::library : Way::usual;
}

bool goes_by_blocks(Way way, const Tensor& a, const Tensor& b, bool bias = false) {
  if (way == Way::library || a.dim() != 2 || b.dim() != 2 || a.scalar_type() != b.scalar_type() ||
      !is_plain(a) || !is_plain(b)) {
    return false;
  }
  const auto m = a.size(0), n = b.size(1), k = a.size(1);
  return way == Way::blocks ? can_go_by_blocks(a.scalar_type(), m, n, k)
                            : prefers_blocks(a.scalar_type(), m, n, k, bias);
}

Tensor plain(const Tensor& t) { return is_plain(t) ? t : t.contiguous(); }

// A matrix of 16-bit numbers with one stride of 1; `step`: elements to the next row or column.
struct BlasFactor {
  const uint16_t* data;
  int step;
  int transposed;  // 112: columns are contiguous, not rows
};

BlasFactor blas_factor(const Tensor& t) {
  const bool transposed = t.stride(1) != 1;
  return {static_cast<const uint16_t*>(t.const_data_ptr()),
          static_cast<int>(std::max(t.stride(transposed ? 1 : 0), t.size(transposed ? 0 : 1))),
          transposed ? 112 : 111};
}

bool is_wide_product(const Tensor& sum, const Tensor& a, const Tensor& b) {
  return sum.scalar_type() == at::kFloat && sum.dim() == 2 && sum.stride(1) == 1 &&
         a.scalar_type() == b.scalar_type() &&
         (a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf);
}

// sum [m,n] float32, rows contiguous, = or += a [m,k] b [k,n] of 16 bits. No partial sum is rounded
// to 16 bits.
void multiply_wide(const Tensor& sum, const Tensor& a, const Tensor& b, bool add, Way way) {
  if (sum.numel() == 0) return;
  if (a.size(1) == 0) {
    if (!add) sum.zero_();
    return;
  }
  const auto left = plain(a), right = plain(b);
  if (way != Way::library && has_blocks(a.scalar_type())) {
    return multiply_by_blocks(sum, left, right, add);
  }
  const auto x = blas_factor(left), y = blas_factor(right);
  const auto multiply = a.scalar_type() == at::kHalf ? cblas_gemm_f16f16f32
                                                     : cblas_gemm_bf16bf16f32;
  const auto number = [](int64_t n) { return static_cast<int>(n); };
  multiply(101, x.transposed, y.transposed, number(sum.size(0)), number(sum.size(1)),
           number(a.size(1)), 1.0F, x.data, x.step, y.data, y.step, add ? 1.0F : 0.0F,
           sum.mutable_data_ptr<float>(), number(sum.stride(0)));
}

}  // namespace

bool prefers_blocks(at::ScalarType factors, int64_t m, int64_t n, int64_t k, bool bias) {
#if defined(__x86_64__)
  static const bool intel = __builtin_cpu_is("intel");
  const bool adds_in_one_pass = bias && factors == at::kFloat;  // MKL reads a matrix to add to
  return (!intel || factors == at::kBFloat16 || adds_in_one_pass) && m * n * k >= kFewest &&
         can_go_by_blocks(factors, m, n, k);
#else
  return false;
#endif
}

std::string_view other_way(at::ScalarType factors, int64_t m, int64_t n, int64_t k, bool bias) {
  if (!can_go_by_blocks(factors, m, n, k)) return "";
  return prefers_blocks(factors, m, n, k, bias) ? "library" : "blocks";
}

Kernel product(const Arguments& arguments) {
  return [self = arguments.operand("self"), mat2 = arguments.operand("mat2"),
          way = way_of(arguments), library = dispatcher_kernel(arguments.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    const auto &a = in[self], &b = in[mat2];
    if (!goes_by_blocks(way, a, b)) return library(in, out, draw);
    out[0] = at::empty({a.size(0), b.size(1)}, a.options());
    multiply_by_blocks(out[0], a, b, false);
  };
}

Kernel product_with_bias(const Arguments& arguments) {
  if (arguments.find("alpha") || arguments.find("beta")) return {};
  return [self = arguments.operand("self"), mat1 = arguments.operand("mat1"),
          mat2 = arguments.operand("mat2"), way = way_of(arguments),
          library = dispatcher_kernel(arguments.op())](std::span<const Tensor> in,
                                                       std::span<Tensor> out, const Draw& draw) {
    const auto &bias = in[self], &a = in[mat1], &b = in[mat2];
    if (!goes_by_blocks(way, a, b, true) || bias.dim() != 1 || bias.size(0) != b.size(1) ||
        !bias.is_contiguous() || bias.scalar_type() != a.scalar_type()) {
      return library(in, out, draw);
    }
    out[0] = at::empty({a.size(0), b.size(1)}, a.options());
    multiply_by_blocks(out[0], a, b, false, &bias);
  };
}

Kernel activated_product(const Arguments& arguments) {
  return compose_product(arguments, cpu_kernel);
}

Kernel product_in_place(const Arguments& arguments) {
  return [sum = arguments.operand("sum"), self = arguments.operand("self"),
          mat2 = arguments.operand("mat2"), add = arguments.name() == "perigee::addmm_",
          way = way_of(arguments)](std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    auto to = in[sum];
    const auto &a = in[self], &b = in[mat2];
    if (is_wide_product(to, a, b)) {
      multiply_wide(to, a, b, add, way);
    } else if (to.scalar_type() == at::kFloat && to.stride(1) == 1 && is_plain(to) &&
               goes_by_blocks(way, a, b)) {
      multiply_by_blocks(to, a, b, add);
    } else if (add && to.scalar_type() == a.scalar_type() && goes_by_blocks(way, a, b)) {
      const auto product = at::empty(to.sizes(), to.options());
      multiply_by_blocks(product, a, b, false);
      to.add_(product);
    } else if (add) {
      to.addmm_(a, b);
    } else {
      at::mm_out(to, a, b);
    }
  };
}

}  // namespace perigee::exec::kernels
