// Kernels of attention against the reference.
#include "exec/kernels/attention/blocked_attention.h"
#include "exec/kernels/product/blocked_product.h"
#include "exec/op_threads.h"
#include "exec/tensor.h"
#include "tests/exec/close.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using graph::DType;

TEST_CASE("attention's kernels equal the reference in every type, grouped and causal or not") {
  const auto type = GENERATE(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf);
  const bool causal = GENERATE(true, false);
  const int64_t groups = GENERATE(1, 2, 4), keys = GENERATE(5, 9), value_size = GENERATE(8, 6);
  at::manual_seed(1);
  // The layout of a projection: [b, s, h, d] transposed.
  const auto q = at::randn({2, 5, 4, 8}, type).transpose(1, 2);
  const auto k = at::randn({2, keys, groups, 8}, type).transpose(1, 2);
  const auto v = at::randn({2, keys, groups, value_size}, type).transpose(1, 2);
  const auto dtype = dtype_of(type);
  const auto wide = type == at::kDouble ? DType::float64 : DType::float32;
  const Args args = {{"causal", causal}, {"scale", 0.3}};
  const Named in = {{"query", q}, {"key", k}, {"value", v}};
  const auto [fast, slow] = both("perigee::attention", in, args,
                                 {{dtype, {2, 4, 5, value_size}}, {wide, {2, 4, 5}}});
  require_close(fast, slow, tolerance_of(type));
  const auto grad = at::randn({2, 5, 4, value_size}, type).transpose(1, 2);
  const auto [d_fast, d_slow] = both("perigee::attention_backward",
                                     {{"grad", grad},
                                      {"query", q},
                                      {"key", k},
                                      {"value", v},
                                      {"output", slow[0]},
                                      {"logsumexp", slow[1]}},
                                     args,
                                     {{dtype, {2, 4, 5, 8}},
                                      {dtype, {2, groups, keys, 8}},
                                      {dtype, {2, groups, keys, value_size}}});
  require_close(d_fast, d_slow, tolerance_of(type));
}

TEST_CASE("dropout of attention depends on the score's index, also on a block of heads") {
  const auto q = at::randn({2, 4, 5, 8}, at::kDouble), k = at::randn({2, 4, 5, 8}, at::kDouble);
  const auto v = at::randn({2, 4, 5, 8}, at::kDouble);
  const Draw draw{.seed = 3, .step = 2, .microbatch = 1, .microbatches = 2};
  const std::vector<int64_t> global = {2, 4, 5, 5};
  const auto run = [&](int64_t head, int64_t heads) {
    const Args args = {{"scale", 0.3},
                       {"p", 0.4},
                       {"random_key", int64_t{5}},
                       {"global", global},
                       {"begin", std::vector<int64_t>{0, head, 0, 0}}};
    return call(cpu_kernel, "perigee::attention",
                {{"query", q.narrow(1, head, heads)},
                 {"key", k.narrow(1, head, heads)},
                 {"value", v.narrow(1, head, heads)}},
                args, {{DType::float64, {2, heads, 5, 8}}, {DType::float64, {2, heads, 5}}},
                draw)[0];
  };
  REQUIRE(at::equal(run(1, 2), run(0, 4).narrow(1, 1, 2)));
}

TEST_CASE("attention over many rows equals the reference") {
  const bool causal = GENERATE(true, false);
  const int64_t groups = GENERATE(1, 2), queries = GENERATE(64, 150), keys = GENERATE(70, 150);
  at::manual_seed(1);
  const auto part = [](int64_t rows, int64_t heads) {
    return at::randn({2, rows, heads, 40}).transpose(1, 2);
  };
  const auto q = part(queries, 2), k = part(keys, groups), v = part(keys, groups);
  const Args args = {{"causal", causal}, {"scale", 0.2}};
  const auto float32 = DType::float32;
  const auto [fast, slow] = both("perigee::attention", {{"query", q}, {"key", k}, {"value", v}},
                                 args,
                                 {{float32, {2, 2, queries, 40}}, {float32, {2, 2, queries}}});
  require_close(fast, slow, 3e-5);
  const auto [d_fast, d_slow] = both("perigee::attention_backward",
                                     {{"grad", part(queries, 2)},
                                      {"query", q},
                                      {"key", k},
                                      {"value", v},
                                      {"output", slow[0]},
                                      {"logsumexp", slow[1]}},
                                     args,
                                     {{float32, {2, 2, queries, 40}},
                                      {float32, {2, groups, keys, 40}},
                                      {float32, {2, groups, keys, 40}}});
  require_close(d_fast, d_slow, 3e-5);
}

