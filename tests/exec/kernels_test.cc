#include "exec/kernels/kernels.h"

#include <torch/optim.h>

#include <fstream>
#include <set>
#include <string>

#include "exec/op_threads.h"
#include "exec/tensor.h"
#include "tests/exec/close.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using graph::DType;

TEST_CASE("gelu's kernels equal LibTorch's in float64, exact and by tanh") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const std::string form = GENERATE("none", "tanh");
  const auto x = at::linspace(-12, 12, 2001).to(type), grad = at::randn({2001}).to(type);
  const Args args = {{"approximate", form}};
  const std::vector<graph::TensorType> types = {{dtype_of(type), {2001}}};
  const auto y = call(cpu_kernel, "aten::gelu", {{"self", x}}, args, types);
  const auto d = call(cpu_kernel, "aten::gelu_backward", {{"grad_output", grad}, {"self", x}}, args,
                      types);
  const auto wide = x.to(at::kDouble);
  require_close(y, {at::gelu(wide, form).to(type)}, type == at::kFloat ? 1e-5 : 1e-2);
  require_close(d, {at::gelu_backward(grad.to(at::kDouble), wide, form).to(type)},
                type == at::kFloat ? 1e-5 : 1e-2);
  const auto bad = call(cpu_kernel, "aten::gelu", {{"self", at::full({3}, std::nan(""), type)}},
                        args, {{dtype_of(type), {3}}});
  REQUIRE(bad[0].isnan().all().item<bool>());
}

TEST_CASE("a sum of float32 and bfloat16 equals LibTorch's to the bit, in either order") {
  const bool low_first = GENERATE(false, true), strided = GENERATE(false, true);
  const int64_t n = GENERATE(1, 15, 4096, 70001);
  const auto wide = at::randn({3, n});
  const auto low = strided ? at::randn({n, 3}, at::kBFloat16).t()
                           : at::randn({3, n}, at::kBFloat16);
  const auto &self = low_first ? low : wide, &other = low_first ? wide : low;
  const auto sum = call(cpu_kernel, "aten::add.Tensor", {{"self", self}, {"other", other}}, {},
                        {{DType::float32, {3, n}}});
  REQUIRE(sum[0].equal(at::add(self, other)));
  const auto scaled = call(cpu_kernel, "aten::add.Tensor", {{"self", self}, {"other", other}},
                           {{"alpha", 2.0}}, {{DType::float32, {3, n}}});
  REQUIRE(scaled[0].equal(at::add(self, other, 2)));
}

TEST_CASE("rotary's kernels equal the reference, of transposed heads too") {
  const auto type = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const bool transposed = GENERATE(false, true);
  const int64_t half = GENERATE(3, 32);
  const auto heads = transposed ? at::randn({2, 5, 3, 2 * half}, type).transpose(1, 2)
                                : at::randn({2, 3, 5, 2 * half}, type);
  const auto angles = GENERATE_COPY(type, at::kFloat);  // beside bfloat16
  if (type == at::kDouble && angles == at::kFloat) return;
  const auto cos = at::randn({5, 2 * half}, angles), sin = at::randn({5, 2 * half}, angles);
  const std::vector<graph::TensorType> types = {{dtype_of(type), {2, 3, 5, 2 * half}}};
  for (const auto& [op, operand] : std::vector<std::pair<std::string, std::string>>{
           {"perigee::rotary", "self"}, {"perigee::rotary_backward", "grad"}}) {
    INFO(op);
    const auto [fast, slow] = both(op, {{operand, heads}, {"cos", cos}, {"sin", sin}}, {}, types);
    require_close(fast, slow, tolerance_of(type));
    if (angles == type) continue;
    // The bits of casts before and after.
    const auto wide = call(cpu_kernel, op,
                           {{operand, heads.to(at::kFloat)}, {"cos", cos}, {"sin", sin}}, {},
                           {{graph::DType::float32, types[0].shape}});
    CHECK(fast[0].equal(wide[0].to(type)));
  }
}

