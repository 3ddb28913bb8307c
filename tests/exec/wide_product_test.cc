// Products of 16-bit matrices that are added up in float32.
#include "exec/kernels/wide_product.h"

#include "exec/kernels/kernels.h"
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

}  // namespace perigee::exec
