// Gradients of a low precision that the step reads as they are: the same bits as with casts, less
// memory, and casts where gradients are sums.
#include <torch/nn/modules/linear.h>

#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Program;
using compile::ValueRole;

constexpr int64_t kNarrowSteps = 3;
const std::string kNarrowOne = R"(["data", 1])", kNarrowTwo = R"(["data", 2])";
const std::string kNarrowAmp = R"(["amp_native", {"dtype": "bf16"}])",
                  kNarrowAmp16 = R"(["amp_native", {"dtype": "fp16", "loss_scale": "none"}])";

const Given& narrow_model(int64_t microbatches) {
  static std::map<int64_t, Given> known;
  const auto [at, added] = known.try_emplace(microbatches);
  if (added) {
    torch::manual_seed(5);
    at->second = built_in(
        "kind = 'gpt'\nlayers = 2\nwidth = 16\nheads = 2\nhidden = 32\nvocab = 24\n", kRows,
        microbatches, "float32");
  }
  return at->second;
}

// A linear layer that is used twice: its gradients are sums of two products.
class Twice : public torch::nn::Module {
 public:
  Twice() { layer_ = register_module("layer", torch::nn::Linear(16, 16)); }
  at::Tensor loss(const Batch& batch) {
    const auto out = layer_(at::tanh(layer_(batch.at("x"))));
    return at::mse_loss(out.to(at::kFloat), batch.at("targets"));
  }

 private:
  torch::nn::Linear layer_ = nullptr;
};

plan::Plan narrow_plan(const std::string& axes, const std::string& methods, int64_t microbatches) {
  return plan_of(narrow_model(microbatches), strategy_on(axes, methods, microbatches), kRows);
}

// The same step with casts: only ranks that clip before their reduction need those, but a plan that
// asks for it on one rank has them, too.
plan::Plan with_casts(plan::Plan plan) {
  plan.communication.clip_first = true;
  return plan;
}

// Returns the elements of gradients in a low precision.
int64_t narrow_elements(const Program& program) {
  int64_t found = 0;
  for (const auto& value : program.values) {
    const bool flat = value.name.role == ValueRole::flat_gradients && !value.view_of.defined();
    if (flat && graph::is_half(value.type.dtype)) found += value.type.numel();
  }
  return found;
}

// Of the weights and biases of linear layers; not of the table, which the head shares, of positions
// and norms.
constexpr int64_t kNarrowElements = 2 * (4 * 16 * 16 + 2 * 16 * 32 + 4 * 16 + 32 + 16);

}  // namespace

TEST_CASE("a step reads gradients of a low precision with the bits of their casts") {
  struct Case {
    std::string methods, optimizer = "adamw";
  };
  const std::vector<Case> cases = {{kNarrowAmp},
                                   {kNarrowAmp16},
                                   {kNarrowAmp, "sgd"},
                                   {kNarrowAmp, "lion"},
                                   {R"(["amp_native", {"dtype": "bf16", "keep_weights": true}])"},
                                   {kNarrowAmp + R"(, ["overlap", {"step": true}])"},
                                   {kNarrowAmp + R"(, ["checkpoint", ["blocks.*"]])"},
                                   {kNarrowAmp + R"(, ["offload", {"optimizer": true}])"}};
  for (const auto& [methods, optimizer] : cases) {
    INFO(methods << ", " << optimizer);
    const auto& given = narrow_model(1);
    const bool clips = methods.find("step") == methods.npos;
    const compile::StepSpec spec{.optimizer = optimizer,
                                 .clip_norm = clips ? std::optional(0.5) : std::nullopt};
    const auto narrow = narrow_plan(kNarrowOne, methods, 1), wide = with_casts(narrow);
    CHECK(narrow_elements(compile_rank(given, narrow, spec)) == kNarrowElements);
    CHECK(narrow_elements(compile_rank(given, wide, spec)) == 0);
    const auto expected = train(given, wide, {}, spec, kNarrowSteps),
               ranks = train(given, narrow, {}, spec, kNarrowSteps);
    CHECK(find_difference(expected[0], ranks[0]) == "");
    if (clips) CHECK(compare_memory(given, narrow, train(given, narrow, {}, {}, 1)) == "");
  }
}

TEST_CASE("gradients of a low precision take half the memory") {
  const auto bytes_of = [](const plan::Plan& plan) {
    int64_t bytes = 0;
    const auto program = compile_rank(narrow_model(1), plan);
    for (const auto& value : program.values) {
      if (value.name.role != ValueRole::flat_gradients || value.view_of.defined()) continue;
      bytes += value.type.bytes();
    }
    return bytes;
  };
  const auto narrow = narrow_plan(kNarrowOne, kNarrowAmp, 1);
  CHECK(bytes_of(with_casts(narrow)) - bytes_of(narrow) == 2 * kNarrowElements);
}

TEST_CASE("gradients that are sums are float32") {
  const std::string low = kNarrowAmp;
  const auto narrowed = [](const std::string& axes, const std::string& methods,
                           int64_t microbatches = 1, const std::string& optimizer = "adamw") {
    const compile::StepSpec spec{.optimizer = optimizer};
    return narrow_elements(
        compile_rank(narrow_model(microbatches), narrow_plan(axes, methods, microbatches), spec));
  };
  CHECK(narrowed(kNarrowOne, low, 2) == 0);
  CHECK(narrowed(kNarrowOne, low + R"(, ["overlap", {"accumulate": true}])") == 0);
  CHECK(narrowed(kNarrowTwo, low) == 0);
  CHECK(narrowed(kNarrowTwo, low + R"(, ["zero1", {}])") == 0);
  CHECK(narrowed(kNarrowTwo, low + R"(, ["fsdp", {}])") == 0);
  for (const std::string whole : {"adafactor", "muon", "none"}) {
    CHECK(narrowed(kNarrowOne, low, 1, whole) == 0);
  }
  const auto twice = std::make_shared<Twice>();
  const Batch batch = {{"x", at::randn({kRows, 16})}, {"targets", at::randn({kRows, 16})}};
  const auto given = capture_model(
      {twice, batch, [twice](const Batch& b) { return Result{twice->loss(b)}; }}, 1);
  const auto plan = plan_of(given, strategy_on(kNarrowOne, kNarrowAmp), kRows);
  CHECK(narrow_elements(compile_rank(given, plan)) == 0);
  // A weight that is sharded has gradients of its own on each rank.
  const auto sharded = narrowed(R"(["tensor", 2], ["data", 1])",
                                low + R"(, ["tensor_parallel", {}])");
  CHECK(sharded > 0);
  CHECK(sharded < kNarrowElements);
}

TEST_CASE("narrow gradients of sharded weights train as on one device") {
  const std::string axes = R"(["tensor", 2], ["data", 1])",
                    methods = kNarrowAmp + R"(, ["tensor_parallel", {}])";
  const auto& given = narrow_model(1);
  const auto plan = narrow_plan(axes, methods, 1);
  const auto ranks = train(given, plan, {}, {.clip_norm = 0.5}, kNarrowSteps),
             wide = train(given, with_casts(plan), {}, {.clip_norm = 0.5}, kNarrowSteps);
  for (size_t r = 0; r < ranks.size(); ++r) CHECK(find_difference(wide[r], ranks[r]) == "");
  CHECK(compare_memory(given, plan, train(given, plan, {}, {.clip_norm = 0.5}, 1)) == "");
}

}  // namespace perigee::parity
