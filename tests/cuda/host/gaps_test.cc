// Kernels on operands with gaps between rows, such as the results of padded products.
#include <cmath>

#include "cuda/ops/ops.h"
#include "exec/tensor.h"
#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::cuda {
namespace {

TEST_CASE("cross entropy takes logits with gaps between rows") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t columns = GENERATE(1, 9, 2055), gap = GENERATE(1, 7);
  at::manual_seed(11);
  const auto buffer = at::randn({6, columns + gap}).to(type);
  buffer.narrow(1, columns, gap).fill_(std::nan(""));
  const auto with_gaps = buffer.narrow(1, 0, columns), dense = with_gaps.contiguous();
  const auto target = at::randint(columns, {6}, at::kLong);
  const exec::Args args = {{"ignore_index", int64_t{-100}}, {"label_smoothing", 0.1}};
  const auto run = [&](const std::string& name, const exec::Named& tensors,
                       const std::vector<graph::TensorType>& types) {
    const auto kernel = +[](const exec::Op& op) {
      static Fault fault;
      return cuda_kernel(op, {.place = at::kCPU, .fault = &fault});
    };
    return exec::call(kernel, name, tensors, args, types);
  };
  const graph::TensorType row = {graph::DType::float32, {6}};
  const auto results = [&](const at::Tensor& logits) {
    auto all = run("perigee::cross_entropy", {{"logits", logits}, {"target", target}}, {row, row});
    const auto gradient = run("perigee::cross_entropy_backward",
                              {{"grad", at::arange(6, at::kFloat)},
                               {"logits", logits},
                               {"target", target},
                               {"logsumexp", all[1]}},
                              {{exec::dtype_of(type), {6, columns}}});
    all.push_back(gradient[0]);
    return all;
  };
  const auto expected = results(dense), given = results(with_gaps);
  const double bound = type == at::kFloat ? 1e-5 : 1e-2;
  for (size_t i = 0; i < expected.size(); ++i) {
    REQUIRE(given[i].sizes() == expected[i].sizes());
    CHECK(at::allclose(given[i], expected[i], bound, bound));
  }
}

}  // namespace
}  // namespace perigee::cuda
