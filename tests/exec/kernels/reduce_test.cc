// Reductions over ranks, and products of experts, at their edges.
#include "exec/comm/reduce.h"

#include <cmath>
#include <limits>

#include "exec/kernels/kernels.h"
#include "exec/tensor.h"
#include "tests/exec/close.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

TEST_CASE("the largest and the least of several ranks' numbers are NaN where one of them is") {
  const auto type = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const auto reduce = GENERATE(mesh::Reduce::max, mesh::Reduce::min);
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<at::Tensor> terms;
    for (int i = 0; i < 3; ++i) terms.push_back(at::full({40}, i, at::kDouble).to(type));
    terms[rank][17] = NAN;
    const auto out = at::empty({40}, type);
    reduce_elements(terms, std::span(&out, 1), reduce, 0, 40);
    CHECK(out.isnan().sum().item<int64_t>() == 1);
    CHECK(out[17].isnan().item<bool>());
    CHECK(out[18].item<double>() == (reduce == mesh::Reduce::max ? 2 : 0));
  }
}

TEST_CASE("an average of integers is rounded towards 0, and its sum does not overflow") {
  const auto average = [](const std::vector<at::Tensor>& terms) {
    const auto out = at::empty_like(terms[0]);
    reduce_elements(terms, std::span(&out, 1), mesh::Reduce::average, 0, out.numel());
    return out;
  };
  const auto terms = at::tensor(std::vector<int64_t>{7, -7, 8});
  CHECK(at::equal(average({terms, at::zeros_like(terms)}),
                  at::tensor(std::vector<int64_t>{3, -3, 4})));
  CHECK(at::equal(average({terms.ge(0), terms.gt(7)}), terms.gt(7)));
  for (const auto& [type, most] : {std::pair{at::kByte, int64_t{255}},
                                   {at::kChar, 127},
                                   {at::kShort, 32767},
                                   {at::kInt, std::numeric_limits<int32_t>::max()},
                                   {at::kLong, std::numeric_limits<int64_t>::max()}}) {
    CAPTURE(type);
    const auto largest = at::full({3}, most, type);
    CHECK(at::equal(average(std::vector<at::Tensor>(256, largest)), largest));
  }
}

TEST_CASE("products of experts read weights of one row or column, whatever its stride") {
  const auto counts = at::tensor(std::vector<int64_t>{2, 1}).view({1, 2});  // of 3 places
  for (const auto& [width, hidden] : {std::pair{4, 1}, {1, 4}, {1, 1}, {3, 5}}) {
    CAPTURE(width, hidden);
    const auto x = at::randn({2, 1, 3, width});
    for (const bool transposed : {false, true}) {
      const auto weight = transposed ? at::randn({2, hidden, width}).transpose(1, 2)
                                     : at::randn({2, width, hidden});
      auto expected = at::matmul(x, weight.contiguous().unsqueeze(1));
      expected[0][0][2].zero_();
      expected[1][0].narrow(0, 1, 2).zero_();
      const auto out = call(cpu_kernel, "perigee::grouped_mm",
                            {{"self", x}, {"mat2", weight}, {"counts", counts}}, {},
                            {{graph::DType::float32, expected.sizes().vec()}});
      CHECK(at::allclose(out[0], expected, 1e-5, 1e-5));
    }
  }
}

TEST_CASE("products of experts read no numbers of places that are not taken") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const auto counts = at::tensor(std::vector<int64_t>{2, 1}).view({1, 2});  // of 3 places
  const auto x = at::randn({2, 1, 3, 4}).to(type), d = at::randn({2, 1, 3, 5}).to(type);
  const auto weight = at::randn({2, 4, 5}).to(type);
  for (const auto& queue : {x, d}) {
    queue[0][0][2].zero_();
    queue[1][0].narrow(0, 1, 2).zero_();
  }
  const graph::TensorType rows{dtype_of(type), {2, 1, 3, 5}}, sums{dtype_of(type), {2, 4, 5}};
  const auto results = [&] {
    const auto product = call(cpu_kernel, "perigee::grouped_mm",
                              {{"self", x}, {"mat2", weight}, {"counts", counts}}, {}, {rows});
    const auto outer = call(cpu_kernel, "perigee::grouped_outer",
                            {{"self", x}, {"grad", d}, {"counts", counts}}, {}, {sums});
    return std::vector{product[0], outer[0]};
  };
  const auto expected = results();
  for (const auto& queue : {x, d}) {
    queue[0][0][2].fill_(NAN);
    queue[1][0].narrow(0, 1, 2).fill_(NAN);
    const auto given = results();
    CHECK(at::equal(given[0], expected[0]));
    CHECK(at::equal(given[1], expected[1]));
  }
}

}  // namespace
}  // namespace perigee::exec
