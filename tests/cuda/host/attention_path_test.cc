// The choice of LibTorch's kernel for attention, and the operands that it needs.
#include "cuda/ops/attention_path.h"

#include <limits>

#include "tests/support/torch_test.h"

namespace perigee::cuda {
namespace {

using Path = AttentionPath;

// Returns the path of a common case in bf16, with a change.
template <class Change>
AttentionPath path_of(AttentionCase wanted, Change change) {
  wanted.type = at::kBFloat16;
  wanted.queries = wanted.keys = 128;
  wanted.query_width = wanted.value_width = 64;
  change(wanted);
  return attention_path(wanted);
}

TEST_CASE(
    "flash attention serves heads of 200 to 224 elements on GPUs with the shared memory for it") {
  AttentionCase c{.type = at::kBFloat16,
                  .queries = 64,
                  .keys = 64,
                  .query_width = 224,
                  .value_width = 224,
                  .causal = true};
  for (const auto& [capability, path] : {std::pair{80, AttentionPath::flash},
                                         {86, AttentionPath::efficient},
                                         {89, AttentionPath::efficient},
                                         {90, AttentionPath::flash}}) {
    c.capability = capability;
    CHECK(attention_path(c) == path);
  }
  c.capability = 86;
  c.query_width = c.value_width = 192;
  CHECK(attention_path(c) == AttentionPath::flash);
}

TEST_CASE("attention takes LibTorch's fused kernels where they apply") {
  const auto path = [](auto change) { return path_of({.causal = true}, change); };
  CHECK(path([](auto&) {}) == Path::flash);
  CHECK(path([](auto& c) { c.type = at::kHalf; }) == Path::flash);
  CHECK(path([](auto& c) { c.type = at::kFloat; }) == Path::efficient);
  CHECK(path([](auto& c) { c.type = at::kDouble; }) == Path::math);
  CHECK(path([](auto& c) { c.keys = 256; }) == Path::efficient);
  CHECK(path([](auto& c) { c.query_width = c.value_width = 320; }) == Path::efficient);
  CHECK(path([](auto& c) { c.query_width = c.value_width = 60; }) == Path::math);
  CHECK(path([](auto& c) { c.value_width = 128; }) == Path::math);
  CHECK(path([](auto& c) { c.bias = true; }) == Path::math);
  CHECK(path([](auto& c) { c.documents = true; }) == Path::math);
  CHECK(path([](auto& c) { c.queries = 0; }) == Path::math);
}

TEST_CASE(
    "attention of equally many queries and keys takes cuDNN's kernels from capability 9.0 on") {
  const auto path = [](auto change) { return path_of({.capability = 90}, change); };
  CHECK(path([](auto&) {}) == Path::cudnn);
  CHECK(path([](auto& c) { c.causal = true; }) == Path::cudnn);
  CHECK(path([](auto& c) { c.capability = 80; }) == Path::flash);
  CHECK(path([](auto& c) { c.deterministic = true; }) == Path::flash);
  CHECK(path([](auto& c) { c.query_width = c.value_width = 192; }) == Path::flash);
  CHECK(path([](auto& c) { c.queries = c.keys = 64; }) == Path::flash);
  CHECK(path([](auto& c) { c.keys = 256; }) == Path::flash);
  CHECK(path([](auto& c) { c.type = at::kFloat; }) == Path::efficient);
  CHECK(path([](auto& c) { c.documents = true; }) == Path::math);
}

TEST_CASE("deterministic attention keeps flash attention, and leaves the efficient kernel") {
  AttentionCase wanted = {.type = at::kBFloat16,
                          .queries = 128,
                          .keys = 128,
                          .query_width = 64,
                          .value_width = 64,
                          .deterministic = true};
  CHECK(attention_path(wanted) == AttentionPath::flash);
  wanted.type = at::kFloat;
  CHECK(attention_path(wanted) == AttentionPath::math);
}

TEST_CASE("fused attention gets contiguous rows that begin at multiples of 16 bytes") {
  const auto low = at::TensorOptions().dtype(at::kBFloat16);
  // Heads within the rows of a product of so many columns.
  const auto heads = [&](int64_t columns, int64_t first) {
    const auto product = at::randn({2, 40, columns}, low);
    return product.narrow(2, first, 48).view({2, 40, 3, 16}).transpose(1, 2);
  };
  const auto kept = [](const at::Tensor& t) { return aligned_rows(t).is_same(t); };
  CHECK(kept(heads(144, 48)));
  CHECK(kept(at::randn({2, 3, 40, 16}, low)));
  CHECK(kept(heads(144, 48).narrow(1, 0, 1).expand({2, 3, 40, 16})));
  // A stride of a dim of size 1 is not used.
  CHECK(kept(at::randn({3 * 40 * 16}, low).as_strided({1, 3, 40, 16}, {7, 640, 16, 1})));
  for (const auto& given :
       {heads(148, 48), heads(144, 4), at::randn({2, 3, 16, 40}, low).transpose(2, 3),
        at::randn({2 * 3 * 40 * 16 + 1}, low).narrow(0, 1, 2 * 3 * 40 * 16).view({2, 3, 40, 16})}) {
    CAPTURE(given.strides());
    const auto rows = aligned_rows(given);
    CHECK(at::equal(rows, given));
    CHECK(reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0);
    CHECK(rows.strides() == at::IntArrayRef({40 * 3 * 16, 16, 3 * 16, 1}));
  }
}

TEST_CASE("the efficient kernel gets outputs position by position") {
  const auto output = at::randn({2, 3, 40, 16});
  for (const auto& given : {output, output.transpose(1, 2).contiguous().transpose(1, 2)}) {
    const auto result = position_major(given);
    CHECK(result.strides() == at::IntArrayRef({40 * 3 * 16, 16, 3 * 16, 1}));
    CHECK(at::equal(result, output));
  }
}

TEST_CASE("rows beyond the last one have the logsumexp that makes their probabilities 0") {
  const auto saved = at::randn({2, 3, 40});
  const auto padded = padded_logsumexp(saved);
  REQUIRE(padded.sizes() == at::IntArrayRef({2, 3, 64}));
  CHECK(at::equal(padded.narrow(2, 0, 40), saved));
  CHECK(at::exp(0 - padded.narrow(2, 40, 24)).eq(0).all().item<bool>());
  CHECK(padded_logsumexp(at::randn({1, 1, 64})).size(2) == 64);
}

}  // namespace
}  // namespace perigee::cuda