TEST_CASE("cross entropy's kernels equal the reference, ignored labels and smoothing too") {
  const auto type = GENERATE(at::kDouble, at::kFloat, at::kBFloat16);
  const double smoothing = GENERATE(0.0, 0.1);
  const bool weighted = GENERATE(true, false);
  const int64_t n = GENERATE(5, 100);
  const auto x = at::randn({9, n}, type) * 5, w = at::rand({n}, type);
  auto labels = at::randint(0, n, {9}, at::kLong);
  labels[4] = -100;
  const auto dtype = dtype_of(type);
  const auto wide = type == at::kDouble ? DType::float64 : DType::float32;
  Named in = {{"logits", x}, {"target", labels}};
  if (weighted) in.emplace_back("weight", w);
  const Args args = {{"label_smoothing", smoothing}};
  const auto [fast, slow] = both("perigee::cross_entropy", in, args, {{dtype, {9}}, {wide, {9}}});
  require_close(fast, slow, tolerance_of(type));
  in.insert(in.begin(), {"grad", at::randn({9}, type)});
  in.emplace_back("logsumexp", slow[1]);
  const auto [d_fast, d_slow] = both("perigee::cross_entropy_backward", in, args,
                                     {{dtype, {9, n}}});
  require_close(d_fast, d_slow, tolerance_of(type));
}

TEST_CASE("cross entropy refuses a label out of range") {
  const Named in = {{"logits", at::randn({2, 3})}, {"target", at::full({2}, 3, at::kLong)}};
  REQUIRE_THROWS_WITH(call(cpu_kernel, "perigee::cross_entropy", in, {},
                           {{DType::float32, {2}}, {DType::float32, {2}}}),
                      Catch::Contains("[0, 3), but got 3"));
}

TEST_CASE("the fused optimizers equal torch.optim") {
  const std::string name = GENERATE("adamw", "adam", "sgd", "sgd plain");
  const auto type = GENERATE(at::kDouble, at::kFloat);
  at::manual_seed(3);
  auto parameter = at::randn({37}, type).requires_grad_(true);
  auto ours = parameter.detach().clone();
  auto first = at::zeros({37}, type), second = at::zeros({37}, type);
  std::unique_ptr<torch::optim::Optimizer> eager;
  if (name == "adamw") {
    eager = std::make_unique<torch::optim::AdamW>(
        std::vector{parameter},
        torch::optim::AdamWOptions(0.01).betas({0.8, 0.95}).eps(1e-7).weight_decay(0.1));
  } else if (name == "adam") {
    eager = std::make_unique<torch::optim::Adam>(
        std::vector{parameter},
        torch::optim::AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-7).weight_decay(0.1));
  } else {
    const bool plain = name == "sgd plain";
    eager = std::make_unique<torch::optim::SGD>(std::vector{parameter},
                                                torch::optim::SGDOptions(0.01)
                                                    .momentum(plain ? 0 : 0.9)
                                                    .dampening(0)
                                                    .nesterov(!plain)
                                                    .weight_decay(0.1));
  }
  const auto lr = at::full({}, 0.01, at::kDouble), scale = at::full({}, 0.5, at::kDouble);
  for (int step = 1; step <= 4; ++step) {
    const auto gradient = at::randn({37}, type);
    parameter.mutable_grad() = gradient * 0.5;
    eager->step();
    const auto count = at::full({}, step, at::kDouble);
    const Args adam = {{"beta1", 0.8}, {"beta2", 0.95}, {"eps", 1e-7}, {"weight_decay", 0.1}};
    Named in = {{"self", ours}};
    if (name.starts_with("adam")) {
      in.insert(in.end(), {{"exp_avg", first}, {"exp_avg_sq", second}});
    } else if (name == "sgd") {
      in.emplace_back("momentum_buffer", first);
    }
    in.insert(in.end(), {{"gradient", gradient}, {"lr", lr}, {"step", count}, {"scale", scale}});
    const Args sgd = {{"momentum", name == "sgd" ? 0.9 : 0.0},
                      {"nesterov", name == "sgd"},
                      {"weight_decay", 0.1}};
    call(cpu_kernel, "perigee::" + name.substr(0, name.find(' ')) + "_", in,
         name.starts_with("adam") ? adam : sgd, {});
    REQUIRE(at::allclose(ours, parameter.detach(), tolerance_of(type), tolerance_of(type)));
  }
}

