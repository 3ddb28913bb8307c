// Products of 16-bit matrices that are added up in float32, and of float32 matrices by oneDNN.
#include "exec/kernels/wide_product.h"

#include "exec/kernels/kernels.h"
#include "exec/kernels/product.h"
#include "exec/memory/dry_run.h"
#include "exec/reference/reference.h"
#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

// Small integers: every product and sum is exact in float32, few of them are in 16 bits.
at::Tensor integers(std::vector<int64_t> shape, at::ScalarType type) {
  return at::randint(-8, 9, shape).to(type);
}

at::Tensor laid_out(const at::Tensor& t, bool transposed) {
  return transposed ? t.t().contiguous().t() : t;
}

}  // namespace

TEST_CASE("a product of 16-bit matrices is added to float32 without rounding, in any layout") {
  at::manual_seed(1);
  const auto type = GENERATE(at::kBFloat16, at::kHalf);
  const bool left = GENERATE(false, true), right = GENERATE(false, true);
  for (const auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                               {3, 5, 7},
                               {1, 40, 33},
                               {40, 1, 9},
                               {64, 128, 512},
                               {70, 130, 515},
                               {9, 300, 1030},
                               {4, 4, 0}}) {
    INFO(m << " x " << k << " by " << k << " x " << n << ", " << c10::toString(type));
    const auto a = laid_out(integers({m, k}, type), left);
    const auto b = laid_out(integers({k, n}, type), right);
    const auto start = integers({m, n}, at::kFloat);
    const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    for (auto* kernel : {&cpu_kernel, &reference_kernel}) {
      auto sum = start.clone(), set = start.clone();
      call(kernel, "perigee::addmm_", {{"sum", sum}, {"self", a}, {"mat2", b}}, {}, {});
      call(kernel, "perigee::mm_", {{"sum", set}, {"self", a}, {"mat2", b}}, {}, {});
      CHECK(sum.to(at::kDouble).equal(start + exact));
      CHECK(set.to(at::kDouble).equal(exact));
    }
  }
}

TEST_CASE("a product in place overwrites a sum that is not a number, and leaves its neighbours") {
  at::manual_seed(1);
  for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    auto whole = at::full({6, 8}, NAN);
    const auto part = whole.narrow(0, 1, 4).narrow(1, 2, 3);
    const auto a = integers({4, 5}, type), b = integers({5, 3}, type);
    call(cpu_kernel, "perigee::mm_", {{"sum", part}, {"self", a}, {"mat2", b}}, {}, {});
    CHECK(part.equal(at::mm(a.to(at::kFloat), b.to(at::kFloat))));
    CHECK(at::isnan(whole).sum().item<int64_t>() == 48 - 12);
  }
}

TEST_CASE("a wide product allocates the same each time") {
  const graph::TensorType wide{graph::DType::float32, {70, 130}};
  compile::OpInstance instance{
      .op = "perigee::addmm_",
      .args = {{"sum", graph::ValueId{0}},
               {"self", graph::ValueId{1}},
               {"mat2", graph::ValueId{2}}},
      .operands = {wide, {graph::DType::bfloat16, {70, 515}}, {graph::DType::bfloat16, {515, 130}}},
      .operand_strides = {{130, 1}, {1, 70}, {130, 1}},
      .outputs = {}};
  const auto first = record_trace(instance), second = record_trace(instance);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->complete);
  CHECK(first->allocations == second->allocations);
}

