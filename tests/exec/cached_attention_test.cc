#include <ATen/ATen.h>

#include "exec/kernels/kernels.h"
#include "exec/reference/reference.h"
#include "exec/tensor.h"
#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using at::Tensor;

struct Caches {
  Tensor key, value;

  Caches(int64_t slots, int64_t heads, int64_t context, int64_t size, at::ScalarType type)
      : key(at::zeros({slots, heads, context + 1, size}, type)),
        value(at::zeros({slots, heads, context + 1, size}, type)) {}
};

Tensor attend(Kernel (*kernel)(const Op&), const Tensor& q, const Tensor& k, const Tensor& v,
              const Tensor& positions, const Tensor& slots, const Caches& caches,
              int64_t window = 0) {
  return call(kernel, "perigee::cached_attention",
              {{"query", q},
               {"key", k},
               {"value", v},
               {"positions", positions},
               {"slots", slots},
               {"key_cache", caches.key},
               {"value_cache", caches.value}},
              {{"scale", 0.3}, {"window", window}},
              {{dtype_of(q.scalar_type()), q.sizes().vec()}})[0];
}

Tensor positions(int64_t begin, int64_t end) { return at::arange(begin, end).unsqueeze(0); }

double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2;
}

TEST_CASE("cached attention of a text in pieces equals causal attention of the whole text") {
  const auto type = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const int64_t heads = 4, groups = GENERATE(1, 2, 4), tokens = 70, size = 20;
  const bool reference = GENERATE(false, true);
  const auto kernel = reference ? reference_kernel : cpu_kernel;
  at::manual_seed(3);
  const auto q = at::randn({1, tokens, heads, size}, type).transpose(1, 2);
  const auto k = at::randn({1, tokens, groups, size}, type).transpose(1, 2);
  const auto v = at::randn({1, tokens, groups, size}, type).transpose(1, 2);
  const auto whole = call(
      reference_kernel, "perigee::attention", {{"query", q}, {"key", k}, {"value", v}},
      {{"causal", true}, {"scale", 0.3}},
      {{dtype_of(type), {1, heads, tokens, size}},
       {dtype_of(type == at::kDouble ? at::kDouble : at::kFloat), {1, heads, tokens}}})[0];
  const Caches caches(3, groups, tokens, size, type);
  const auto slot = at::full({1}, 2, at::kLong);
  int64_t first = 0;
  for (const int64_t count : {40, 1, 1, 28}) {
    const auto piece = [&](const Tensor& t) { return t.narrow(2, first, count); };
    const auto out = attend(kernel, piece(q), piece(k), piece(v), positions(first, first + count),
                            slot, caches);
    INFO("tokens from " << first);
    REQUIRE(at::allclose(out.to(at::kDouble), piece(whole).to(at::kDouble), tolerance(type),
                         tolerance(type)));
    first += count;
  }
  // Other slots are as they were.
  REQUIRE(caches.key.narrow(0, 0, 2).abs().sum().item<double>() == 0);
}

TEST_CASE("cached attention's kernel equals the reference for slots, gaps and windows") {
  const auto type = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const int64_t window = GENERATE(0, 1, 3, 40);
  at::manual_seed(4);
  const auto q = at::randn({3, 5, 2, 8}, type).transpose(1, 2);
  const auto k = at::randn({3, 5, 2, 8}, type).transpose(1, 2);
  const auto v = at::randn({3, 5, 2, 8}, type).transpose(1, 2);
  const auto positions =
      at::tensor({7, 8, 9, 10, 11, 0, 1, -1, -1, -1, -1, -1, -1, -1, -1}, at::kLong).view({3, 5});
  const auto slots = at::tensor({3, 0, 1}, at::kLong);
  Caches fast(4, 2, 12, 8, type);
  fast.key.normal_();
  fast.value.normal_();
  Caches slow = fast;
  slow.key = fast.key.clone();
  slow.value = fast.value.clone();
  const auto a = attend(cpu_kernel, q, k, v, positions, slots, fast, window);
  const auto b = attend(reference_kernel, q, k, v, positions, slots, slow, window);
  REQUIRE(at::allclose(a.to(at::kDouble), b.to(at::kDouble), tolerance(type), tolerance(type)));
  REQUIRE(a.select(0, 2).abs().sum().item<double>() == 0);
  // All rows but the last hold the same.
  REQUIRE(at::equal(fast.key.narrow(2, 0, 12), slow.key.narrow(2, 0, 12)));
  REQUIRE(at::equal(fast.value.narrow(2, 0, 12), slow.value.narrow(2, 0, 12)));
}

TEST_CASE("cached attention refuses a position that the cache has no room for") {
  const auto x = at::zeros({1, 2, 1, 8});
  const Caches caches(1, 2, 4, 8, at::kFloat);
  const auto slot = at::zeros({1}, at::kLong);
  REQUIRE_THROWS_WITH(attend(cpu_kernel, x, x, x, positions(4, 5), slot, caches),
                      Catch::Matchers::Contains("positions 0 to 3, but got 4"));
}

}  // namespace
}  // namespace perigee::exec