TEST_CASE("lion steps by signs as in its paper") {
  const auto type = GENERATE(at::kDouble, at::kFloat);
  at::manual_seed(3);
  const double lr = 0.01, decay = 0.1, beta1 = 0.9, beta2 = 0.98;
  auto ours = at::randn({37}, type), average = at::zeros({37}, type);
  auto parameter = ours.clone(), momentum = average.clone();
  for (int step = 1; step <= 4; ++step) {
    const auto gradient = at::randn({37}, type);
    call(cpu_kernel, "perigee::lion_",
         {{"self", ours},
          {"exp_avg", average},
          {"gradient", gradient},
          {"lr", at::full({}, lr, at::kDouble)},
          {"step", at::full({}, step, at::kDouble)},
          {"scale", at::full({}, 0.5, at::kDouble)}},
         {{"beta1", beta1}, {"beta2", beta2}, {"weight_decay", decay}}, {});
    const auto g = gradient * 0.5;
    parameter.mul_(1 - lr * decay).sub_(at::sign(momentum * beta1 + g * (1 - beta1)), lr);
    momentum.mul_(beta2).add_(g, 1 - beta2);
    REQUIRE(at::allclose(ours, parameter, tolerance_of(type), tolerance_of(type)));
    REQUIRE(at::allclose(average, momentum, tolerance_of(type), tolerance_of(type)));
  }
}

TEST_CASE("a guarded optimizer changes nothing if the scale is not a number") {
  const std::string name = GENERATE("adamw", "sgd");
  const bool guarded = GENERATE(true, false);
  const auto before = at::randn({9});
  auto ours = before.clone(), first = at::zeros({9}), second = at::zeros({9});
  const auto one = at::full({}, 1.0, at::kDouble);
  const auto nan = at::full({}, std::nan(""), at::kDouble);
  Named in = {{"self", ours}};
  if (name == "adamw") {
    in.insert(in.end(), {{"exp_avg", first}, {"exp_avg_sq", second}});
  } else {
    in.emplace_back("momentum_buffer", first);
  }
  in.insert(in.end(), {{"gradient", at::ones({9})}, {"lr", one}, {"step", one}, {"scale", nan}});
  Args args = {{"momentum", 0.9}};
  if (guarded) args.emplace_back("guarded", true);
  call(cpu_kernel, "perigee::" + name + "_", in, args, {});
  REQUIRE(ours.equal(before) == guarded);
  REQUIRE(first.eq(0).all().item<bool>() == guarded);
}

TEST_CASE("a step writes its new weights in a low precision, too") {
  const auto type = GENERATE(at::kBFloat16, at::kHalf);
  const bool skips = GENERATE(false, true);
  at::manual_seed(3);
  const auto start = at::randn({70001}), gradient = at::randn({70001});
  const auto one = at::full({}, 1.0, at::kDouble),
             scale = at::full({}, skips ? std::nan("") : 1.0, at::kDouble);
  for (const int threads : {1, 2}) {
    const OpThreads given(threads);
    const auto before = at::zeros({70001}, type);
    auto plain = start.clone(), weights = start.clone(), low = before.clone();
    for (const bool both : {false, true}) {
      Named in = {{"self", both ? weights : plain},
                  {"exp_avg", at::zeros({70001})},
                  {"gradient", gradient},
                  {"lr", one},
                  {"step", one},
                  {"scale", scale}};
      if (both) in.emplace_back("low", low);
      call(cpu_kernel, "perigee::lion_", in, {{"guarded", true}}, {});
    }
    CHECK(weights.equal(plain));
    CHECK(low.equal(skips ? before : plain.to(type)));
  }
}

TEST_CASE("a step of masters by low gradients equals the step by the same float32 numbers") {
  const auto type = GENERATE(at::kBFloat16, at::kHalf);
  at::manual_seed(3);
  const auto gradient = at::randn({37}).to(type);
  const auto one = at::full({}, 1.0, at::kDouble), lr = at::full({}, 0.1, at::kDouble);
  const auto stepped = [&](const at::Tensor& g) {
    at::Tensor p = at::ones({37}), m = at::zeros({37}), v = at::zeros({37});
    call(cpu_kernel, "perigee::adamw_",
         {{"self", p},
          {"exp_avg", m},
          {"exp_avg_sq", v},
          {"gradient", g},
          {"lr", lr},
          {"step", one}},
         {{"weight_decay", 0.1}}, {});
    call(cpu_kernel, "perigee::sgd_",
         {{"self", p}, {"momentum_buffer", m}, {"gradient", g}, {"lr", lr}, {"step", lr}},
         {{"momentum", 0.9}}, {});
    return at::stack({p, m, v});
  };
  REQUIRE(stepped(gradient).equal(stepped(gradient.to(at::kFloat))));
}

