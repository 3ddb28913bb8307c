// The method half: equal to LibTorch's model in bfloat16 with float32 masters, ranks as one device,
// and stochastic rounding that does not depend on the sharding of parameters.
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include "capture/capture.h"
#include "compile/graph/autocast.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

namespace nn = torch::nn;
using compile::Binding;
using compile::Instruction;
using compile::Program;

class Net : public nn::Module {
 public:
  explicit Net(bool deep = true) : deep_(deep) {
    torch::manual_seed(6);
    if (deep) up_ = register_module("up", nn::Linear(6, 10));
    down_ = register_module("down", nn::Linear(deep ? 10 : 6, 4));
  }
  at::Tensor loss(const Batch& batch) {
    const auto x = batch.at("x");
    // The loss is float32, of the low model's output.
    const auto y = down_(deep_ ? at::relu(up_(x)) : x);
    return at::mse_loss(y.to(at::kFloat), batch.at("targets"));
  }

 private:
  bool deep_;
  nn::Linear up_{nullptr}, down_{nullptr};
};

Batch batch_of() {
  torch::manual_seed(7);
  return {{"x", at::randn({kRows, 6})}, {"targets", at::randn({kRows, 4})}};
}

Given half_given_of(Net& net, Batch batch) {
  const auto captured = capture(net, batch, [&](const Batch& b) { return Result{net.loss(b)}; });
  Given given{captured.graph, {batch.begin(), batch.end()}};
  for (const auto& p : net.named_parameters()) given.inputs[p.key()] = p.value().detach().clone();
  return given;
}

std::string half(const std::string& axes, const std::string& config, const std::string& more = "") {
  return R"([["parallel_mode", )" + axes + R"(], ["half", )" + config + "]" + more + "]";
}

const std::string kHalfOne = R"([["data", 1]])", kHalfTwo = R"([["data", 2]])",
                  kTensor = R"([["tensor", 2]])", kBf16 = R"({"dtype": "bf16"})",
                  kOneDevice = R"({"dtype": "bf16", "masters": false})";

// The weights that a rank holds, without its states.
Outcome weights_of(Outcome outcome) {
  std::erase_if(outcome.tensors, [](const auto& t) { return t.first.find(':') != t.first.npos; });
  return outcome;
}

}  // namespace

TEST_CASE("a half model's gradients equal those of LibTorch's module in bfloat16") {
  Net net;
  auto batch = batch_of();
  const auto given = half_given_of(net, batch);
  plan::Plan plan;
  plan.precision = {.dtype = graph::DType::bfloat16,
                    .parameters = plan::Precision::Parameters::masters};
  const auto ours = exec::evaluate(compile::autocast(given.graph, plan), given.inputs);
  net.to(at::kBFloat16);
  batch["x"] = batch["x"].to(at::kBFloat16);
  const auto loss = net.loss(batch);
  loss.backward();
  CHECK(ours.at("loss").equal(loss.detach()));
  for (const auto& p : net.named_parameters()) {
    INFO(p.key());
    const auto& gradient = ours.at("gradient:" + p.key());
    CHECK(gradient.scalar_type() == at::kBFloat16);
    CHECK(gradient.equal(p.value().grad()));
  }
}

