// Buffers that the stages of a pipeline change.
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <memory>

#include "tests/parity/support/models.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

constexpr int64_t kScaledWidth = 6;

// Scales the results of a linear layer by the buffer `scale`, which it then changes; `before` is
// the value that it has used.
struct Scaled : torch::nn::Module {
  torch::nn::Linear linear{kScaledWidth, kScaledWidth};
  at::Tensor scale, before;

  Scaled() {
    register_module("linear", linear);
    scale = register_buffer("scale", torch::ones({kScaledWidth}));
    before = register_buffer("before", torch::zeros({kScaledWidth}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = linear(x);
    const auto used = scale.clone();
    {
      const at::NoGradGuard no_grad;
      before.copy_(scale);
      scale.mul_(0.9).add_(y.abs().mean(0), 0.1);
    }
    return torch::tanh(y * used);
  }
};

struct ScaledLayers : torch::nn::Module {
  torch::nn::ModuleList blocks;

  ScaledLayers() {
    register_module("blocks", blocks);
    for (int k = 0; k < 3; ++k) blocks->push_back(std::make_shared<Scaled>());
    to(torch::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks) x = std::dynamic_pointer_cast<Scaled>(block)->forward(x);
    return x;
  }
};

Given scaled_layers(int64_t microbatches) {
  torch::manual_seed(3);
  const auto net = std::make_shared<ScaledLayers>();
  const auto draw = [] { return at::randn({kRows, kScaledWidth}, at::kDouble); };
  return capture_model({net,
                        {{"x", draw()}, {"target", draw()}},
                        [net](const Batch& b) {
                          return Result{(net->forward(b.at("x")) - b.at("target")).square().mean()};
                        }},
                       microbatches);
}

TEST_CASE("a buffer takes the value that another one had before a step") {
  const auto given = scaled_layers(1);
  const auto plan = plan_of(given, strategy_on(R"(["data", 1])", ""), kRows);
  const auto one = train(given, plan, {}, {.clip_norm = 0.5}, 1)[0];
  for (const std::string block : {"blocks.0", "blocks.1", "blocks.2"}) {
    INFO(block);
    const auto tensor = [&](const char* name) {
      return one.tensors.find(block + name)->second.first;
    };
    CHECK(at::equal(tensor(".before"), torch::ones({kScaledWidth}, torch::kDouble)));
    CHECK_FALSE(at::equal(tensor(".scale"), tensor(".before")));
  }
}

TEST_CASE("stages that change buffers train as one device does") {
  constexpr int64_t microbatches = 4;
  const auto given = scaled_layers(microbatches);
  const auto one = train(given,
                         plan_of(given, strategy_on(R"(["data", 1])", "", microbatches), kRows))[0];
  for (const std::string schedule : {"gpipe", "1f1b", "zb1p"}) {
    for (const bool recomputes : {false, true}) {
      INFO(schedule << (recomputes ? ", recomputed" : ""));
      auto plan = plan_of(
          given,
          strategy_on(R"(["pipe", 3])", recomputes ? R"(["checkpoint", ["blocks.*"]])" : "",
                      microbatches),
          kRows);
      plan.pipeline = {.axis = "pipe", .starts = {"blocks.1", "blocks.2"}, .schedule = schedule};
      const auto ranks = train(given, plan);
      CHECK(compare(one, ranks) == "");
      for (const auto& [name, part] : one.tensors) {
        INFO(name);
        CHECK(std::ranges::any_of(
            ranks, [&](const Outcome& rank) { return rank.tensors.contains(name); }));
      }
    }
  }
}

}  // namespace
}  // namespace perigee::parity
