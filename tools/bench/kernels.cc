// Perigee's CPU kernels against LibTorch's, on one thread: medians of interleaved runs, and whether
// the results agree. Below a ratio of 1, Perigee's kernel is faster. `bench_kernels adamw`: only
// AdamW over the 124M parameters of GPT-2, on all threads, against the rate of a copy (goal: 90 %).
#include "exec/kernels/kernels.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "exec/executor.h"
#include "exec/kernels/product/blocked_product.h"
#include "exec/tensor.h"

namespace {

using namespace perigee;
using Args = std::vector<std::pair<std::string, graph::Arg>>;

double seconds(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void compare(const std::string& name, const std::function<void()>& ours,
             const std::function<void()>& rival, bool agrees, int64_t elements) {
  std::vector<double> a, b;
  for (int i = 0; i < 3; ++i) ours(), rival();
  for (int i = 0; i < 21; ++i) {
    a.push_back(seconds(ours));
    b.push_back(seconds(rival));
  }
  std::nth_element(a.begin(), a.begin() + 10, a.end());
  std::nth_element(b.begin(), b.begin() + 10, b.end());
  fmt::print("{:34} {:8.3f} ms {:8.3f} ms  ratio {:.2f}  {:.2f} ns/element  {}\n", name,
             a[10] * 1e3, b[10] * 1e3, a[10] / b[10], a[10] * 1e9 / static_cast<double>(elements),
             agrees ? "agrees" : "DIFFERS");
}

// A kernel and its operands, called like an instruction of a program.
struct Call {
  exec::Kernel kernel;
  std::vector<at::Tensor> operands, results;
  Call(const std::string& name, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
       Args args, const std::vector<graph::TensorType>& types)
      : results(types.size()) {
    exec::Op op{.name = name, .args = std::move(args), .outputs = {types.begin(), types.end()}};
    for (const auto& [key, tensor] : tensors) {
      op.args.emplace_back(key, graph::ValueId{static_cast<int32_t>(operands.size())});
      operands.push_back(tensor);
    }
    kernel = exec::cpu_kernel(op);
  }
  void operator()() { kernel(operands, results, {.seed = 1, .step = 1}); }
};

bool close(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-4, 1e-5); }

void dropout() {
  const auto x = at::randn({2048, 2048});
  Call ours("perigee::dropout", {{"self", x}}, {{"p", 0.1}, {"key", int64_t{1}}},
            {exec::type_of(x)});
  ours();
  const double kept = ours.results[0].ne(0).to(at::kFloat).mean().item<double>();
  compare(
      "dropout / native_dropout", [&] { ours(); }, [&] { at::native_dropout(x, 0.1, true); },
      std::abs(kept - 0.9) < 1e-3, x.numel());
}

void cross_entropy() {
  const auto x = at::randn({1024, 8192});
  const auto labels = at::randint(0, 8192, {1024}, at::kLong);
  const graph::TensorType row{graph::DType::float32, {1024}};
  Call forward("perigee::cross_entropy", {{"logits", x}, {"target", labels}}, {}, {row, row});
  forward();
  Call backward("perigee::cross_entropy_backward",
                {{"grad", at::ones({1024})},
                 {"logits", x},
                 {"target", labels},
                 {"logsumexp", forward.results[1]}},
                {}, {exec::type_of(x)});
  backward();
  auto leaf = x.clone().requires_grad_(true);
  const auto eager = [&] {
    leaf.mutable_grad() = at::Tensor();
    at::cross_entropy_loss(leaf, labels, {}, at::Reduction::Sum).backward();
  };
  eager();
  compare(
      "cross entropy, both / autograd", [&] { forward(), backward(); }, eager,
      close(backward.results[0], leaf.grad()), x.numel());
}

void adamw() {
  const int64_t n = 4 << 20;
  auto eager = at::randn({n}).requires_grad_(true);
  auto ours = eager.detach().clone();
  eager.mutable_grad() = at::randn({n});
  torch::optim::AdamW optimizer({eager}, torch::optim::AdamWOptions(1e-3));
  const auto step = at::ones({}, at::kDouble);
  Call call("perigee::adamw_",
            {{"self", ours},
             {"exp_avg", at::zeros({n})},
             {"exp_avg_sq", at::zeros({n})},
             {"gradient", eager.grad()},
             {"lr", at::full({}, 1e-3, at::kDouble)},
             {"step", step}},
            {{"weight_decay", 1e-2}}, {});
  call();
  optimizer.step();
  const bool agrees = close(ours, eager.detach());
  compare(
      "adamw / torch::optim::AdamW", [&] { call(); }, [&] { optimizer.step(); }, agrees, n);
}

// AdamW reads weight, both moments and the gradient, and writes the first three: 28 bytes for each
// parameter. The copy moves as many bytes, half of them read, half written.
void adamw_bandwidth() {
  const int64_t n = 124'000'000;
  const auto make = [&] { return at::full({n}, 1e-3); };
  Call step("perigee::adamw_",
            {{"self", make()},
             {"exp_avg", make()},
             {"exp_avg_sq", make()},
             {"gradient", make()},
             {"lr", at::full({}, 1e-3, at::kDouble)},
             {"step", at::ones({}, at::kDouble)}},
            {{"weight_decay", 1e-2}}, {});
  step();
  const auto& weights = step.operands[0];
  const bool all_stepped = at::equal(weights, weights[0].expand({n})) &&
                           weights[0].item<float>() < 1e-3F;
  const auto from = at::full({n * 14 / 4}, 1.0), to = at::empty_like(from);
  compare(
      fmt::format("adamw, 124M, {} threads / copy", at::get_num_threads()), [&] { step(); },
      [&] { to.copy_(from); }, all_stepped, n);
}

void rms_norm() {
  const auto x = at::randn({4096, 1024}), w = at::randn({1024});
  Call ours("perigee::rms_norm", {{"self", x}, {"weight", w}}, {{"eps", 1e-5}},
            {exec::type_of(x), {graph::DType::float32, {4096, 1}}});
  ours();
  const auto eager = [&] { return at::rms_norm(x, {1024}, w, 1e-5); };
  compare(
      "rms norm / at::rms_norm", [&] { ours(); }, eager, close(ours.results[0], eager()),
      x.numel());
}

// Layer norm of a sum, and its gradient with an addition, against LibTorch's two ops each; GELU's
// gradient with the sum of its rows against Perigee's kernel and LibTorch's sum.
void fused_rows() {
  const std::vector<int64_t> shape = {1024, 768}, last = {768};
  const auto x = at::randn(shape), other = at::randn(shape), g = at::randn(shape);
  const auto w = at::randn(last), b = at::randn(last);
  const auto whole = exec::type_of(x), of_columns = exec::type_of(w);
  const graph::TensorType row{graph::DType::float32, {1024, 1}};
  Call there("perigee::add_layer_norm", {{"self", x}, {"other", other}, {"weight", w}, {"bias", b}},
             {{"normalized_shape", last}, {"eps", 1e-5}}, {whole, whole, row, row});
  const auto eager = [&] { return at::native_layer_norm(x + other, last, w, b, 1e-5); };
  there();
  compare(
      "layer norm of a sum / two ops", [&] { there(); }, eager,
      close(there.results[1], std::get<0>(eager())), x.numel());
  Call back("perigee::layer_norm_backward_add",
            {{"grad_out", g},
             {"input", there.results[0]},
             {"mean", there.results[2]},
             {"rstd", there.results[3]},
             {"weight", w},
             {"bias", b},
             {"other", other}},
            {{"normalized_shape", last}, {"output_mask", std::vector<bool>{true, true, true}}},
            {whole, of_columns, of_columns});
  const auto eager_back = [&] {
    return other +
           std::get<0>(at::native_layer_norm_backward(g, there.results[0], last, there.results[2],
                                                      there.results[3], w, b, {true, true, true}));
  };
  back();
  compare(
      "its gradient and a sum / two ops", [&] { back(); }, eager_back,
      close(back.results[0], eager_back()), x.numel());
  const auto h = at::randn({1024, 3072}), d = at::randn({1024, 3072});
  const graph::TensorType wide = exec::type_of(h);
  Call gelu("perigee::gelu_backward_sum", {{"grad_output", d}, {"self", h}}, {},
            {wide, {graph::DType::float32, {3072}}}),
      alone("aten::gelu_backward", {{"grad_output", d}, {"self", h}}, {}, {wide});
  at::Tensor sum;
  gelu();
  compare(
      "GELU's gradient and sum / two ops", [&] { gelu(); },
      [&] {
        alone();
        sum = alone.results[0].sum(0);
      },
      close(gelu.results[0], at::gelu_backward(d, h)), h.numel());
}

// Rotary positions of a llama's queries with transposed heads, forward and backward, against the
// same function in primitive ops and its autograd.
void rotary() {
  const auto x = at::randn({8, 256, 8, 64}).transpose(1, 2);
  const auto g = at::randn({8, 8, 256, 64}), cos = at::randn({256, 64}), sin = at::randn({256, 64});
  const std::vector<graph::TensorType> types = {exec::type_of(g)};
  Call there("perigee::rotary", {{"self", x}, {"cos", cos}, {"sin", sin}}, {}, types),
      back("perigee::rotary_backward", {{"grad", g}, {"cos", cos}, {"sin", sin}}, {}, types);
  const auto written = [&] {
    const auto halves = x.chunk(2, -1);
    return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
  };
  const auto written_back = [&] {
    const auto halves = (g * sin).chunk(2, -1);
    return g * cos + at::cat({halves[1], -halves[0]}, -1);
  };
  there(), back();
  compare(
      "rotary / written out", [&] { there(); }, written, close(there.results[0], written()),
      x.numel());
  compare(
      "rotary's backward / written out", [&] { back(); }, written_back,
      close(back.results[0], written_back()), x.numel());
}

// A weight gradient of a 16-bit layer [out, in] that is added to float32; the rival is its product
// in 16 bits and an addition. Agrees: ours is exact, and the rival within its rounding.
void main_gradient(at::ScalarType type, const char* name) {
  constexpr int64_t kTokens = 1024, kIn = 768, kOut = 2304;
  const auto gradient = at::randint(-4, 5, {kTokens, kOut}).to(type);
  const auto input = at::randint(-4, 5, {kTokens, kIn}).to(type);
  auto sum = at::zeros({kOut, kIn}), other = at::zeros({kOut, kIn});
  Call ours("perigee::addmm_", {{"sum", sum}, {"self", gradient.t()}, {"mat2", input}}, {}, {}),
      product("aten::mm", {{"self", gradient.t()}, {"mat2", input}}, {},
              {{exec::dtype_of(type), {kOut, kIn}}});
  ours(), product();
  const auto exact = at::mm(gradient.to(at::kFloat).t(), input.to(at::kFloat));
  const bool agrees = at::equal(sum, exact) &&
                      at::allclose(product.results[0].to(at::kFloat), exact, 1e-2, 1e-2);
  Call add("perigee::accumulate_", {{"self", other}, {"other", product.results[0]}}, {}, {});
  compare(
      name, [&] { ours(); }, [&] { product(), add(); }, agrees, kOut * kIn);
}

// Causal attention in bfloat16, forward and backward, 8 heads of 64 (goal: at most 0.8 times
// LibTorch's flash attention).
void low_attention(int64_t batch, int64_t sequence) {
  const auto part = [&] {
    return at::randn({batch, sequence, 8, 64}).to(at::kBFloat16).transpose(1, 2);
  };
  const auto q = part(), k = part(), v = part(), grad = part();
  const Args args = {{"causal", true}, {"scale", 0.125}};
  const auto type = exec::type_of(q);
  Call forward("perigee::attention", {{"query", q}, {"key", k}, {"value", v}}, args,
               {type, {graph::DType::float32, {batch, 8, sequence}}});
  forward();
  Call backward("perigee::attention_backward",
                {{"grad", grad},
                 {"query", q},
                 {"key", k},
                 {"value", v},
                 {"output", forward.results[0]},
                 {"logsumexp", forward.results[1]}},
                args, {type, type, type});
  backward();
  at::Tensor d_query;
  const auto flash = [&] {
    const auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true, {},
                                                                            0.125);
    d_query = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, q, k, v, out, lse, 0.0, true, {}, 0.125));
  };
  flash();
  compare(
      fmt::format("bfloat16 attention, {} x {} / flash", batch, sequence),
      [&] { forward(), backward(); }, flash, at::allclose(backward.results[0], d_query, 3e-2, 3e-2),
      q.numel());
}

