// Gradients of embeddings that are added to a sum in place.
#include "exec/kernels/kernels.h"
#include "exec/op_threads.h"
#include "exec/reference/reference.h"
#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

TEST_CASE("gradients of an embedding are added to the rows that its indices name") {
  torch::manual_seed(3);
  const auto [type, low] = GENERATE(
      std::pair(at::kFloat, at::kFloat), std::pair(at::kFloat, at::kBFloat16),
      std::pair(at::kDouble, at::kDouble), std::pair(at::kBFloat16, at::kBFloat16));
  const int64_t columns = GENERATE(1, 37, 300), padding = GENERATE(-1, 4);
  const auto index = at::tensor({4, 0, 4, 2, 0, 4}).reshape({2, 3});
  const auto grad = at::randint(-8, 9, {2, 3, columns}).to(low);
  const auto start = at::randint(-8, 9, {6, columns}).to(type);
  const auto added = at::embedding_dense_backward(grad.to(type), index, 6, padding, false);
  for (const int threads : {1, 2}) {
    for (auto* kernel : {&cpu_kernel, &reference_kernel}) {
      const OpThreads given(threads);
      auto sum = start.clone();
      sum[1].fill_(NAN);  // no index names it
      call(kernel, "perigee::embedding_backward_",
           {{"sum", sum}, {"grad_output", grad}, {"indices", index}},
           {{"num_weights", int64_t{6}}, {"padding_idx", padding}}, {});
      CHECK(at::isnan(sum[1]).all().item<bool>());
      CHECK(at::equal(sum[4], (start + added)[4]));
      sum[1] = start[1];
      CHECK(at::equal(sum, start + added));
    }
  }
}

TEST_CASE("an index outside of an embedding is an error with its value") {
  auto sum = at::zeros({3, 2});
  for (const int64_t index : {-1, 3}) {
    CHECK_THROWS_WITH(
        call(cpu_kernel, "perigee::embedding_backward_",
             {{"sum", sum}, {"grad_output", at::ones({1, 2})}, {"indices", at::tensor({index})}},
             {}, {}),
        Catch::Contains("must lie in [0, 3), but got " + std::to_string(index)));
  }
  CHECK(sum.eq(0).all().item<bool>());
}

}  // namespace
}  // namespace perigee::exec