TEST_CASE("the optimizer steps float32 masters with the low gradients") {
  Net net;
  const auto batch = batch_of();
  const auto given = half_given_of(net, batch);
  const auto one = train(given, plan_of(given, half(kHalfOne, kBf16), kRows))[0];

  std::vector<at::Tensor> masters;
  for (const auto& p : net.parameters()) {
    masters.push_back(p.detach().clone().requires_grad_(true));
  }
  torch::optim::AdamW optimizer(masters, torch::optim::AdamWOptions(0.01).weight_decay(0));
  Net low;
  low.to(at::kBFloat16);
  auto low_batch = batch;
  low_batch["x"] = low_batch["x"].to(at::kBFloat16);
  for (int step = 0; step < 2; ++step) {
    at::NoGradGuard none;
    for (size_t i = 0; i < masters.size(); ++i) low.parameters()[i].copy_(masters[i]);
    low.zero_grad();
    {
      const at::AutoGradMode with(true);
      low.loss(low_batch).backward();
    }
    for (size_t i = 0; i < masters.size(); ++i) {
      masters[i].mutable_grad() = low.parameters()[i].grad().to(at::kFloat);
    }
    nn::utils::clip_grad_norm_(masters, 0.5);
    optimizer.step();
  }
  size_t i = 0;
  for (const auto& p : net.named_parameters()) {
    INFO(p.key());
    const auto& ours = one.tensors.find(p.key())->second.first;
    CHECK(ours.scalar_type() == at::kFloat);
    CHECK(difference(ours, masters[i++].detach(), 1e-5) == "");
  }
}

TEST_CASE("half ranks are bit-equal to one device where sums are exact") {
  Net net;
  const auto integers = [](std::vector<int64_t> shape) {
    return at::randint(-1, 2, shape, at::kFloat);
  };
  auto given = half_given_of(net, {{"x", integers({kRows, 6})}, {"targets", integers({kRows, 4})}});
  for (auto& [name, tensor] : given.inputs) {
    if (name.find('.') != name.npos) tensor = integers(tensor.sizes().vec());
  }
  given.inputs["up.weight"].narrow(0, 2, 8).zero_();  // few terms: small sums
  plan::Plan plan;
  plan.mesh.axes = {{"data", 4}};
  plan.precision = {.dtype = graph::DType::bfloat16,
                    .parameters = plan::Precision::Parameters::masters};
  const auto cast = compile::autocast(given.graph, plan);
  const auto one = exec::evaluate(cast, given.inputs);
  const auto many = evaluate_ranks(partition_all(cast, plan), plan.mesh, given.inputs);
  for (const auto& [name, value] : one) {
    INFO(name);
    CHECK(many.at(name).equal(value));
  }
}

TEST_CASE("built-in half models train on ranks as on one device, within bfloat16's rounding") {
  const auto check = [](const std::string& keys, const std::string& axes, const std::string& config,
                        const std::string& more = "") {
    INFO(keys << axes << config << more);
    torch::manual_seed(5);
    const int64_t microbatches = more.find("accumulation") == more.npos ? 1 : 2;
    const auto given = built_in(keys, kRows, microbatches, "float32");
    auto one_device = plan_of(given, half(kHalfOne, config), kRows);
    one_device.microbatches = microbatches;
    const auto one = train(given, one_device)[0];
    const auto ranks = train(given, plan_of(given, half(axes, config, more), kRows));
    for (const auto& rank : ranks) {
      for (size_t step = 0; step < one.losses.size(); ++step) {
        CHECK(rank.losses[step] == Approx(one.losses[step]).epsilon(step == 0 ? 4e-3 : 2e-2));
        CHECK(rank.norms[step] == Approx(one.norms[step]).epsilon(5e-2));
        CHECK(rank.losses[step] == ranks[0].losses[step]);
      }
    }
    CHECK(one.losses[1] < one.losses[0]);
  };
  check(kGpt, kHalfTwo, kBf16);
  check(kGpt, kHalfTwo, kOneDevice);
  check(kLlama, kTensor, kBf16, R"(, ["tensor_parallel", {}])");
  check(kLlama, kTensor, kOneDevice, R"(, ["tensor_parallel", {}])");
  check(kMoe, kHalfTwo, kBf16);
  check(kMlp, R"([["data", 4]])", kBf16, R"(, ["gradient_accumulation", {"microbatches": 2}])");
  check(kResnet, kHalfTwo, kBf16);
  check(kGpt, kHalfTwo, R"({"dtype": "fp16"})");
  check(kGpt, kHalfTwo, kBf16, R"(, ["fsdp", {"match": "blocks.*"}])");
  check(kGpt, kHalfTwo, kBf16, R"(, ["checkpoint", ["blocks.*"]])");
}

