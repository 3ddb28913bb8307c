// Gradients of adapters against autograd of the same model with its adapters written out.
#include "tests/support/torch_test.h"
//
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "capture/capture.h"
#include "exec/reference/reference.h"
#include "graph/adapters/adapters.h"
#include "tests/parity/support/adapters.h"
#include "tests/parity/support/ranks.h"

namespace perigee::parity {
namespace {

namespace nn = torch::nn;
using at::Tensor;

constexpr int64_t kGradientsRows = 3, kSequence = 4, kWidth = 6, kClasses = 5;

// Linear layers after each other, with and without bias, on matrices and on sequences; one of them
// is used twice.
struct Layers : nn::Module {
  nn::Embedding embed{nullptr};
  nn::Linear first{nullptr}, twice{nullptr}, plain{nullptr}, head{nullptr};
  using Apply = std::function<Tensor(nn::Linear&, const std::string&, const Tensor&)>;
  Apply apply = [](nn::Linear& layer, const std::string&, const Tensor& x) { return layer(x); };

  Layers() {
    torch::manual_seed(3);
    embed = register_module("embed", nn::Embedding(kClasses, kWidth));
    first = register_module("first", nn::Linear(kWidth, 7));
    twice = register_module("twice", nn::Linear(7, 7));
    plain = register_module("plain", nn::Linear(nn::LinearOptions(7, 8).bias(false)));
    head = register_module("head", nn::Linear(nn::LinearOptions(8, kClasses).bias(false)));
    to(at::kDouble);
  }

  Tensor forward(const Tensor& tokens) {
    auto x = apply(first, "first", embed(tokens));
    x = at::tanh(apply(twice, "twice", x));
    x = apply(plain, "plain", apply(twice, "twice", x));  // nothing between two layers
    return apply(head, "head", x.mean(1));
  }
};

struct Setting {
  std::shared_ptr<Layers> net = std::make_shared<Layers>();
  Batch batch{{"tokens", at::randint(0, kClasses, {kGradientsRows, kSequence}, at::kLong)},
              {"labels", at::randint(0, kClasses, {kGradientsRows}, at::kLong)}};

  Tensor loss(const Batch& from) const {
    return nn::functional::cross_entropy(net->forward(from.at("tokens")), from.at("labels"));
  }
  Given given(const std::string& config) const {
    const Model model{net, batch, [this](const Batch& b) { return Result{loss(b)}; }};
    return with_adapters(capture_model(model), config);
  }
};

constexpr const char* kAll =
    R"({"match": ["first", "twice", "plain", "head"], "rank": 3, "alpha": 5})";
constexpr double kScale = 5.0 / 3;

// Returns the first result that differs from autograd's, "" where none does.
std::string difference(const Setting& setting, const Given& given) {
  const auto results = exec::evaluate(given.graph, given.inputs);
  std::map<std::string, Tensor> parameters;
  for (const auto& [name, tensor] : given.inputs) {
    if (name.find("lora") != name.npos) parameters[name] = tensor.clone().requires_grad_(true);
  }
  setting.net->apply = [&](nn::Linear& layer, const std::string& name, const Tensor& x) {
    const auto low = at::linear(x, parameters.at(name + ".lora_A.weight"));
    return layer(x) + kScale * at::linear(low, parameters.at(name + ".lora_B.weight"));
  };
  const auto loss = setting.loss(setting.batch);
  loss.backward();
  setting.net->apply = Layers().apply;
  const auto equal = [](const Tensor& a, const Tensor& b) {
    return (a - b).abs().max().item<double>() <= 1e-12 * (1 + b.abs().max().item<double>());
  };
  if (!equal(results.at("loss"), loss.detach())) return "loss";
  size_t gradients = 0;
  for (const auto& [name, tensor] : results) gradients += name.starts_with("gradient:");
  if (gradients != parameters.size()) return "number of gradients";
  for (const auto& [name, parameter] : parameters) {
    if (!equal(results.at("gradient:" + name), parameter.grad())) return name;
  }
  return "";
}

}  // namespace

TEST_CASE("adapters of linear layers have autograd's loss and gradients") {
  torch::manual_seed(4);
  const Setting setting;
  const auto given = setting.given(kAll);
  CHECK(difference(setting, given) == "");
  // Negative controls: each op of the adapters in the backward pass counts.
  int controls = 0;
  for (size_t n = 0; n < given.graph.nodes.size(); ++n) {
    const auto& node = given.graph.nodes[n];
    if (node.phase != graph::Phase::backward || node.op != "aten::mul.Scalar") continue;
    auto wrong = given;
    for (auto& [name, arg] : wrong.graph.nodes[n].args) {
      if (name == "other") arg = 1.0;
    }
    CHECK(difference(setting, wrong) != "");
    ++controls;
  }
  CHECK(controls == 5);
}

TEST_CASE("adapters of some layers, alone, have autograd's gradients", "[adapters]") {
  torch::manual_seed(5);
  for (const char* name : {"first", "twice", "plain", "head"}) {
    CAPTURE(name);
    Setting setting;
    auto given = setting.given(fmt::format(R"({{"match": "{}", "rank": 3, "alpha": 5}})", name));
    const auto results = exec::evaluate(given.graph, given.inputs);
    setting.net->apply = [&](nn::Linear& layer, const std::string& own, const Tensor& x) {
      if (own != name) return layer(x);
      const auto a = given.inputs.at(own + ".lora_A.weight");
      return layer(x) + kScale * at::linear(at::linear(x, a.requires_grad_(true)),
                                            given.inputs.at(own + ".lora_B.weight"));
    };
    setting.loss(setting.batch).backward();
    const auto a = std::string(name) + ".lora_A.weight";
    CHECK(at::allclose(results.at("gradient:" + a), given.inputs.at(a).grad(), 1e-12, 1e-14));
  }
}

TEST_CASE("with dropout the gradients are the differences of the loss") {
  torch::manual_seed(6);
  const Setting setting;
  const auto given = setting.given(
      R"({"match": ["first", "twice", "plain", "head"], "rank": 2, "dropout": 0.4})");
  const auto results = exec::evaluate(given.graph, given.inputs, {.seed = 9});
  CHECK(results.at("loss").item<double>() !=
        exec::evaluate(given.graph, given.inputs, {.seed = 10}).at("loss").item<double>());
  for (const auto& [name, tensor] : given.inputs) {
    if (name.find("lora") == name.npos) continue;
    CAPTURE(name);
    const auto direction = at::randn_like(tensor);
    const auto loss = [&](double step) {
      auto moved = given.inputs;
      moved[name] = tensor + step * direction;
      return exec::evaluate(given.graph, moved, {.seed = 9}).at("loss").item<double>();
    };
    const double h = 1e-4;
    const double slope = (loss(h) - loss(-h)) / (2 * h);
    const double wanted = (results.at("gradient:" + name) * direction).sum().item<double>();
    CHECK(std::abs(slope - wanted) <= 1e-6 * (1 + std::abs(wanted)));
  }
}

}  // namespace perigee::parity