// Causal attention, forward and backward, of 8 documents in one sequence of 1024 (goal: at most
// 1.15 times the same documents as 8 sequences of 128).
void documents(at::ScalarType type, const char* name) {
  constexpr int64_t kDocuments = 8, kLength = 128, kHeads = 8, kSize = 64;
  constexpr int64_t kAll = kDocuments * kLength;
  const auto apart = [&] {
    return at::randn({kDocuments, kLength, kHeads, kSize}, type).transpose(1, 2);
  };
  const auto q = apart(), k = apart(), v = apart(), grad = apart();
  const auto packed = [&](const at::Tensor& t) {
    return t.transpose(1, 2).reshape({1, kAll, kHeads, kSize}).transpose(1, 2);
  };
  const auto numbers = at::arange(kDocuments).repeat_interleave(kLength).unsqueeze(0);
  const auto wide = type == at::kDouble ? graph::DType::float64 : graph::DType::float32;
  const Args args = {{"causal", true}, {"scale", 0.125}};
  using Named = std::vector<std::pair<std::string, at::Tensor>>;
  const auto calls = [&](Named in, const at::Tensor& g) {
    const auto of = exec::type_of(in[0].second);
    auto row = of;
    row.dtype = wide;
    row.shape.pop_back();
    Call forward("perigee::attention", in, args, {of, row});
    forward();
    in.insert(in.end(),
              {{"grad", g}, {"output", forward.results[0]}, {"logsumexp", forward.results[1]}});
    return std::pair(forward, Call("perigee::attention_backward", in, args, {of, of, of}));
  };
  auto [forward, backward] = calls({{"query", packed(q)},
                                    {"key", packed(k)},
                                    {"value", packed(v)},
                                    {"documents", numbers},
                                    {"key_documents", numbers}},
                                   packed(grad));
  auto [forward_apart, backward_apart] = calls({{"query", q}, {"key", k}, {"value", v}}, grad);
  backward(), backward_apart();
  bool agrees = close(forward.results[0], packed(forward_apart.results[0]));
  for (size_t i = 0; i < 3; ++i) {
    agrees = agrees && close(backward.results[i], packed(backward_apart.results[i]));
  }
  compare(
      name, [&, &f = forward, &b = backward] { f(), b(); },
      [&, &f = forward_apart, &b = backward_apart] { f(), b(); }, agrees, q.numel());
}