TEST_CASE("a float32 product is exact in any layout, by whichever library computes it") {
  at::manual_seed(1);
  const bool left = GENERATE(false, true), right = GENERATE(false, true);
  for (const auto [m, n, k] : {std::array<int64_t, 3>{4, 6, 5}, {257, 300, 256}, {33, 2100, 300}}) {
    INFO(m << " x " << k << " by " << k << " x " << n);
    const auto a = laid_out(integers({m, k}, at::kFloat), left);
    const auto b = laid_out(integers({k, n}, at::kFloat), right);
    const auto start = integers({m, n}, at::kFloat), bias = integers({n}, at::kFloat);
    const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    const std::vector<graph::TensorType> type{{graph::DType::float32, {m, n}}};
    const auto plain = call(cpu_kernel, "aten::mm", {{"self", a}, {"mat2", b}}, {}, type);
    const auto biased = call(cpu_kernel, "aten::addmm", {{"self", bias}, {"mat1", a}, {"mat2", b}},
                             {}, type);
    auto sum = start.clone(), set = at::full({m, n}, NAN);
    call(cpu_kernel, "perigee::addmm_", {{"sum", sum}, {"self", a}, {"mat2", b}}, {}, {});
    call(cpu_kernel, "perigee::mm_", {{"sum", set}, {"self", a}, {"mat2", b}}, {}, {});
    CHECK(plain[0].to(at::kDouble).equal(exact));
    CHECK(biased[0].to(at::kDouble).equal(exact + bias));
    CHECK(sum.to(at::kDouble).equal(exact + start));
    CHECK(set.to(at::kDouble).equal(exact));
  }
}

TEST_CASE("a product into a part of a larger float32 sum leaves the rest") {
  at::manual_seed(1);
  auto whole = at::full({260, 310}, NAN);
  const auto part = whole.narrow(0, 1, 257).narrow(1, 2, 300);
  const auto a = integers({257, 256}, at::kFloat), b = integers({256, 300}, at::kFloat);
  call(cpu_kernel, "perigee::mm_", {{"sum", part}, {"self", a}, {"mat2", b}}, {}, {});
  CHECK(part.equal(at::mm(a, b)));
  CHECK(at::isnan(whole).sum().item<int64_t>() == 260 * 310 - 257 * 300);
}

TEST_CASE("oneDNN gets large products of plain factors") {
  using kernels::float_product;
  using kernels::suits_onednn;
  CHECK(suits_onednn({.m = 256, .n = 256, .k = 256, .plain_factors = true}));
  CHECK(suits_onednn({.m = 32, .n = 1 << 10, .k = 1 << 10, .plain_factors = true}));
  CHECK_FALSE(suits_onednn({.m = 255, .n = 256, .k = 256, .plain_factors = true}));
  CHECK_FALSE(suits_onednn({.m = 1, .n = 1 << 12, .k = 1 << 12, .plain_factors = true}));
  CHECK_FALSE(suits_onednn({.m = 256, .n = 256, .k = 256, .plain_factors = false}));
  CHECK(float_product(at::ones({2, 3}), at::ones({4, 3}).t())->plain_factors);
  CHECK_FALSE(float_product(at::ones({2, 6}).narrow(1, 0, 3), at::ones({3, 4}))->plain_factors);
  CHECK_FALSE(float_product(at::ones({2, 3}, at::kDouble), at::ones({3, 4}, at::kDouble)));
}

TEST_CASE("oneDNN sets a product, or adds it") {
  if (!kernels::has_onednn()) return;
  const auto a = integers({40, 70}, at::kFloat), b = integers({70, 50}, at::kFloat);
  const auto start = integers({40, 50}, at::kFloat), exact = at::mm(a, b);
  auto sum = start.clone(), set = at::full({40, 50}, 7.0F);
  kernels::multiply_by_onednn(sum, a, b, true);
  kernels::multiply_by_onednn(set, a, b, false);
  CHECK(sum.equal(start + exact));
  CHECK(set.equal(exact));
}

TEST_CASE("a float32 product with a bias allocates the same each time") {
  const graph::TensorType x{graph::DType::float32, {256, 512}},
      y{graph::DType::float32, {256, 1536}};
  compile::OpInstance instance{
      .op = "aten::addmm",
      .args = {{"self", graph::ValueId{0}},
               {"mat1", graph::ValueId{1}},
               {"mat2", graph::ValueId{2}}},
      .operands = {{graph::DType::float32, {1536}}, x, {graph::DType::float32, {512, 1536}}},
      .operand_strides = {{1}, {512, 1}, {1, 512}},
      .outputs = {y}};
  const auto first = record_trace(instance), second = record_trace(instance);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->complete);
  CHECK(first->allocations == second->allocations);
}

}  // namespace perigee::exec
