// mlp: linear layers with an activation function between them, from x [inputs] to the logits of
// the class y, or with the loss mse to y [outputs].
#include <torch/nn/functional/loss.h>

#include "capture/models/parts.h"

namespace perigee::models {
namespace {

struct Mlp : nn::Module {
  nn::ModuleList blocks;
  nn::Linear head{nullptr};
  nn::Dropout drop{nullptr};
  std::string activation;

  explicit Mlp(const job::ModelConfig& m) : activation(m.text("activation")) {
    auto width = m.integer("inputs");
    register_module("blocks", blocks);
    for (int64_t i = 0; i + 1 < m.integer("layers"); ++i) {
      blocks->push_back(
          nn::Linear(nn::LinearOptions(width, m.integer("width")).bias(m.flag("bias"))));
      width = m.integer("width");
    }
    drop = register_module("drop", nn::Dropout(m.number("dropout")));
    head = register_module(
        "head", nn::Linear(nn::LinearOptions(width, m.integer("outputs")).bias(m.flag("bias"))));
  }

  Tensor activate(const Tensor& x) const {
    if (activation == "gelu") return at::gelu(x);
    if (activation == "silu") return at::silu(x);
    if (activation == "tanh") return at::tanh(x);
    return at::relu(x);
  }

  // x [b, inputs] -> [b, outputs]
  Tensor forward(Tensor x) {
    for (const auto& block : *blocks) x = drop(activate(block->as<nn::Linear>()->forward(x)));
    return head(x);
  }
};

}  // namespace

BuiltInModel make_mlp(const job::ModelConfig& model) {
  const bool classes = model.text("loss") == "cross_entropy";
  const auto outputs = model.integer("outputs");
  auto net = build<Mlp>(model);
  const auto dtype = graph::dtype_of(model.dtype).value();
  std::vector<BatchField> batch = {{"x", dtype, {model.integer("inputs")}}};
  if (classes) {
    batch.push_back({"y", graph::DType::int64, {}, outputs});
  } else {
    batch.push_back({"y", dtype, {outputs}});
  }
  const auto forward = [net = net.get(), classes](const Batch& given) {
    Result result;
    const auto output = net->forward(given.at("x"));
    result.results["output"] = output;
    if (const auto y = given.find("y"); y != given.end()) {
      result.loss = classes ? torch::nn::functional::cross_entropy(output, y->second)
                            : torch::nn::functional::mse_loss(output, y->second);
    }
    return result;
  };
  return {{net, forward}, std::move(batch)};
}

}  // namespace perigee::models