// Products as in a linear layer of `inner` inputs and `outer` outputs: the output, and the
// gradients of the input and the weight. The rival is LibTorch's product (MKL for float32, oneDNN
// for bfloat16).
void products(at::ScalarType type, int64_t tokens, int64_t inner, int64_t outer) {
  if (!exec::kernels::has_blocks(type)) return;
  const auto x = at::randn({tokens, inner}, type), w = at::randn({outer, inner}, type),
             g = at::randn({tokens, outer}, type);
  const std::vector<std::tuple<std::string, at::Tensor, at::Tensor>> cases = {
      {"output", x, w.t()}, {"input gradient", g, w}, {"weight gradient", g.t(), x}};
  const double tolerance = type == at::kFloat ? 1e-4 : 1e-2;
  for (const auto& [what, a, b] : cases) {
    auto by_library = at::mm(a, b), by_blocks = at::empty_like(by_library);
    const auto blocks = [&, &l = a, &r = b] {
      exec::kernels::multiply_by_blocks(by_blocks, l, r, false);
    };
    blocks();
    compare(
        fmt::format("{} {}, {} x {} x {}: blocks / LibTorch", c10::toString(type), what, tokens,
                    inner, outer),
        blocks, [&, &l = a, &r = b] { at::mm_out(by_library, l, r); },
        at::allclose(by_blocks, by_library, tolerance, 100 * tolerance), tokens * inner * outer);
  }
}