TEST_CASE("stochastic rounding is unbiased") {
  const int64_t n = 40000;
  at::manual_seed(3);
  const auto low = at::kBFloat16;
  // The step leads 3/8 of the way from +-1 to the next bfloat16 number.
  const double step = 3.0 / 8 / 128;
  const auto one = at::full({}, 1.0, at::kDouble);
  for (const double sign : {1.0, -1.0}) {
    auto p = at::full({n}, sign, low);
    call(cpu_kernel, "perigee::sgd_",
         {{"self", p},
          {"gradient", at::full({n}, -sign * step)},
          {"lr", one},
          {"step", one},
          {"noise", at::rand({n})}},
         {}, {});
    const auto values = p.to(at::kDouble);
    const auto far = values.eq(sign * (1 + 1.0 / 128)).sum().item<int64_t>();
    REQUIRE(values.eq(sign).sum().item<int64_t>() + far == n);
    REQUIRE(std::abs(static_cast<double>(far) / n - 3.0 / 8) < 0.01);
    // Rounding to nearest loses the step.
    auto nearest = at::full({n}, sign, low);
    call(cpu_kernel, "perigee::sgd_",
         {{"self", nearest},
          {"gradient", at::full({n}, -sign * step, low)},
          {"lr", one},
          {"step", one}},
         {}, {});
    REQUIRE(nearest.eq(sign).all().item<bool>());
  }
  // A bfloat16 number is unchanged for any noise.
  auto exact = at::full({n}, 1.5, low);
  call(cpu_kernel, "perigee::sgd_",
       {{"self", exact},
        {"gradient", at::zeros({n})},
        {"lr", one},
        {"step", one},
        {"noise", at::rand({n})}},
       {}, {});
  REQUIRE(exact.eq(1.5).all().item<bool>());
}

TEST_CASE("the loss scale is updated as by torch.amp.GradScaler") {
  auto scale = at::full({}, 8.0f), tracker = at::full({}, 1.0, at::kDouble),
       skipped = at::full({}, 2.0, at::kDouble), applied = at::zeros({}, at::kDouble);
  const auto update = [&](double squared, int step) {
    call(cpu_kernel, "perigee::update_loss_scale_",
         {{"loss_scale", scale},
          {"growth_tracker", tracker},
          {"skipped_steps", skipped},
          {"applied_step", applied},
          {"squared_norm", at::full({}, squared, at::kDouble)},
          {"step", at::full({}, step, at::kDouble)}},
         {{"growth_factor", 2.0}, {"backoff_factor", 0.5}, {"growth_interval", int64_t{3}}}, {});
    return std::array{scale.item<double>(), tracker.item<double>(), skipped.item<double>(),
                      applied.item<double>()};
  };
  using Numbers = std::array<double, 4>;
  REQUIRE(update(4, 10) == Numbers{8, 2, 2, 8});
  REQUIRE(update(0, 11) == Numbers{16, 0, 2, 9});
  REQUIRE(update(INFINITY, 12) == Numbers{8, 0, 3, 9});
  REQUIRE(update(NAN, 13) == Numbers{4, 0, 4, 9});
  REQUIRE(update(1, 14) == Numbers{4, 1, 4, 10});
  // The scale stays finite.
  scale.fill_(3e38);
  tracker.fill_(2);
  REQUIRE(update(1, 15) == Numbers{static_cast<float>(3e38), 0, 4, 11});

  const auto clipped = [&](double squared) {
    const auto out = call(
        cpu_kernel, "perigee::clip_scale",
        {{"squared_norm", at::full({}, squared, at::kDouble)}, {"loss_scale", at::full({}, 4.0f)}},
        {{"max_norm", 0.0}, {"factor", 0.5}}, {{DType::float64, {}}, {DType::float64, {}}});
    return std::pair(out[0].item<double>(), out[1].item<double>());
  };
  REQUIRE(clipped(64) == std::pair(1.0, 0.125));
  REQUIRE(clipped(INFINITY).first == INFINITY);
  REQUIRE(std::isnan(clipped(INFINITY).second));
}