TEST_CASE("sharded parameters always have masters") {
  torch::manual_seed(5);
  const auto given = built_in(kMlp, kRows, 1, "float32");
  const auto plan = plan_of(given, half(kHalfTwo, kOneDevice, R"(, ["zero1", {}])"), kRows);
  CHECK_THROWS_WITH(train(given, plan), Catch::Contains("without masters"));
}

TEST_CASE("stochastic rounding does not depend on a parameter's sharding") {
  Net net(/*deep=*/false);
  const auto given = half_given_of(net, batch_of());
  const auto one = train(given, plan_of(given, half(kHalfOne, kOneDevice), kRows))[0];
  CHECK(one.tensors.find("down.weight")->second.first.scalar_type() == at::kBFloat16);
  CHECK(one.tensors.find("exp_avg:down.weight")->second.first.scalar_type() == at::kFloat);
  const auto whole = weights_of(one);
  // Each row of the weight has the same arithmetic on any rank.
  auto plan = plan_of(given, half(kTensor, kOneDevice), kRows);
  plan.placements["down.weight"] = plan.placements["down.bias"] = mesh::parse_placements("S0");
  const auto exact = [&](std::vector<Outcome> ranks) {
    for (auto& rank : ranks) {
      rank = weights_of(rank);
      rank.losses = whole.losses;
      rank.norms = whole.norms;
    }
    return compare(whole, ranks, 0);
  };
  CHECK(exact(train(given, plan)) == "");
  // Every rank draws the numbers of the first part.
  CHECK(exact(train(given, plan, [](Program& program) {
          for (auto& section : program.sections) {
            for (auto& instruction : section.instructions) {
              if (instruction.op != "perigee::random") continue;
              for (auto& [name, arg] : instruction.args) {
                if (name == "begin") {
                  for (auto& at : std::get<std::vector<int64_t>>(arg)) at = 0;
                }
              }
            }
          }
        })) != "");
}

TEST_CASE("half gradients and low parameters take half the memory") {
  torch::manual_seed(5);
  const auto given = built_in(kMlp, kRows, 1, "float32");
  DryRuns traces;
  const auto frame = [&](const std::string& strategy, compile::Frame::Kind kind) {
    const auto program = compile::compile(given.graph, plan_of(given, strategy, kRows), {}, 0,
                                          traces);
    int64_t bytes = 0;
    for (const auto& frame : program.frames) bytes += frame.kind == kind ? frame.bytes : 0;
    return static_cast<double>(bytes);
  };
  using Kind = compile::Frame::Kind;
  const auto plain = R"([["parallel_mode", [["data", 2]]]])";
  const double reduced = frame(plain, Kind::communication), kept = frame(plain, Kind::persistent);
  CHECK(frame(half(kHalfTwo, kBf16), Kind::communication) < 0.6 * reduced);
  CHECK(frame(half(kHalfTwo, kBf16), Kind::persistent) == kept);
  // 2 + 4 + 4 bytes of 4 + 4 + 4.
  CHECK(frame(half(kHalfTwo, kOneDevice), Kind::persistent) < 0.9 * kept);
}

TEST_CASE("a half model in float16 skips a step on all ranks if one overflows") {
  Net net;
  auto batch = batch_of();
  batch["targets"][kRows - 1][3] = 1e6;
  const auto given = half_given_of(net, batch);
  const auto plan = plan_of(given, half(kHalfTwo, R"({"dtype": "fp16"})"), kRows);
  for (const auto& rank : train(given, plan)) {
    CHECK(rank.tensors.find("loss_scale:skipped_steps")->second.first.item<double>() == 2);
    for (const auto& [name, part] : weights_of(rank).tensors) {
      CHECK(part.first.equal(given.inputs.at(name)));
    }
  }
}

}  // namespace perigee::parity