TEST_CASE("attention in a low precision is that of float32, rounded once") {
  const auto type = GENERATE(at::kBFloat16, at::kHalf);
  const bool causal = GENERATE(true, false);
  const int64_t groups = GENERATE(1, 2), keys = GENERATE(90, 128);
  at::manual_seed(1);
  const auto part = [&](int64_t rows, int64_t heads) {
    return at::randn({2, heads, rows, 40}).to(type);
  };
  const Named low = {
      {"query", part(150, 2)}, {"key", part(keys, groups)}, {"value", part(keys, groups)}};
  const auto widened = [](Named tensors) {
    for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kFloat);
    return tensors;
  };
  const auto run = [&](const std::string& op, const Named& in, DType dtype,
                       const std::vector<std::vector<int64_t>>& shapes) {
    std::vector<graph::TensorType> types;
    for (const auto& shape : shapes) types.push_back({dtype, shape});
    if (op == "perigee::attention") types.back().dtype = DType::float32;
    return call(cpu_kernel, op, in, {{"causal", causal}, {"scale", 0.2}}, types);
  };
  const std::vector<std::vector<int64_t>> forward = {{2, 2, 150, 40}, {2, 2, 150}};
  const auto dtype = dtype_of(type);
  const auto made = run("perigee::attention", low, dtype, forward);
  const auto wide = run("perigee::attention", widened(low), DType::float32, forward);
  // Products of bfloat16 rows may be added up in another order: few results round elsewhere.
  const auto is_rounded = [&](const at::Tensor& a, const at::Tensor& b) {
    if (type == at::kHalf) return at::equal(a, b.to(type));
    const auto other = a.ne(b.to(type)).to(at::kFloat).mean().item<double>();
    return other < 0.01 && at::allclose(a.to(at::kFloat), b, 1.0 / 128, 1e-5);
  };
  CHECK(is_rounded(made[0], wide[0]));
  CHECK(at::allclose(made[1], wide[1], 1e-6, 1e-6));
  auto in = low;
  in.push_back({"grad", part(150, 2)});
  in.push_back({"output", made[0]});
  in.push_back({"logsumexp", made[1]});
  const std::vector<std::vector<int64_t>> backward = {
      {2, 2, 150, 40}, {2, groups, keys, 40}, {2, groups, keys, 40}};
  const auto d_made = run("perigee::attention_backward", in, dtype, backward);
  const auto d_wide = run("perigee::attention_backward", widened(in), DType::float32, backward);
  for (size_t i = 0; i < 3; ++i) CHECK(is_rounded(d_made[i], d_wide[i]));
}

TEST_CASE("attention by microkernels equals that of float64 within its rounding") {
  const auto type = GENERATE(at::kBFloat16, at::kFloat);
  const bool causal = GENERATE(true, false);
  const auto [queries, keys] = GENERATE(
      table<int64_t, int64_t>({{64, 64}, {320, 320}, {64, 576}, {320, 64}}));
  const int64_t size = GENERATE(16, 48), value_size = size == 16 ? 64 : 32;
  const int64_t groups = size == 16 ? 1 : keys == 64 ? 4 : 2;
  // Negative at some sizes.
  const double scale = keys == 320 ? -0.2 : 0.2, most = type == at::kFloat ? 1e-5 : 0.015;
  constexpr int64_t kHeads = 4;
  at::manual_seed(1);
  // Slices of the rows of a fused projection.
  const auto part = [&](int64_t rows, int64_t heads, int64_t width) {
    return at::randn({2, rows, heads + 1, width}).to(type).narrow(2, 1, heads).transpose(1, 2);
  };
  const Named in = {{"query", part(queries, kHeads, size)},
                    {"key", part(keys, groups, size)},
                    {"value", part(keys, groups, value_size)}};
  const auto grad = part(queries, kHeads, value_size);
  const auto run = [&](Named tensors, at::Tensor d_out, DType dtype, DType sums) {
    const Args args = {{"causal", causal}, {"scale", scale}};
    auto made = call(cpu_kernel, "perigee::attention", tensors, args,
                     {{dtype, {2, kHeads, queries, value_size}}, {sums, {2, kHeads, queries}}});
    tensors.insert(tensors.end(), {{"grad", d_out}, {"output", made[0]}, {"logsumexp", made[1]}});
    const auto gradients = call(cpu_kernel, "perigee::attention_backward", tensors, args,
                                {{dtype, {2, kHeads, queries, size}},
                                 {dtype, {2, groups, keys, size}},
                                 {dtype, {2, groups, keys, value_size}}});
    made.insert(made.end(), gradients.begin(), gradients.end());
    return made;
  };
  auto wide_in = in;
  for (auto& [name, tensor] : wide_in) tensor = tensor.to(at::kDouble);
  const auto wide = run(wide_in, grad.to(at::kDouble), DType::float64, DType::float64);
  const int threads = exec::op_threads();
  exec::set_op_threads(2);
  const auto two = run(in, grad, dtype_of(type), DType::float32);
  exec::set_op_threads(1);
  const auto one = run(in, grad, dtype_of(type), DType::float32);
  exec::set_op_threads(threads);
  // Other products are MKL's, which may round differently within a team of threads.
  const bool by_blocks = kernels::takes_blocks(in[0].second, in[1].second, in[2].second);
  CHECK(by_blocks ==
        (type == at::kFloat ? kernels::has_blocks(type) : kernels::has_pair_microkernels()));
  for (size_t i = 0; i < wide.size(); ++i) {
    INFO("result " << i);
    if (by_blocks) CHECK(at::equal(one[i], two[i]));
    const auto error = (one[i].to(at::kDouble) - wide[i]).abs().max().item<double>();
    CHECK(error < most * wide[i].abs().max().item<double>());
  }
}

}  // namespace
}  // namespace perigee::exec
