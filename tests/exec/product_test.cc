// Products of matrices by blocks, and of 16-bit matrices that are added up in float32.
#include "exec/kernels/product/product.h"

#include "exec/kernels/kernels.h"
#include "exec/kernels/product/blocked_product.h"
#include "exec/memory/dry_run.h"
#include "exec/op_threads.h"
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

// Types of factors, and whether blocks of them are widened.
struct BlockFactors {
  at::ScalarType type;
  bool widened;
};
const std::vector<BlockFactors> kBlocks = {
    {at::kFloat, false}, {at::kBFloat16, false}, {at::kBFloat16, true}};

bool can_multiply(at::ScalarType type, bool widened) {
  return type == at::kBFloat16 && !widened ? kernels::has_pair_microkernels()
                                           : kernels::has_blocks(type);
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

TEST_CASE("a product adds to a sum of its own low precision") {
  at::manual_seed(1);
  const auto type = GENERATE(at::kBFloat16, at::kHalf);
  const int64_t size = GENERATE(5, 128);  // by LibTorch, and by blocks where the CPU has them
  const auto a = at::randn({size, size}).to(type), b = at::randn({size, size}).to(type);
  const auto start = at::randn({size, size}).to(type);
  const auto exact = at::addmm(start.to(at::kDouble), a.to(at::kDouble), b.to(at::kDouble));
  for (auto* kernel : {&cpu_kernel, &reference_kernel}) {
    const auto sum = start.clone();
    call(kernel, "perigee::addmm_", {{"sum", sum}, {"self", a}, {"mat2", b}}, {}, {});
    CHECK(at::allclose(sum.to(at::kDouble), exact, 0.02, 0.05));
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

TEST_CASE("a product with float32 results is exact in any layout, whatever computes it") {
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

TEST_CASE("products by blocks have no short side and are not small") {
  using kernels::prefers_blocks;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool here = prefers_blocks(type, 1 << 10, 1 << 10, 1 << 10);
  if (!kernels::has_blocks(type)) CHECK_FALSE(here);
  CHECK(prefers_blocks(type, 64, 64, 64) == here);
  CHECK(prefers_blocks(type, 1 << 10, 8, 32) == here);
  CHECK_FALSE(prefers_blocks(type, 63, 64, 64));
  CHECK_FALSE(prefers_blocks(type, 1 << 10, 1 << 10, 7));
  CHECK_FALSE(prefers_blocks(at::kDouble, 1 << 10, 1 << 10, 1 << 10));
  CHECK_FALSE(prefers_blocks(at::kHalf, 1 << 10, 1 << 10, 1 << 10));
  CHECK(prefers_blocks(at::kFloat, 64, 64, 64, true) == kernels::has_blocks(at::kFloat));
  CHECK_FALSE(prefers_blocks(type, 63, 64, 64, true));
}

TEST_CASE("a product by blocks is exact in any layout, for any shape and start") {
  at::manual_seed(1);
  const auto [type, widened] = GENERATE(from_range(kBlocks));
  const bool left = GENERATE(false, true), right = GENERATE(false, true);
  if (!can_multiply(type, widened)) return;
  // Parts of blocks, several parts of the depth, odd depths, runs of blocks, more rows than columns.
  for (const auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                               {3, 5, 2},
                               {65, 129, 33},
                               {1100, 70, 40},
                               {70, 1300, 65},
                               {4200, 9, 40},
                               {200, 131, 1057},
                               {131, 300, 2049},
                               {70, 1300, 2112},
                               {2200, 9, 1025}}) {
    INFO(m << " x " << k << " by " << k << " x " << n << ", " << c10::toString(type));
    const auto a = laid_out(integers({m, k}, type), left);
    const auto b = laid_out(integers({k, n}, type), right);
    const auto start = integers({m, n}, at::kFloat), bias = integers({n}, type);
    const auto exact = at::mm(a.to(at::kFloat), b.to(at::kFloat));
    auto sum = start.clone(), set = at::full({m, n}, NAN, type), biased = set.clone();
    kernels::multiply_by_blocks(sum, a, b, true, nullptr, widened);
    kernels::multiply_by_blocks(set, a, b, false, nullptr, widened);
    kernels::multiply_by_blocks(biased, a, b, false, &bias, widened);
    CHECK(sum.equal(start + exact));
    CHECK(set.equal(exact.to(type)));
    CHECK(biased.equal((exact + bias.to(at::kFloat)).to(type)));
  }
}

TEST_CASE("a product by blocks reads and writes nothing beside its matrices") {
  at::manual_seed(1);
  const auto [type, widened] = GENERATE(from_range(kBlocks));
  if (!can_multiply(type, widened)) return;
  const int64_t m = 70, n = 131, k = 45;
  const auto inner = [&](int64_t rows, int64_t columns) {
    const auto whole = at::full({rows + 2, columns + 3}, NAN, type);
    const auto part = whole.narrow(0, 1, rows).narrow(1, 2, columns);
    part.copy_(integers({rows, columns}, type));
    return part;
  };
  for (const auto& [a, b] :
       {std::pair{inner(m, k), inner(k, n)}, {inner(k, m).t(), inner(n, k).t()}}) {
    auto whole = at::full({m + 2, n + 3}, NAN, type);
    const auto part = whole.narrow(0, 1, m).narrow(1, 1, n);
    kernels::multiply_by_blocks(part, a, b, false, nullptr, widened);
    CHECK(part.equal(at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(type)));
    CHECK(at::isnan(whole).sum().item<int64_t>() == (m + 2) * (n + 3) - m * n);
  }
}

TEST_CASE("the rows of a product by blocks depend on no other row, and not on the threads") {
  at::manual_seed(1);
  const auto [type, widened] = GENERATE(from_range(kBlocks));
  if (!can_multiply(type, widened)) return;
  const auto a = at::randn({150, 1500}, type), b = at::randn({1500, 200}, type);
  auto whole = at::empty({150, 200}, type), part = at::empty({37, 90}, type), one = whole.clone();
  const int threads = exec::op_threads();
  kernels::multiply_by_blocks(whole, a, b, false, nullptr, widened);
  exec::set_op_threads(1);
  kernels::multiply_by_blocks(one, a, b, false, nullptr, widened);
  exec::set_op_threads(threads);
  kernels::multiply_by_blocks(part, a.narrow(0, 70, 37), b.narrow(1, 101, 90), false, nullptr,
                              widened);
  CHECK(one.equal(whole));
  CHECK(part.equal(whole.narrow(0, 70, 37).narrow(1, 101, 90)));
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

TEST_CASE("a product takes the way that its argument says, where the CPU has two") {
  at::manual_seed(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  constexpr int64_t kRows = 96, kInner = 1000, kColumns = 112;
  const auto usual = kernels::prefers_blocks(type, kRows, kColumns, kInner);
  const auto other = kernels::other_way(type, kRows, kColumns, kInner);
  CHECK(kernels::other_way(type, kRows, kColumns, 4).empty());
  CHECK(kernels::other_way(at::kDouble, kRows, kColumns, kInner).empty());
  if (!kernels::has_blocks(type)) {
    CHECK(other.empty());
    return;
  }
  CHECK(other == (usual ? "library" : "blocks"));
  const auto a = at::randn({kRows, kInner}).to(type), b = at::randn({kInner, kColumns}).to(type);
  const auto bias = at::randn({kColumns}).to(type);
  // The ways add up in other orders: exact in float32 sums.
  auto blocks = at::empty({kRows, kColumns}), biased = at::empty({kRows, kColumns}, a.options());
  kernels::multiply_by_blocks(blocks, a, b, false);
  kernels::multiply_by_blocks(biased, a, b, false, &bias);
  const graph::TensorType made{dtype_of(type), {kRows, kColumns}};
  for (const std::string way : {"blocks", "library"}) {
    INFO(way);
    const Args args = {{"way", way}};
    const bool by_blocks = way == "blocks";
    auto sum = at::zeros({kRows, kColumns});
    call(cpu_kernel, "perigee::mm_", {{"sum", sum}, {"self", a}, {"mat2", b}}, args, {});
    CHECK(sum.equal(blocks) == by_blocks);
    CHECK(at::allclose(sum, blocks, 1e-3, 1e-3));
    const auto product = call(cpu_kernel, "aten::mm", {{"self", a}, {"mat2", b}}, args, {made})[0];
    const auto with_bias = call(cpu_kernel, "aten::addmm",
                                {{"self", bias}, {"mat1", a}, {"mat2", b}}, args, {made})[0];
    if (by_blocks) {
      CHECK(product.equal(blocks.to(type)));
      CHECK(with_bias.equal(biased));
    } else {
      CHECK(product.equal(at::mm(a, b)));
      CHECK(with_bias.equal(at::addmm(bias, a, b)));
    }
  }
}

}  // namespace perigee::exec
