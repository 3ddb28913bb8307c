// Products with GELU: where cuBLASLt computes them, and where it has no kernel for it or refuses.
#include "base/log.h"
#include "tests/cuda/simulated/blas_lt.h"
#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/support.h"

namespace perigee::cuda {
namespace {

using exec::run_on;

constexpr int64_t kRows = 24, kInner = 16, kColumns = 40;

int products = 0;  // by cuBLASLt

struct Warnings : log::Sink {
  void write(log::Level, std::string_view line) override { text += line; }
  std::string text;
};

// Returns GELU of a product and its argument.
std::vector<at::Tensor> gelu_of_product() {
  simulated::restart(1);
  static const auto multiply = simulated::table().cublasLtMatmul;
  products = 0;
  simulated::table().cublasLtMatmul = [](auto... arguments) {
    ++products;
    return multiply(arguments...);
  };
  exec::seed(2);
  const graph::TensorType result{graph::DType::bfloat16, {kRows, kColumns}};
  const auto some = [](std::vector<int64_t> shape) { return at::randn(shape).to(at::kBFloat16); };
  auto results = run_on(*exec::devices()[0].device, "perigee::mm_gelu",
                        {{"self", some({kRows, kInner})},
                         {"mat2", some({kInner, kColumns})},
                         {"bias", some({kColumns})}},
                        {}, {result, result}, {});
  simulated::restart(1);
  return results;
}

}  // namespace

TEST_CASE("products with GELU are cuBLASLt's, or are computed apart where it has no kernel") {
  simulated::knows_epilogues = true;
  const auto fused = gelu_of_product();
  CHECK(products == 1);
  simulated::knows_epilogues = false;
  Warnings warnings;
  log::set_sink(&warnings);
  const auto apart = gelu_of_product();
  log::set_sink(nullptr);
  CHECK(products == 0);
  CHECK(warnings.text ==
        "cuBLASLt has no kernel for a product [24, 16] x [16, 40] with GELU: they "
        "are computed apart");
  simulated::knows_epilogues = true;
  for (size_t k = 0; k < 2; ++k) CHECK(at::allclose(fused[k], apart[k], 0.02, 0.02));
}

TEST_CASE("a failure of cuBLASLt names the call, the GPU and the remedy") {
  simulated::restart(1);
  simulated::table().cublasLtMatmul = [](auto...) { return CUBLAS_STATUS_EXECUTION_FAILED; };
  const graph::TensorType result{graph::DType::bfloat16, {kRows, kColumns}};
  const auto zeros = [](std::vector<int64_t> shape) { return at::zeros(shape, at::kBFloat16); };
  CHECK_THROWS_WITH(run_on(*exec::devices()[0].device, "perigee::mm_gelu",
                           {{"self", zeros({kRows, kInner})}, {"mat2", zeros({kInner, kColumns})}},
                           {}, {result}, {}),
                    Catch::Contains("cublasLtMatmul on GPU 0 must work, but got: the simulated") &&
                        Catch::Contains("without overlap's `activations`"));
  simulated::restart(1);
}

}  // namespace perigee::cuda
