// Ops on a GPU and on the CPU's device against the reference kernels. Without a GPU the cases run
// on the CPU alone.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "exec/tensor.h"
#include "tests/cuda/support.h"

namespace perigee::exec {
namespace {

using graph::DType;

DType wide(at::ScalarType type) { return type == at::kDouble ? DType::float64 : DType::float32; }

at::Tensor f64(double value) { return at::full({}, value, at::kDouble); }

TEST_CASE("random numbers and dropout are identical on every device") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf);
  const auto dtype = dtype_of(type);
  const Draw draw = {.seed = 11, .step = 3, .microbatch = 1, .microbatches = 2};
  const std::vector<int64_t> global = {8, 33, 5}, begin = {4, 0, 1};
  const Types types = {{dtype, {4, 33, 4}}};
  for (const char* kind : {"uniform", "bernoulli", "integer"}) {
    same_everywhere("perigee::random", {},
                    {{"kind", std::string(kind)},
                     {"key", int64_t{4}},
                     {"p", 0.3},
                     {"low", 0.0},
                     {"high", 9.0},
                     {"global", global},
                     {"begin", begin}},
                    types, 0, draw);
  }
  same_everywhere(
      "perigee::random", {},
      {{"kind", std::string("normal")}, {"key", int64_t{4}}, {"global", global}, {"begin", begin}},
      types, tolerance(type), draw);
  seed(1);
  same_everywhere("perigee::dropout", {{"self", at::randn({4, 33, 4}).to(type)}},
                  {{"p", 0.25}, {"key", int64_t{9}}, {"global", global}, {"begin", begin}}, types,
                  0, draw);
}

// A parameter in two boxes along its first dim, each with its gradient and state.
struct TwoBoxes {
  TwoBoxes(at::ScalarType type, std::vector<int64_t> whole) : shape(std::move(whole)) {
    for (const int64_t begin : {int64_t{0}, int64_t{2}}) {
      auto box = shape;
      box[0] = begin == 0 ? 2 : shape[0] - 2;
      for (auto* list : {&weights, &gradients, &states}) {
        list->push_back(at::randn(box, at::kDouble).to(type));
      }
      begins.push_back(begin);
      for (size_t d = 1; d < shape.size(); ++d) begins.push_back(0);
    }
  }
  Named with(Named named, bool states_too, const char* state) const {
    for (const auto& w : weights) named.emplace_back("weights*", w);
    for (const auto& g : gradients) named.emplace_back("gradients*", g);
    for (const auto& s : states) {
      if (states_too) named.emplace_back(state, s.abs());
    }
    return named;
  }

  std::vector<int64_t> shape, begins;
  std::vector<at::Tensor> weights, gradients, states;
};

TEST_CASE("adafactor is identical on every device") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const bool skips = GENERATE(false, true);
  seed(7);
  const auto scale = f64(skips ? std::nan("") : 0.5);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{5}, {5, 3}, {4, 3, 2}, {3, 4, 2, 6}}) {
    const TwoBoxes boxes(type, shape);
    const bool factored = shape.size() > 1;
    std::vector<int64_t> rows(shape.begin(), shape.end() - 1), columns = rows;
    if (factored) columns.back() = shape.back();
    const auto count = [](const std::vector<int64_t>& list) {
      int64_t n = 1;
      for (auto size : list) n *= size;
      return n;
    };
    const auto sums = at::rand({factored ? count(rows) + count(columns) + 1 : 1}, at::kDouble);
    Named states = {{"scale", scale}};
    if (factored) {
      states.emplace_back("row_var", at::rand(rows, at::kDouble).to(type));
      states.emplace_back("col_var", at::rand(columns, at::kDouble).to(type));
    }
    const Args where = {{"begins", boxes.begins}, {"shape", shape}};
    if (!skips) {
      same_everywhere("perigee::adafactor_sums_",
                      boxes.with({{"self", sums}, {"scale", scale}}, false, ""), where, {}, 1e-9);
    }
    auto more = where;
    more.emplace_back("beta2_decay", -0.8);
    auto given = states;
    given.insert(given.end(), {{"self", f64(3)}, {"sums", sums}, {"step", f64(4)}});
    same_everywhere("perigee::adafactor_moments_", boxes.with(given, !factored, "variance*"), more,
                    {}, tolerance(type));
    more = where;
    more.insert(more.end(), {{"clip_threshold", 1.0}, {"weight_decay", 0.1}});
    given = states;
    given.insert(given.end(),
                 {{"sums", sums}, {"norm", f64(9)}, {"lr", f64(1e-2)}, {"step", f64(4)}});
    same_everywhere("perigee::adafactor_", boxes.with(given, !factored, "variance*"), more, {},
                    tolerance(type));
  }
}

