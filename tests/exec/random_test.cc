#include "exec/ops/random.h"

#include <cmath>

#include "exec/ops/philox.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

TEST_CASE("Philox4x32-10 gives the published known answers") {
  using Words = std::array<uint32_t, 4>;
  REQUIRE(philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  REQUIRE(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
          Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  REQUIRE(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
          Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("words of any range equal those of their blocks, also across the 32-bit boundary") {
  const RandomStream stream{.seed = 0x123456789abcdef0, .key = 7, .step = 3};
  const uint64_t begin = GENERATE(as<uint64_t>(), 0, 1, 6, 4 * ((uint64_t{1} << 32) - 5) + 1);
  std::vector<uint32_t> words(301);
  stream.words(begin, words);
  for (size_t i = 0; i < words.size(); ++i) {
    const uint64_t index = begin + i, block = index / 4;
    const auto expected = philox(
        {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 3, 0x12345678},
        {0x9abcdef0, 7})[index % 4];
    REQUIRE(words[i] == expected);
  }
}

TEST_CASE("random numbers are the same for every sharding and number of microbatches") {
  const RandomStream stream{.seed = 42, .key = 1, .step = 9};
  const auto kind = GENERATE(Distribution::Kind::uniform, Distribution::Kind::normal,
                             Distribution::Kind::bernoulli);
  const Distribution distribution{kind, kind == Distribution::Kind::bernoulli ? 0.3 : 0.0, 1.0};
  auto whole = at::empty({8, 5, 6}, at::kDouble);
  fill_random(whole, distribution, stream, {{8, 5, 6}, {}, {}, 0, {}});
  for (int64_t microbatches : {1, 2, 4}) {
    for (int64_t m = 0; m < microbatches; ++m) {
      for (int64_t ranks : {1, 2, 3, 5}) {
        for (int64_t rank = 0; rank < ranks; ++rank) {
          // The batch is split over microbatches, dim 1 unevenly over ranks.
          const int64_t rows = 8 / microbatches, first = rank * 5 / ranks;
          const int64_t length = (rank + 1) * 5 / ranks - first;
          auto local = at::empty({rows, length, 6}, at::kDouble);
          fill_random(local, distribution, stream,
                      {{rows, length, 6},
                       {rows, 5, 6},
                       {0, first, 0},
                       0,
                       {.microbatch = m, .microbatches = microbatches}});
          REQUIRE(at::equal(local, whole.narrow(0, m * rows, rows).narrow(1, first, length)));
        }
      }
    }
  }
}

TEST_CASE("microbatches split random numbers along any dim, or draw identical ones") {
  const RandomStream stream{.seed = 1, .key = 1, .step = 1};
  const auto draw = [&](std::vector<int64_t> shape, int64_t batch_dim, Draw draw) {
    auto t = at::empty(shape, at::kDouble);
    fill_random(t, {}, stream, {shape, {}, {}, batch_dim, draw});
    return t;
  };
  const auto whole = draw({3, 8}, 0, {});
  const auto second = draw({3, 4}, 1, {.microbatch = 1, .microbatches = 2});
  REQUIRE(at::equal(second, whole.narrow(1, 4, 4)));
  REQUIRE(at::equal(draw({3, 8}, -1, {.microbatch = 1, .microbatches = 2}), whole));
  REQUIRE(at::equal(draw({}, 0, {.microbatch = 5, .microbatches = 8}), whole[0][5]));
  // Of [3, 8] numbers in one dim, each microbatch has [3, 4].
  auto merged = at::empty({12}, at::kDouble);
  fill_random(merged, {}, stream,
              {{12}, {}, {}, 0, {.microbatch = 1, .microbatches = 2}, /*batch_run=*/4});
  REQUIRE(at::equal(merged.view({3, 4}), whole.narrow(1, 4, 4)));
}

TEST_CASE("random numbers follow their distributions") {
  const RandomStream stream{.seed = 5, .key = 2, .step = 1};
  const auto draw = [&](Distribution d, at::ScalarType type = at::kDouble) {
    auto t = at::empty({1 << 16}, type);
    fill_random(t, d, stream, {{1 << 16}, {}, {}, 0, {}});
    return t;
  };
  using Kind = Distribution::Kind;
  const auto uniform = draw({Kind::uniform, -1, 3});
  REQUIRE(uniform.mean().item<double>() == Approx(1).margin(0.02));
  REQUIRE(uniform.min().item<double>() >= -1);
  REQUIRE(uniform.max().item<double>() < 3);
  const auto normal = draw({Kind::normal, 2, 0.5});
  REQUIRE(normal.mean().item<double>() == Approx(2).margin(0.01));
  REQUIRE(normal.std().item<double>() == Approx(0.5).margin(0.01));
  const auto integers = draw({Kind::integer, -2, 3}, at::kLong);
  REQUIRE(integers.min().item<int64_t>() == -2);
  REQUIRE(integers.max().item<int64_t>() == 2);
  REQUIRE(draw({Kind::exponential}).mean().item<double>() == Approx(1).margin(0.02));
  REQUIRE(draw({Kind::bernoulli, 0.3}).mean().item<double>() == Approx(0.3).margin(0.01));
  REQUIRE(draw({Kind::uniform, 0, 1}, at::kBFloat16).max().item<double>() < 1);
  REQUIRE_THROWS_WITH(draw({Kind::normal}, at::kLong), Catch::Contains("floating point"));
  REQUIRE_THROWS_WITH(draw({Kind::integer, 0, 1e12}, at::kLong), Catch::Contains("at most 2^32"));
  // An exponential number divides and has a logarithm, in the type that it is rounded to, too.
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    const auto least = exponential_of(UINT32_MAX, uniform_bits(type));
    REQUIRE(at::full({}, least, type).item<double>() == least);
    REQUIRE(least > 0);
  }
  REQUIRE(exponential_of(0, 24) == Approx(32 * std::log(2)));
}

TEST_CASE("dropout keeps the same elements in every type and scales them") {
  const RandomStream stream{.seed = 5, .key = 2, .step = 1};
  const RandomBlock block({1001}, {}, {}, 0, {});
  auto reference = at::ones({1001}, at::kDouble);
  dropout(reference, reference, 0.25, stream, block);
  REQUIRE(reference.ne(0).sum().item<int64_t>() == Approx(751).margin(60));
  for (auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    auto out = at::ones({1001}, type);
    dropout(out, out, 0.25, stream, block);
    REQUIRE(at::equal(out, reference.to(type)));
  }
  for (double p : {0.0, 1.0}) {
    auto out = at::ones({1001});
    dropout(out, out, p, stream, block);
    REQUIRE(at::equal(out, at::full({1001}, 1 - p)));
  }
}

}  // namespace
}  // namespace perigee::exec