TEST_CASE("hysteresis delays the fall of the loss scale, and growth resets it") {
  auto scale = at::full({}, 8.0f);
  auto tracker = at::zeros({}, at::kDouble), skipped = at::zeros({}, at::kDouble),
       applied = at::zeros({}, at::kDouble), patience = at::zeros({}, at::kDouble);
  // Returns the scale after each step; ".": finite, "x": overflow.
  const auto scales = [&](const std::string& steps) {
    std::string seen;
    for (const char step : steps) {
      call(cpu_kernel, "perigee::update_loss_scale_",
           {{"loss_scale", scale},
            {"growth_tracker", tracker},
            {"skipped_steps", skipped},
            {"applied_step", applied},
            {"squared_norm", at::full({}, step == '.' ? 1.0 : INFINITY, at::kDouble)},
            {"step", at::ones({}, at::kDouble)},
            {"patience", patience}},
           {{"growth_factor", 2.0},
            {"backoff_factor", 0.5},
            {"growth_interval", int64_t{3}},
            {"min_scale", 1.0},
            {"hysteresis", int64_t{2}}},
           {});
      seen += std::to_string(static_cast<int>(scale.item<double>())) + " ";
    }
    return seen;
  };
  // As in Megatron's DynamicGradScaler: the first overflow keeps the scale, and finite steps in
  // between do not reset the count.
  REQUIRE(scales("x.x") == "8 8 4 ");
  REQUIRE(scales("x..") == "2 2 2 ");
  REQUIRE(scales(".x") ==
          "4 4 ");  // the third finite step in a row: the scale grows, and the count is reset
  REQUIRE(scales("xxxx") == "2 1 1 1 ");
  REQUIRE(skipped.item<double>() == 8);
}

TEST_CASE("a weight decay in memory gives the step of the same constant") {
  const std::string name = GENERATE("adamw", "adam", "lion", "sgd");
  at::manual_seed(5);
  const auto f64 = [](double x) { return at::full({}, x, at::kDouble); };
  const auto start = at::randn({37}), gradient = at::randn({37});
  const auto stepped = [&](bool in_memory) {
    const auto weights = start.clone();
    Named in = {{"self", weights},
                {"gradient", gradient},
                {"lr", f64(0.1)},
                {"step", f64(1)},
                {"scale", f64(1)}};
    if (name != "sgd") in.emplace_back("exp_avg", at::zeros({37}));
    if (name.starts_with("adam")) in.emplace_back("exp_avg_sq", at::zeros({37}));
    Args numbers;
    if (in_memory) {
      in.emplace_back("weight_decay", f64(0.25));
    } else {
      numbers.emplace_back("weight_decay", 0.25);
    }
    call(cpu_kernel, "perigee::" + name + "_", in, numbers, {});
    return weights;
  };
  REQUIRE(at::equal(stepped(true), stepped(false)));
}

TEST_CASE("copies, sums and norms work on any layout") {
  const auto strided = at::randn({3, 4}).t();
  auto target = at::ones({4, 3});
  call(cpu_kernel, "perigee::copy_", {{"self", target}, {"source", strided}}, {{"scale", 0.5}}, {});
  REQUIRE(at::equal(target, strided * 0.5));
  call(cpu_kernel, "perigee::accumulate_", {{"self", target}, {"other", strided}}, {{"scale", 0.5}},
       {});
  REQUIRE(at::equal(target, strided));
  const auto half = at::full({}, 0.5, at::kDouble);
  call(cpu_kernel, "perigee::scale_", {{"self", target}, {"scale", half}}, {}, {});
  REQUIRE(at::equal(target, strided * 0.5));

  const auto contiguous = call(cpu_kernel, "perigee::reshape", {{"self", strided}}, {},
                               {{DType::float32, {4, 3}}})[0];
  REQUIRE(contiguous.is_contiguous());
  REQUIRE(at::equal(contiguous, strided));
  auto sum = at::ones({5}), half_term = at::full({5}, 3.0, at::kBFloat16);
  call(cpu_kernel, "perigee::accumulate_", {{"self", sum}, {"other", half_term}}, {}, {});
  REQUIRE(at::equal(sum, at::full({5}, 4.0)));

  Op op{.name = "perigee::squared_norm",
        .args = {{"tensors", std::vector<graph::ValueId>{{0}, {1}}}},
        .outputs = {graph::TensorType{DType::float64, {}}}};
  std::vector<at::Tensor> out(1);
  const std::vector<at::Tensor> operands = {at::full({100}, 2.0), at::full({3}, 3.0, at::kDouble)};
  cpu_kernel(op)(operands, out, {});
  REQUIRE(out[0].item<double>() == 427);
  const auto clipped = call(
      cpu_kernel, "perigee::clip_scale", {{"squared_norm", at::full({}, 16.0, at::kDouble)}},
      {{"max_norm", 1.0}, {"factor", 0.5}}, {{DType::float64, {}}, {DType::float64, {}}});
  REQUIRE(clipped[0].item<double>() == 2);
  REQUIRE(clipped[1].item<double>() == Approx(0.25).epsilon(1e-5));
}