TEST_CASE("muon is identical on every device") {
  const auto type = GENERATE(at::kFloat, at::kDouble);
  const bool skips = GENERATE(false, true), nesterov = GENERATE(false, true);
  seed(8);
  const auto scale = f64(skips ? std::nan("") : 0.5);
  const TwoBoxes boxes(type, {5, 3});
  const auto matrix = [&] { return at::randn({5, 3}, at::kDouble).to(type); };
  Named in = {{"self", matrix()}, {"scale", scale}};
  for (const auto& s : boxes.states) in.emplace_back("momentum_buffer*", s);
  for (const auto& g : boxes.gradients) in.emplace_back("gradients*", g);
  same_everywhere("perigee::muon_update_", in,
                  {{"begins", boxes.begins}, {"momentum", 0.9}, {"nesterov", nesterov}}, {},
                  tolerance(type));
  in = {{"update", matrix()}, {"lr", f64(1e-2)}, {"scale", scale}};
  for (const auto& w : boxes.weights) in.emplace_back("weights*", w);
  same_everywhere("perigee::muon_", in, {{"begins", boxes.begins}, {"weight_decay", 0.1}}, {},
                  tolerance(type));
  for (const auto& x : {matrix(), matrix().t().contiguous()}) {
    same_everywhere(
        "perigee::orthogonalize_",
        {{"squares", at::zeros({2, 3, 3}, type)}, {"other", at::zeros_like(x)}, {"self", x}},
        {{"steps", int64_t{5}}}, {}, type == at::kDouble ? 1e-9 : 1e-3);
  }
}

TEST_CASE("optimizers are identical on every device") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const double step = GENERATE(1.0, 7.0);
  seed(2);
  const auto random = [&] { return at::randn({5003}, at::kDouble).to(type); };
  const Named adam = {{"self", random()},     {"exp_avg", random()}, {"exp_avg_sq", random().abs()},
                      {"gradient", random()}, {"lr", f64(1e-2)},     {"step", f64(step)},
                      {"scale", f64(0.7)}};
  const Args numbers = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  same_everywhere("perigee::adamw_", adam, numbers, {}, tolerance(type));
  auto decayed = adam;
  decayed.emplace_back("weight_decay", f64(0.1));
  same_everywhere("perigee::adamw_", decayed, {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}}, {},
                  tolerance(type));
  same_everywhere("perigee::adam_", adam, numbers, {}, tolerance(type));
  const bool nesterov = GENERATE(true, false);
  same_everywhere("perigee::sgd_",
                  {{"self", random()},
                   {"momentum_buffer", random()},
                   {"gradient", random()},
                   {"lr", f64(1e-2)},
                   {"step", f64(step)}},
                  {{"momentum", 0.9},
                   {"dampening", nesterov ? 0.0 : 0.1},
                   {"nesterov", nesterov},
                   {"weight_decay", 0.1}},
                  {}, tolerance(type));
}

