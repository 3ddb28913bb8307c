#include "exec/kernels/product.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "exec/kernels/kernels.h"

// LibTorch exports these functions without a header.
namespace at::native {
void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
Tensor mkldnn_linear_pointwise(const Tensor& input, const Tensor& weight,
                               const std::optional<Tensor>& bias, std::string_view attribute,
                               c10::List<std::optional<Scalar>> scalars,
                               std::optional<std::string_view> algorithm);
}  // namespace at::native

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

constexpr int64_t kFewest = int64_t{1} << 24;  // multiplications of a product for oneDNN
constexpr int64_t kSmallestSide = 32;

bool is_plain(const Tensor& t) {
  return t.is_contiguous() || (t.stride(0) == 1 && t.stride(1) == t.size(0));
}

bool prefers_onednn(const Tensor& a, const Tensor& b) {
  const auto product = float_product(a, b);
  return product && prefers_onednn(*product);
}

}  // namespace

bool has_onednn() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has;
#else
  return false;
#endif
}

bool suits_onednn(const FloatProduct& product) {
  const auto& [m, n, k, plain] = product;
  return plain && std::min({m, n, k}) >= kSmallestSide && m * n * k >= kFewest;
}

bool prefers_onednn(const FloatProduct& product) {
#if defined(__x86_64__)
  static const bool here = has_onednn() && !__builtin_cpu_is("intel");
  return here && suits_onednn(product);
#else
  return false;
#endif
}

std::optional<FloatProduct> float_product(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() != at::kFloat || b.scalar_type() != at::kFloat || a.dim() != 2 ||
      b.dim() != 2) {
    return {};
  }
  return FloatProduct{
      .m = a.size(0), .n = b.size(1), .k = a.size(1), .plain_factors = is_plain(a) && is_plain(b)};
}

void multiply_by_onednn(const Tensor& result, const Tensor& a, const Tensor& b, bool add) {
  at::native::mkldnn_matmul(a, b, result, add ? 1.0F : 0.0F, 1.0F);
}

Kernel product(const Arguments& arguments) {
  if (arguments.type().dtype != graph::DType::float32) return {};
  return [self = arguments.operand("self"), mat2 = arguments.operand("mat2"),
          library = dispatcher_kernel(arguments.op())](std::span<const Tensor> in,
                                                       std::span<Tensor> out, const Draw& draw) {
    const auto &a = in[self], &b = in[mat2];
    if (!prefers_onednn(a, b)) return library(in, out, draw);
    out[0] = at::empty({a.size(0), b.size(1)}, a.options());
    multiply_by_onednn(out[0], a, b, false);
  };
}

Kernel product_with_bias(const Arguments& arguments) {
  if (arguments.type().dtype != graph::DType::float32 || arguments.op().args.size() != 3) return {};
  return [self = arguments.operand("self"), mat1 = arguments.operand("mat1"),
          mat2 = arguments.operand("mat2"), library = dispatcher_kernel(arguments.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    const auto &bias = in[self], &a = in[mat1];
    const auto weight = in[mat2].t();  // [n, k]
    if (bias.dim() != 1 || bias.size(0) != weight.size(0) || !bias.is_contiguous() ||
        !a.is_contiguous() || !weight.is_contiguous() || !prefers_onednn(a, in[mat2])) {
      return library(in, out, draw);
    }
    out[0] = at::native::mkldnn_linear_pointwise(a, weight, bias, "none",
                                                 c10::List<std::optional<at::Scalar>>(), "");
  };
}

}  // namespace perigee::exec::kernels