// The overhead of an instruction over the op that it calls.
void overhead() {
  const auto x = at::randn({4}), y = at::randn({4});
  Call ours("aten::add.Tensor", {{"self", x}, {"other", y}}, {}, {exec::type_of(x)});
  ours();
  constexpr int kCalls = 10000;
  compare(
      "10,000 small adds / at::add",
      [&] {
        for (int i = 0; i < kCalls; ++i) ours();
      },
      [&] {
        for (int i = 0; i < kCalls; ++i) at::add(x, y);
      },
      at::equal(ours.results[0], x + y), kCalls);
}

}  // namespace

int main(int count, char** arguments) {
  at::manual_seed(1);
  if (count > 1 && std::string_view(arguments[1]) == "adamw") {
    adamw_bandwidth();
    return 0;
  }
  at::set_num_threads(1);
  dropout();
  cross_entropy();
  c10::AutoGradMode no_grad(false);
  rms_norm();
  fused_rows();
  rotary();
  main_gradient(at::kBFloat16, "bfloat16 main gradient / mm, add");
  main_gradient(at::kHalf, "float16 main gradient / mm, add");
  low_attention(4, 256);
  low_attention(1, 1024);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    products(type, 256, 512, 2048);
    products(type, 1024, 768, 3072);
    products(type, 1024, 768, 50257);
  }
  documents(at::kFloat, "8 documents packed / apart");
  documents(at::kDouble, "8 documents packed / apart, float64");
  overhead();
  adamw();
}