TEST_CASE("optimizers with masters or noise, and guarded ones, are identical on every device") {
  const bool masters = GENERATE(true, false);
  const double scale = GENERATE(0.5, std::nan(""));
  seed(5);
  const auto random = [](at::ScalarType type) { return at::randn({5003}).to(type); };
  const auto self = masters ? at::kFloat : at::kBFloat16;
  const auto gradient = masters ? GENERATE(at::kBFloat16, at::kHalf) : at::kBFloat16;
  Named in = {{"self", random(self)},
              {"exp_avg", random(at::kFloat)},
              {"exp_avg_sq", random(at::kFloat).abs()},
              {"gradient", random(gradient)},
              {"lr", f64(1e-2)},
              {"step", f64(3)},
              {"scale", f64(scale)}};
  if (!masters) in.emplace_back("noise", at::rand({5003}));
  const Args numbers = {{"weight_decay", 0.1}, {"guarded", true}};
  // A number halfway between two bfloat16 numbers may be rounded to either.
  const double bound = masters ? tolerance(at::kFloat) : tolerance(at::kBFloat16);
  same_everywhere("perigee::adamw_", in, numbers, {}, bound);
  std::erase_if(in, [](const auto& operand) { return operand.first == "exp_avg_sq"; });
  same_everywhere("perigee::lion_", in, numbers, {}, bound);
}

TEST_CASE("the loss scale is identical on every device") {
  const double squared = GENERATE(4.0, INFINITY);
  const auto scale = at::full({}, 8.0f);
  same_everywhere(
      "perigee::update_loss_scale_",
      {{"loss_scale", scale},
       {"growth_tracker", f64(1)},
       {"skipped_steps", f64(2)},
       {"applied_step", f64(0)},
       {"squared_norm", f64(squared)},
       {"step", f64(9)}},
      {{"growth_factor", 2.0}, {"backoff_factor", 0.5}, {"growth_interval", int64_t{2}}}, {}, 0);
  same_everywhere("perigee::update_loss_scale_",
                  {{"loss_scale", scale},
                   {"growth_tracker", f64(1)},
                   {"skipped_steps", f64(2)},
                   {"applied_step", f64(0)},
                   {"squared_norm", f64(squared)},
                   {"step", f64(9)},
                   {"patience", f64(1)}},
                  {{"growth_factor", 2.0},
                   {"backoff_factor", 0.5},
                   {"growth_interval", int64_t{2}},
                   {"min_scale", 6.0},
                   {"hysteresis", int64_t{2}}},
                  {}, 0);
  if (squared == 4) {
    same_everywhere("perigee::clip_scale", {{"squared_norm", f64(squared)}, {"loss_scale", scale}},
                    {{"max_norm", 0.5}, {"factor", 0.25}},
                    {{DType::float64, {}}, {DType::float64, {}}}, 1e-12);
  }
}

TEST_CASE("copies, sums and norms are identical on every device") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  seed(3);
  const auto a = at::randn({301, 7}, at::kDouble).to(type), b = at::randn({301, 7}).to(type);
  same_everywhere("perigee::copy_", {{"self", a}, {"source", b}}, {{"scale", 0.5}}, {}, 0);
  same_everywhere("perigee::accumulate_", {{"self", a}, {"other", b}}, {{"scale", 0.25}}, {},
                  tolerance(type));
  same_everywhere("perigee::scale_", {{"self", a}, {"scale", f64(0.3)}}, {}, {},
                  type == at::kBFloat16 ? 0 : tolerance(type));
  same_everywhere("perigee::squared_norm",
                  {{"tensors*", a}, {"tensors*", b}, {"tensors*", at::randn({1000003}).to(type)}},
                  {}, {{DType::float64, {}}}, 1e-10);
  for (const double squared : {9.0, HUGE_VAL, std::nan("")}) {
    same_everywhere("perigee::clip_scale", {{"squared_norm", f64(squared)}},
                    {{"max_norm", 0.5}, {"factor", 0.25}},
                    {{DType::float64, {}}, {DType::float64, {}}}, 1e-12);
  }
  same_everywhere("perigee::reshape", {{"self", a.t()}}, {}, {{dtype_of(type), {2107}}}, 0);
}

