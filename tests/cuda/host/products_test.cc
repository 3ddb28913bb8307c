// Products of sizes that are no multiple of 16 bytes: which sizes are padded, and their results.
#include "cuda/ops/products.h"

#include "tests/support/torch_test.h"

namespace perigee::cuda {
namespace {

using at::Tensor;

// Returns a bfloat16 matrix of small integers, whose sums of products are exact.
Tensor matrix(int64_t rows, int64_t columns) {
  return at::randint(-4, 5, {rows, columns}, at::kFloat).to(at::kBFloat16);
}

// The same matrix, stored by columns; with gaps between rows; with memory that begins one element
// after that of its buffer; as every second column.
Tensor by_columns(const Tensor& t) { return t.t().contiguous().t(); }
Tensor with_gaps(const Tensor& t, int64_t gap) {
  const auto buffer = at::full({t.size(0), t.size(1) + gap}, NAN, t.options());
  buffer.narrow(1, 0, t.size(1)).copy_(t);
  return buffer.narrow(1, 0, t.size(1));
}
Tensor shifted(const Tensor& t) {
  const auto buffer = at::full({t.numel() + 1}, NAN, t.options());
  return buffer.narrow(0, 1, t.numel()).view(t.sizes()).copy_(t);
}
Tensor every_second(const Tensor& t) {
  const auto buffer = at::full({t.size(0), 2 * t.size(1)}, NAN, t.options());
  return buffer.slice(1, 0, std::nullopt, 2).copy_(t);
}

TEST_CASE("a dim of a product is padded where it is contiguous in a tensor") {
  using Sizes = ProductSizes;
  const auto empty = [](int64_t rows, int64_t columns) {
    return at::empty({rows, columns}, at::kBFloat16);
  };
  CHECK_FALSE(padded_sizes(empty(16, 24), empty(24, 32)));
  CHECK_FALSE(padded_sizes(empty(17, 24), empty(24, 32)));
  // The classes of a projection, in its forward pass and in the two products of its backward pass.
  CHECK(padded_sizes(empty(16, 24), empty(33, 24).t()) == Sizes{16, 24, 40});
  CHECK(padded_sizes(empty(16, 33), empty(33, 24)) == Sizes{16, 40, 24});
  CHECK(padded_sizes(empty(16, 33).t(), empty(16, 24)) == Sizes{40, 16, 24});
  CHECK(padded_sizes(empty(17, 20), empty(20, 33)) == Sizes{17, 24, 40});
  // Rows of whole pieces that begin between multiples of 16 bytes are copied.
  CHECK(padded_sizes(shifted(matrix(16, 24)), empty(24, 32)) == Sizes{16, 24, 32});
  CHECK(padded_sizes(with_gaps(matrix(16, 24), 3), empty(24, 32)) == Sizes{16, 24, 32});
  CHECK_FALSE(padded_sizes(with_gaps(matrix(16, 24), 8), empty(24, 32)));
}

TEST_CASE("products are padded where they compute much for each element") {
  CHECK(padding_pays({16384, 768, 50257}));
  CHECK(padding_pays({16384, 50257, 768}));
  CHECK(padding_pays({50257, 16384, 768}));
  CHECK_FALSE(padding_pays({16384, 8, 50257}));
  CHECK_FALSE(padding_pays({1, 768, 50257}));
  CHECK_FALSE(padding_pays({300, 300, 300}));
  CHECK_FALSE(padding_pays({0, 768, 50257}));
}

TEST_CASE("a padded product equals the product, whatever lies between the rows") {
  at::manual_seed(1);
  const int64_t m = GENERATE(1, 8, 13), k = GENERATE(1, 16, 19), n = GENERATE(1, 8, 261);
  const auto a = matrix(m, k), b = matrix(k, n);
  const auto expected = a.to(at::kFloat).mm(b.to(at::kFloat));
  const auto layouts = [](const Tensor& t) {
    return std::vector{t, by_columns(t), with_gaps(t, 3), shifted(t), every_second(t)};
  };
  for (const auto& x : layouts(a)) {
    for (const auto& y : layouts(b)) {
      const auto sizes = padded_sizes(x, y).value_or(ProductSizes{m, k, n});
      const auto result = padded_product(x, y, sizes);
      REQUIRE(result.sizes() == expected.sizes());
      REQUIRE(result.stride(1) == 1);
      REQUIRE(at::equal(result.to(at::kFloat), expected.to(at::kBFloat16).to(at::kFloat)));
    }
  }
}

TEST_CASE("a product is cut where rows begin at multiples of 16 bytes") {
  at::manual_seed(2);
  const int64_t m = GENERATE(8, 13), k = GENERATE(16, 19), n = 24;
  const auto gaps = [](const Tensor& t) { return with_gaps(t, 16 - t.size(1) % 8); };
  const auto a = matrix(m, k), b = matrix(k, n);
  const auto expected = a.to(at::kFloat).mm(b.to(at::kFloat)).to(at::kBFloat16);
  for (const auto& x : {gaps(a), gaps(a.t().contiguous()).t()}) {
    for (const auto& y : {gaps(b), gaps(b.t().contiguous()).t()}) {
      REQUIRE(can_cut(x, y));
      REQUIRE(at::equal(cut_product(x, y), expected));
    }
  }
  CHECK_FALSE(can_cut(with_gaps(a, 3 + k % 2), b));
  CHECK_FALSE(can_cut(gaps(a), matrix(k, 23)));
}

TEST_CASE("rows of a large matrix of two-byte elements begin at multiples of 16 bytes") {
  const auto strides = [](int64_t columns, at::ScalarType type) {
    const auto rows = empty_rows(3, columns, at::TensorOptions(type));
    CHECK(rows.sizes() == at::IntArrayRef({3, columns}));
    return rows.stride(0);
  };
  CHECK(strides(50257, at::kBFloat16) == 50264);
  CHECK(strides(50264, at::kHalf) == 50264);
  CHECK(strides(50257, at::kFloat) == 50257);
  CHECK(strides(257, at::kBFloat16) == 257);
}

}  // namespace
}  // namespace perigee::cuda
