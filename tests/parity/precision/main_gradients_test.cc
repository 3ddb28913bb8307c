// Gradient accumulation fused into float32 main gradients (overlap { accumulate = true }) for
// models in bfloat16 and float16: the program, the numbers, memory, and a negative control.
#include <torch/nn/modules/linear.h>

#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

namespace nn = torch::nn;
using compile::Instruction;
using compile::Program;

constexpr int64_t kMainRows = 32, kWeights = 4;
constexpr const char* kFused = R"(, ["overlap", {"accumulate": true}])";

// Linear layers without biases: the gradient of each weight is a product of 16-bit matrices.
class Tower : public nn::Module {
 public:
  Tower() {
    torch::manual_seed(6);
    for (int i = 0; i < kWeights; ++i) {
      const int64_t in = i == 0 ? 24 : 40, out = i == kWeights - 1 ? 8 : 40;
      layers_.push_back(register_module("blocks" + std::to_string(i),
                                        nn::Linear(nn::LinearOptions(in, out).bias(false))));
    }
  }
  at::Tensor loss(const Batch& batch) {
    auto x = batch.at("x");
    for (auto& layer : layers_) x = at::tanh(layer(x));
    return at::mse_loss(x.to(at::kFloat), batch.at("targets"));
  }

 private:
  std::vector<nn::Linear> layers_;
};

const Given& tower(int64_t microbatches) {
  static std::map<int64_t, Given> known;
  const auto [at, added] = known.try_emplace(microbatches);
  if (added) {
    const auto net = std::make_shared<Tower>();
    torch::manual_seed(7);
    const Batch batch = {{"x", at::randn({kMainRows, 24})},
                         {"targets", 100 * at::randn({kMainRows, 8})}};
    at->second = capture_model({net, batch, [net](const Batch& b) { return Result{net->loss(b)}; }},
                               microbatches);
  }
  return at->second;
}

// Weights differ by the gradient times the learning rate.
const compile::StepSpec kSpec{.optimizer = "sgd"};

plan::Plan plan_for(const std::string& axes, const std::string& methods, int64_t microbatches) {
  return plan_of(tower(microbatches), strategy_on(axes, methods, microbatches), kMainRows);
}

// The ways to compute in 16 bits with float32 gradients.
const std::vector<std::string> kLow = {
    R"(["half", {"dtype": "bf16", "gradients": "float32"}])",
    R"(["half", {"dtype": "fp16", "gradients": "float32", "init_scale": 1}])",
    R"(["amp_native", {"dtype": "bf16"}])",
    R"(["amp_native", {"dtype": "fp16", "init_scale": 1}])"};

}  // namespace

TEST_CASE("products of 16-bit models write and add to float32 gradients in one instruction") {
  for (const auto& low : kLow) {
    INFO(low);
    const auto apart = compile_rank(tower(4), plan_for(R"(["data", 1])", low, 4), kSpec);
    CHECK(count(apart, "perigee::addmm_") + count(apart, "perigee::mm_") == 0);
    const auto fused = compile_rank(tower(4), plan_for(R"(["data", 1])", low + kFused, 4), kSpec);
    CHECK(count(fused, "perigee::mm_", "micro_first") == kWeights);
    CHECK(count(fused, "perigee::addmm_", "micro_first") == 0);
    CHECK(count(fused, "perigee::addmm_", "micro") == kWeights);
    // Only the loss is still added by an instruction of its own.
    CHECK(count(apart, "perigee::accumulate_", "micro") == kWeights + 1);
    CHECK(count(fused, "perigee::accumulate_", "micro") == 1);
    CHECK(fused.exact_memory);
    const auto one = compile_rank(tower(1), plan_for(R"(["data", 1])", low + kFused, 1), kSpec);
    CHECK(count(one, "perigee::mm_", "micro") == kWeights);
  }
}

TEST_CASE("fused main gradients do not depend on microbatches and ranks, rounded products do") {
  for (const auto& low : kLow) {
    const auto whole = plan_for(R"(["data", 1])", low + kFused, 1);
    const auto one = train(tower(1), whole, {}, kSpec, 1)[0];
    const auto check = [&](const std::string& axes, const std::string& methods, bool exact) {
      INFO(low << axes << methods);
      const auto plan = plan_for(axes, low + methods, 4);
      const auto ranks = train(tower(4), plan, {}, kSpec, 1);
      CHECK((compare(one, ranks, 2e-6) == "") == exact);
      CHECK(compare_memory(tower(4), plan, train(tower(4), plan, {}, {}, 1)) == "");
    };
    check(R"(["data", 1])", kFused, true);
    check(R"(["data", 1])", "", false);
    check(R"(["data", 2])", kFused, true);
    if (low.starts_with(R"(["half", {"dtype": "bf16")")) {
      check(R"(["data", 2])", kFused + std::string(R"(, ["zero2", {}])"), true);
      check(R"(["data", 2])", kFused + std::string(R"(, ["fsdp", {}])"), true);
    }
  }
}

TEST_CASE("negative control: a product that overwrites the sum changes the gradients") {
  const auto plan = plan_for(R"(["data", 1])", kLow[0] + kFused, 4);
  const auto right = train(tower(4), plan, {}, kSpec, 1);
  const auto wrong = train(
      tower(4), plan,
      [](Program& program) {
        for (auto& section : program.sections) {
          for (auto& i : section.instructions) {
            if (i.op == "perigee::addmm_") i.op = "perigee::mm_";
          }
        }
      },
      kSpec, 1);
  CHECK(compare(right[0], wrong, 2e-6) != "");
}

}  // namespace perigee::parity