// Returns whether the device multiplies eight-bit floats; every CPU does.
bool multiplies_eight_bits(const Device& device) {
  if (!device.place().is_cuda()) return true;
  return cuda_host().gpus().found.at(0).multiplies_eight_bits();
}

TEST_CASE("eight-bit floats and their products are identical on every device") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::string format = GENERATE("e4m3", "e5m2");
  const auto narrow = format == "e4m3" ? DType::float8_e4m3 : DType::float8_e5m2;
  seed(8);
  const auto scalar = [](double value) { return at::full({}, value, at::kFloat); };
  auto x = at::randn({48, 64}, at::kDouble).to(type);
  x[0][0] = 1e4;  // saturates
  for (const auto& self : {x, x.t()}) {
    same_everywhere("perigee::fp8_cast", {{"self", self}, {"scale", scalar(37)}},
                    {{"format", format}}, {{narrow, self.sizes().vec()}}, 0);
  }
  // The product a b; b is stored by columns.
  const auto reference = reference_device();
  const auto cast = [&](const at::Tensor& t, const std::string& to, DType dtype) {
    return run_on(*reference, "perigee::fp8_cast", {{"self", t}, {"scale", scalar(37)}},
                  {{"format", to}}, {{dtype, t.sizes().vec()}}, {})[0];
  };
  const auto narrow_a = cast(at::randn({48, 64}), format, narrow),
             narrow_b = cast(at::randn({32, 64}), "e4m3", DType::float8_e4m3);
  const auto expected = narrow_a.to(at::kDouble).matmul(narrow_b.to(at::kDouble).t()) / 37 / 37;
  const auto bias = at::randn({32}).to(type);
  const auto scale_a = (at::rand({48, 1}) + 0.5) / 37, scale_b = (at::rand({32, 1}) + 0.5) / 37;
  for (const auto& [called, device] : devices()) {
    INFO(called);
    if (!multiplies_eight_bits(*device)) {
      WARN("this GPU multiplies no eight-bit floats: " << device->kind());
      continue;
    }
    const auto product = [&](const at::Tensor& of_a, const at::Tensor& of_b, const Named& more) {
      Named operands = {
          {"self", narrow_a}, {"mat2", narrow_b.t()}, {"scale_a", of_a}, {"scale_b", of_b}};
      operands.insert(operands.end(), more.begin(), more.end());
      return run_on(*device, "aten::_scaled_mm", operands, {{"out_dtype", dtype_of(type)}},
                    {{dtype_of(type), {48, 32}}}, {})[0]
          .to(at::kDouble);
    };
    // Tensor cores accumulate in fewer bits than float32.
    const double bound = type == at::kFloat ? 2e-3 : 3e-2;
    const auto one = scalar(1.0 / 37);
    CHECK(at::allclose(product(one, one, {}), expected, bound, bound));
    CHECK_FALSE(at::allclose(product(one, scalar(1.0 / 41), {}), expected, bound, bound));
    if (type == at::kFloat) continue;  // no bias, and no scales of rows, on every GPU
    const auto added = bias.to(at::kDouble);
    CHECK(at::allclose(product(one, one, {{"bias", bias}}), expected + added, bound, bound));
    CHECK(at::allclose(product(scale_a, scale_b.t(), {{"bias", bias}}),
                       expected * (scale_a * 37) * (scale_b * 37).t() + added, bound, bound));
  }
}

