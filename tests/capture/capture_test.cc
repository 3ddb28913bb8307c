#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "base/error.h"
#include "tests/capture/support.h"

namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace perigee::test {
namespace {

struct Mlp : nn::Module {
  nn::Linear in{4, 8}, out{8, 3};
  Mlp() {
    register_module("in", in);
    register_module("out", out);
    to(torch::kFloat64);
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(in(x))); }
};

struct Block : nn::Module {
  int64_t heads;
  nn::LayerNorm ln1, ln2;
  nn::Linear qkv, proj, up, down;
  Block(int64_t width, int64_t heads)
      : heads(heads),
        ln1(nn::LayerNormOptions({width})),
        ln2(nn::LayerNormOptions({width})),
        qkv(width, 3 * width),
        proj(width, width),
        up(width, 4 * width),
        down(4 * width, width) {
    register_module("ln1", ln1);
    register_module("qkv", qkv);
    register_module("proj", proj);
    register_module("ln2", ln2);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(at::Tensor x) {
    const auto b = x.size(0), s = x.size(1), d = x.size(2);
    const auto p = qkv(ln1(x)).view({b, s, 3, heads, d / heads}).permute({2, 0, 3, 1, 4});
    const auto y = at::scaled_dot_product_attention(p[0], p[1], p[2], {}, 0.0, true);
    x = x + proj(y.transpose(1, 2).reshape({b, s, d}));
    return x + down(torch::gelu(up(ln2(x)), "tanh"));
  }
};

struct Gpt : nn::Module {
  nn::Embedding embed, position;
  nn::ModuleList blocks;
  nn::LayerNorm norm;
  nn::Linear head;
  Gpt(int64_t layers, int64_t width, int64_t vocab, bool tie = false)
      : embed(vocab, width),
        position(16, width),
        norm(nn::LayerNormOptions({width})),
        head(nn::LinearOptions(width, vocab).bias(false)) {
    register_module("embed", embed);
    register_module("position", position);
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("head", head);
    for (int64_t i = 0; i < layers; ++i) blocks->push_back(Block(width, 2));
    if (tie) head->weight = head->register_parameter("tied", embed->weight);
    to(torch::kFloat64);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = embed(tokens) + position(torch::arange(tokens.size(1), tokens.device()));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(norm(x));
  }
};

Forward gpt_loss(Gpt& net) {
  return [&net](const Batch& batch) {
    const auto logits = net.forward(batch.at("tokens"));
    return Result{F::cross_entropy(logits.flatten(0, 1), batch.at("labels").flatten()),
                  {{"logits", logits}}};
  };
}

Batch gpt_batch() { return {{"tokens", integers(11, {2, 5})}, {"labels", integers(11, {2, 5})}}; }

}  // namespace

TEST_CASE("a multilayer perceptron equals eager autograd") {
  Mlp net;
  const Batch batch{{"x", normal({5, 4})}, {"y", normal({5, 3})}};
  check_parity(net, batch, [&](const Batch& b) {
    const auto y = net.forward(b.at("x"));
    return Result{F::mse_loss(y, b.at("y")), {{"y", y}}};
  });
}

TEST_CASE("a GPT equals eager autograd") {
  Gpt net(2, 8, 11);
  check_parity(net, gpt_batch(), gpt_loss(net));
}

TEST_CASE("the graph of a GPT is canonical") {
  Gpt net(2, 8, 11);
  const auto captured = capture(net, gpt_batch(), gpt_loss(net));
  std::map<std::string, int> count;
  for (const auto& node : captured.graph.nodes) {
    ++count[node.op];
    for (const auto& [name, arg] : node.args) CHECK(name != "device");
  }
  CHECK(count["perigee::attention"] == 2);
  CHECK(count["perigee::attention_backward"] == 2);
  CHECK(count["perigee::cross_entropy"] == 1);
  CHECK(count["perigee::label_weight"] == 1);
  CHECK(count["perigee::step_average"] == 1);
  CHECK(count["aten::view"] == 0);
  CHECK(count["aten::clone"] == 0);
  CHECK(count["aten::detach"] == 0);
  CHECK(count["aten::expand"] == 0);
  CHECK(count["aten::t"] <=
        4 * 9);  // a weight and a gradient, forward and backward, of nine products
  CHECK(graph::parse(graph::print(captured.graph)).nodes.size() == captured.graph.nodes.size());
}

TEST_CASE("ops belong to the modules that made them") {
  Gpt net(2, 8, 11);
  const auto g = capture(net, gpt_batch(), gpt_loss(net)).graph;
  std::map<std::string, std::string> types;
  for (const auto& scope : g.scopes) types[scope.path] = scope.type;
  CHECK(types.at("blocks.1") == "Block");
  CHECK(types.at("blocks.1.qkv") == "Linear");
  CHECK(types.at("") == "Gpt");
  int blocks = 0;
  for (const auto& node : g.nodes) {
    if (node.op == "perigee::attention" || node.op == "perigee::attention_backward" ||
        node.op == "aten::gelu" || node.op == "aten::gelu_backward") {
      ++blocks;
      CHECK((node.scope == "blocks.0" || node.scope == "blocks.1"));
    }
    if (node.op == "perigee::attention_backward") {
      REQUIRE(node.forward_node >= 0);
      CHECK(g.nodes[node.forward_node].op == "perigee::attention");
    }
    if (node.op == "aten::native_layer_norm") CHECK(types.at(node.scope) == "LayerNorm");
    if (node.phase == graph::Phase::backward && node.op == "aten::native_layer_norm_backward") {
      REQUIRE(node.forward_node >= 0);
      CHECK(g.nodes[node.forward_node].op == "aten::native_layer_norm");
      CHECK(node.scope == g.nodes[node.forward_node].scope);
    }
  }
  CHECK(blocks == 8);
}

TEST_CASE("tied weights are one parameter") {
  Gpt net(1, 8, 11, true);
  const auto captured = capture(net, gpt_batch(), gpt_loss(net));
  CHECK(captured.tied == std::map<std::string, std::string>{{"head.tied", "embed.weight"}});
  CHECK(captured.graph.find_input("head.tied") == nullptr);
  CHECK(captured.graph.find_output(graph::Output::Kind::gradient, "embed.weight"));
  check_parity(net, gpt_batch(), gpt_loss(net));
}

TEST_CASE("evaluation is captured without gradients and restores the module's mode") {
  nn::Sequential net(nn::Linear(4, 4), nn::Dropout(0.5));
  net->to(torch::kFloat64);
  net->ptr(0)->eval();
  const Batch batch{{"x", normal({3, 4})}};
  const auto captured = capture_evaluation(*net, batch, [&](const Batch& b) {
    return Result{{}, {{"y", net->forward(b.at("x"))}}};
  });
  CHECK(net->is_training());
  CHECK(!net->ptr(0)->is_training());
  CHECK(net->ptr(1)->is_training());
  REQUIRE(captured.graph.outputs.size() == 1);
  const auto got = evaluate(*net, captured, batch);
  net->eval();
  CHECK(torch::allclose(got.at("y"), net->forward(batch.at("x"))));
}

}  // namespace perigee::test