TEST_CASE("passes over large buffers are the same on any number of threads") {
  torch::manual_seed(7);
  const auto x = at::randn({3, 40001}), y = at::randn({3, 40001});
  const auto results = [&](int threads) {
    const OpThreads given(threads);
    auto sum = x.clone(), scaled = x.clone();
    auto copy = at::empty_like(x);
    call(cpu_kernel, "perigee::accumulate_", {{"self", sum}, {"other", y}}, {{"scale", 0.5}}, {});
    call(cpu_kernel, "perigee::scale_",
         {{"self", scaled}, {"scale", at::full({}, 0.3, at::kDouble)}}, {}, {});
    call(cpu_kernel, "perigee::copy_", {{"self", copy}, {"source", y}}, {{"scale", 3.0}}, {});
    std::vector<at::Tensor> norm(1);
    cpu_kernel({.name = "perigee::squared_norm",
                .args = {{"tensors", std::vector<graph::ValueId>{{0}, {1}}}},
                .outputs = {graph::TensorType{DType::float64, {}}}})(std::vector{x, y}, norm, {});
    return std::vector{sum, scaled, copy, norm[0]};
  };
  const auto one = results(1), two = results(2);
  for (size_t k = 0; k < one.size(); ++k) CHECK(at::equal(one[k], two[k]));
  CHECK(at::equal(one[0], x + y * 0.5f));
  CHECK(at::equal(one[2], y * 3));
  const auto exact = x.to(at::kDouble).square().sum() + y.to(at::kDouble).square().sum();
  CHECK(one[3].item<double>() == Approx(exact.item<double>()).epsilon(1e-14));
}

TEST_CASE("a norm that is not a number makes all clipped gradients so") {
  const bool scaled = GENERATE(false, true);
  Named in = {{"squared_norm", at::full({}, NAN, at::kDouble)}};
  if (scaled) in.emplace_back("loss_scale", at::full({}, 4.0f));
  const auto clipped = call(cpu_kernel, "perigee::clip_scale", in,
                            {{"max_norm", 1.0}, {"factor", 0.5}},
                            {{DType::float64, {}}, {DType::float64, {}}});
  REQUIRE(std::isnan(clipped[0].item<double>()));
  REQUIRE(std::isnan(clipped[1].item<double>()));
}

TEST_CASE("gradients of a norm below the limit are not clipped") {
  for (const double max_norm : {2.1, 100.0, 0.0}) {
    const auto clipped = call(
        cpu_kernel, "perigee::clip_scale", {{"squared_norm", at::full({}, 16.0, at::kDouble)}},
        {{"max_norm", max_norm}, {"factor", 0.5}}, {{DType::float64, {}}, {DType::float64, {}}});
    REQUIRE(clipped[0].item<double>() == 2);
    REQUIRE(clipped[1].item<double>() == 0.5);
  }
}

TEST_CASE("kernels and LibTorch share one OpenMP runtime, so that they share its threads") {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> runtimes;
  for (std::string line; std::getline(maps, line);) {
    const auto slash = line.find('/');
    if (line.find("omp") != std::string::npos && slash != std::string::npos) {
      if (line.find(".so", slash) != std::string::npos) runtimes.insert(line.substr(slash));
    }
  }
  CAPTURE(runtimes);
  CHECK(runtimes.size() == 1);
}

}  // namespace
}  // namespace perigee::exec