TEST_CASE("rotary positions are identical on every device") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const bool wide_angles = GENERATE(false, true);  // float32, beside bfloat16
  if (wide_angles && type != at::kBFloat16) return;
  const auto dtype = dtype_of(type);
  seed(12);
  const auto x = at::randn({2, 7, 3, 10}, at::kDouble).to(type);  // [b, s, h, d]
  const auto cos = at::randn({7, 10}).to(wide_angles ? at::kFloat : type),
             sin = at::randn({7, 10}).to(wide_angles ? at::kFloat : type);
  for (const auto& self :
       {x.transpose(1, 2), x.transpose(1, 2).contiguous(), x[0].transpose(0, 1)}) {
    const Types types = {{dtype, self.sizes().vec()}};
    same_everywhere("perigee::rotary", {{"self", self}, {"cos", cos}, {"sin", sin}}, {}, types,
                    tolerance(type));
    same_everywhere("perigee::rotary_backward", {{"grad", self}, {"cos", cos}, {"sin", sin}}, {},
                    types, tolerance(type));
  }
}

TEST_CASE("attention results of parts of the keys are merged identically on every device") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const auto sum = wide(type);
  seed(13);
  const auto self = at::randn({2, 3, 5, 9}).to(scalar_type(sum));
  const auto other = at::randn({2, 3, 5, 9}, at::kDouble).to(type);
  const auto a = (3 * at::randn({2, 3, 5})).to(scalar_type(sum)),
             b = (a + at::randn({2, 3, 5})).to(scalar_type(sum));
  const double none = -std::numeric_limits<double>::infinity();
  a[0][0][0] = none;
  a[1][2][1] = none;
  b[1][2][1] = none;  // no key in either part
  for (const auto& first : {self, self.to(type)}) {
    same_everywhere("perigee::merge_attention",
                    {{"self", first}, {"logsumexp", a}, {"other", other}, {"other_logsumexp", b}},
                    {}, {{sum, {2, 3, 5, 9}}, {sum, {2, 3, 5}}}, tolerance(type));
  }
}

TEST_CASE("RMS norm is identical on every device, with its gradients") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const auto dtype = dtype_of(type);
  seed(4);
  const auto x = at::randn({6, 35, 130}, at::kDouble).to(type), w = at::randn({130}).to(type);
  const auto g = at::randn({6, 35, 130}).to(type);
  const Types types = {{dtype, {6, 35, 130}}, {wide(type), {6, 35, 1}}};
  same_everywhere("perigee::rms_norm", {{"self", x}, {"weight", w}}, {{"eps", 1e-6}}, types,
                  tolerance(type));
  same_everywhere("perigee::rms_norm", {{"self", x}}, {{"eps", 1e-6}}, types, tolerance(type));
  const auto rstd =
      (x.to(at::kDouble).square().mean(-1, true) + 1e-6).rsqrt().to(scalar_type(wide(type)));
  // Weight gradients are sums over 210 rows.
  const double sums = type == at::kBFloat16 ? 0.3 : 10 * tolerance(type);
  same_everywhere("perigee::rms_norm_backward",
                  {{"grad", g}, {"self", x}, {"weight", w}, {"rstd", rstd}}, {},
                  {{dtype, {6, 35, 130}}, {dtype, {130}}}, sums);
  const auto other = at::randn({6, 35, 130}).to(type);
  same_everywhere("perigee::add_rms_norm", {{"self", x}, {"other", other}, {"weight", w}},
                  {{"eps", 1e-6}}, {types[0], types[0], types[1]}, 3 * tolerance(type));
  same_everywhere("perigee::rms_norm_backward_add",
                  {{"grad", g}, {"self", x}, {"weight", w}, {"rstd", rstd}, {"other", other}}, {},
                  {{dtype, {6, 35, 130}}, {dtype, {130}}}, sums);
}

TEST_CASE("layer norm is identical on every device, with its gradients") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  // Of weights and biases.
  const auto vectors = GENERATE_COPY(type, type == at::kFloat ? at::kBFloat16 : at::kFloat);
  const auto dtype = dtype_of(type);
  seed(15);
  // Around a mean far from 0.
  const auto x = (at::randn({6, 35, 130}, at::kDouble) + 5).to(type);
  const auto some = [](std::vector<int64_t> shape, auto of) { return at::randn(shape).to(of); };
  const auto w = some({130}, vectors), b = some({130}, vectors);
  const auto g = some({6, 35, 130}, type), other = some({6, 35, 130}, type);
  const graph::TensorType whole{dtype, {6, 35, 130}}, statistics{wide(type), {6, 35, 1}},
      vector{dtype_of(vectors), {130}};
  const Args args = {{"normalized_shape", std::vector<int64_t>{130}}, {"eps", 1e-5}};
  const auto three = Types{whole, statistics, statistics};
  same_everywhere("aten::native_layer_norm", {{"input", x}, {"weight", w}, {"bias", b}}, args,
                  three, 2 * tolerance(type));
  same_everywhere("aten::native_layer_norm", {{"input", x}}, args, three, 2 * tolerance(type));
  same_everywhere("perigee::add_layer_norm",
                  {{"self", x}, {"other", other}, {"weight", w}, {"bias", b}}, args,
                  {whole, whole, statistics, statistics}, 3 * tolerance(type));
  // Over two dims.
  const graph::TensorType of_matrices{wide(type), {6, 1, 1}};
  same_everywhere("aten::native_layer_norm", {{"input", x}, {"weight", some({35, 130}, vectors)}},
                  {{"normalized_shape", std::vector<int64_t>{35, 130}}, {"eps", 1e-5}},
                  {whole, of_matrices, of_matrices}, 2 * tolerance(type));
  const auto exact = x.to(at::kDouble);
  const auto mean = exact.mean(-1, true).to(scalar_type(wide(type)));
  const auto rstd =
      (exact.var(-1, /*unbiased=*/false, true) + 1e-5).rsqrt().to(scalar_type(wide(type)));
  // Gradients of weights and biases are sums over 210 rows.
  const double sums = 10 * std::max(tolerance(type), tolerance(vectors));
  const Named saved = {{"grad_out", g}, {"input", x},  {"mean", mean},
                       {"rstd", rstd},  {"weight", w}, {"bias", b}};
  auto added = saved;
  added.emplace_back("other", other);
  const auto backward = [&](std::vector<bool> mask) {
    return Args{{"normalized_shape", std::vector<int64_t>{130}}, {"output_mask", std::move(mask)}};
  };
  const Types gradients = {whole, vector, vector};
  same_everywhere("aten::native_layer_norm_backward", saved, backward({true, true, true}),
                  gradients, sums);
  same_everywhere("perigee::layer_norm_backward_add", added, backward({true, true, true}),
                  gradients, sums);
  same_everywhere("aten::native_layer_norm_backward",
                  {{"grad_out", g}, {"input", x}, {"mean", mean}, {"rstd", rstd}},
                  backward({true, false, false}), {whole}, tolerance(type));
}

TEST_CASE("GELU's gradient is identical on every device, with the sum of its rows") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf);
  const std::string form = GENERATE("none", "tanh");
  const int64_t columns = GENERATE(130, 264);  // the first one is no whole number of pieces
  const auto dtype = dtype_of(type);
  seed(9);
  const auto x = at::randn({3, 67, columns}, at::kDouble).to(type);
  const auto g = at::randn({3, 67, columns}).to(type);
  // Sums over 201 rows.
  const double sums = size_of(dtype) == 2 ? 0.3 : 10 * tolerance(type);
  same_everywhere("perigee::gelu_backward_sum", {{"grad_output", g}, {"self", x}},
                  {{"approximate", form}}, {{dtype, {3, 67, columns}}, {dtype, {columns}}}, sums);
}

TEST_CASE("SwiGLU is identical on every device, with its gradients") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf);
  const std::vector<int64_t> shape = {3, 67, 130};
  const graph::TensorType whole{dtype_of(type), shape};
  seed(11);
  const auto gate = at::randn(shape, at::kDouble).to(type), up = at::randn(shape).to(type);
  same_everywhere("perigee::swiglu", {{"gate", gate}, {"up", up}}, {}, {whole}, tolerance(type));
  same_everywhere("perigee::swiglu_backward",
                  {{"grad", at::randn(shape).to(type)}, {"gate", gate}, {"up", up}}, {},
                  {whole, whole}, tolerance(type));
}

TEST_CASE("cross entropy is identical on every device, with its gradients") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const auto dtype = dtype_of(type);
  const double smoothing = GENERATE(0.0, 0.2);
  const bool weighted = GENERATE(true, false);
  seed(5);
  const auto x = at::randn({37, 401}, at::kDouble).to(type);
  const auto labels = at::randint(401, {37}, at::kLong);
  labels.narrow(0, 3, 4).fill_(-100);
  Named in = {{"logits", x}, {"target", labels}};
  if (weighted) in.emplace_back("weight", at::rand({401}).to(type));
  const Args args = {{"ignore_index", int64_t{-100}}, {"label_smoothing", smoothing}};
  same_everywhere("perigee::cross_entropy", in, args, {{dtype, {37}}, {wide(type), {37}}},
                  tolerance(type));
  in.insert(in.begin(), {"grad", at::randn({37}).to(type)});
  in.emplace_back("logsumexp", x.to(scalar_type(wide(type))).logsumexp(1));
  same_everywhere("perigee::cross_entropy_backward", in, args, {{dtype, {37, 401}}},
                  tolerance(type));
}

TEST_CASE("an invalid label is an error on every device, at the latest at the wait") {
  const auto labels = at::full({4}, 9, at::kLong);
  for (const auto& [called, device] : devices()) {
    INFO(called);
    CHECK_THROWS_WITH(run_on(*device, "perigee::cross_entropy",
                             {{"logits", at::zeros({4, 9})}, {"target", labels}},
                             {{"ignore_index", int64_t{-100}}, {"label_smoothing", 0.0}},
                             {{DType::float32, {4}}, {DType::float32, {4}}}, {}),
                      Catch::Contains("lie in [0, 9), but got 9"));
  }
}

TEST_CASE("attention is identical on every device, with its gradients") {
  const auto type = GENERATE(at::kFloat, at::kDouble, at::kBFloat16);
  const auto dtype = dtype_of(type);
  const bool causal = GENERATE(true, false);
  const int64_t groups = GENERATE(2, 4), keys = GENERATE(40, 50);
  const double p = GENERATE(0.0, 0.2);
  seed(6);
  const auto q = at::randn({2, 4, 40, 16}, at::kDouble).to(type);
  const auto k = at::randn({2, groups, keys, 16}).to(type);
  const auto v = at::randn({2, groups, keys, 16}).to(type);
  const Args args = {{"causal", causal}, {"scale", 0.25}, {"p", p}, {"random_key", int64_t{2}}};
  const Types types = {{dtype, {2, 4, 40, 16}}, {wide(type), {2, 4, 40}}};
  const Draw draw = {.seed = 3, .step = 1};
  const Named in = {{"query", q}, {"key", k}, {"value", v}};
  same_everywhere("perigee::attention", in, args, types, tolerance(type), draw);
  const auto saved = run_on(*cpu_device(), "perigee::attention", in, args, types, draw);
  same_everywhere("perigee::attention_backward",
                  {{"grad", at::randn({2, 4, 40, 16}).to(type)},
                   {"query", q},
                   {"key", k},
                   {"value", v},
                   {"output", saved[0]},
                   {"logsumexp", saved[1]}},
                  args,
                  {{dtype, q.sizes().vec()}, {dtype, k.sizes().vec()}, {dtype, v.sizes().vec()}},
                  2 * tolerance(type), draw);
}

}  // namespace
}  // namespace perigee::exec
