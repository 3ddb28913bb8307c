// Modules that a naive capture captures wrongly: writes through views, shared memory, state that
// the forward pass updates, gradients inside the forward pass.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "base/error.h"
#include "tests/capture/support.h"

namespace nn = torch::nn;

namespace perigee::test {
namespace {

using Tensors = std::vector<at::Tensor>;
using torch::indexing::Slice;

Layer plain(std::string name, Tensors inputs, Layer::Run run) {
  return {std::move(name), nullptr, std::move(inputs), std::move(run)};
}

std::vector<Layer> writing_layers() {
  const auto x = normal({3, 4});
  return {
      plain("a column is overwritten", {x, normal({3})},
            [](const Tensors& in) -> Tensors {
              auto y = in[0] * 2;
              y.index_put_({Slice(), 0}, in[1]);
              return {y};
            }),
      plain("a slice is added to", {x},
            [](const Tensors& in) -> Tensors {
              auto y = in[0].sin();
              y.slice(1, 1, 3).add_(in[0].slice(1, 0, 2));
              return {y};
            }),
      plain("the base is written and an old view read", {x},
            [](const Tensors& in) -> Tensors {
              auto y = in[0].sin();
              auto view = y.select(0, 1);
              y.mul_(3);
              return {view * 2};
            }),
      plain("relu on a view", {x},
            [](const Tensors& in) -> Tensors {
              auto y = in[0] * 1;
              y.slice(0, 0, 2).relu_();
              return {y};
            }),
      plain("a view of a transposed view is written", {x},
            [](const Tensors& in) -> Tensors {
              auto y = in[0] + 1;
              y.t().select(0, 2).copy_(in[0].select(1, 0));
              return {y.t()};
            }),
      plain("elements of a literal", {x},
            [](const Tensors& in) -> Tensors {
              const auto slopes = torch::tensor({0.5, 0.25, 4.0}, torch::kFloat64);
              return {in[0] * slopes[0] + in[0] * slopes[1] + in[0] * slopes.slice(0, 1)[1]};
            }),
      plain("a literal that is written between its uses", {x},
            [](const Tensors& in) -> Tensors {
              auto scale = torch::tensor({1.0, 3.0}, torch::kFloat64);
              auto y = in[0];
              for (int i = 0; i < 3; ++i) {
                y = y + scale[0];
                scale.mul_(0.5);
              }
              return {y + scale[1]};
            }),
      plain("joined tensors after an empty one", {x},
            [](const Tensors& in) -> Tensors {
              const auto none = torch::empty({0}, in[0].options());
              return {torch::cat({none, in[0], in[0].sin()}, -1)};
            }),
      plain("a literal", {x},
            [](const Tensors& in) -> Tensors {
              const auto rows = torch::tensor({{1.0, 2.0}, {3.0, 4.0}}, in[0].options());
              return {in[0] * torch::tensor({1.0, 2.0, 3.0, 4.0}, torch::kFloat64),
                      in[0].slice(1, 0, 2).matmul(rows)};
            }),
      plain("unfold", {x}, [](const Tensors& in) -> Tensors { return {in[0].unfold(1, 2, 1)}; }),
      plain("as_strided of a block", {x},
            [](const Tensors& in) -> Tensors {
              return {(in[0] * 1).as_strided({2, 2}, {4, 1}, 5)};
            }),
      plain("a mask fills in place", {x},
            [](const Tensors& in) -> Tensors {
              auto y = in[0].clone();
              y.masked_fill_(torch::ones({3, 4}, torch::kBool).triu(1), 0.5);
              return {y.cumsum(1)};
            }),
      plain("an output is filled piece by piece", {x},
            [](const Tensors& in) -> Tensors {
              auto y = torch::zeros({3, 4}, in[0].options());
              for (int64_t i = 0; i < 3; ++i) y[i] = in[0][2 - i] * double(i + 1);
              return {y};
            }),
      plain("out= results", {x},
            [](const Tensors& in) -> Tensors {
              at::NoGradGuard no_grad;
              auto y = torch::empty({3, 4}, in[0].options());
              torch::mul_out(y, in[0], in[0]);
              at::AutoGradMode grad(true);
              return {y + in[0]};
            }),
  };
}

std::vector<Layer> gradient_layers() {
  const auto x = normal({3, 4});
  const auto fixed = torch::complex(normal({3, 2}), normal({3, 2}));
  return {
      plain("a detached branch", {x},
            [](const Tensors& in) -> Tensors {
              return {in[0].detach() * in[0], in[0].data() + in[0]};
            }),
      plain("a branch without gradients", {x},
            [](const Tensors& in) -> Tensors {
              at::Tensor scale;
              {
                at::NoGradGuard no_grad;
                scale = in[0].norm();
              }
              return {in[0] / scale};
            }),
      plain("a gradient penalty", {x, normal({4, 2})},
            [](const Tensors& in) -> Tensors {
              const auto y = torch::tanh(in[0].matmul(in[1])).pow(2).sum();
              const auto grad = torch::autograd::grad({y}, {in[0]}, {}, true, true)[0];
              return {y, (grad.norm(2, 1) - 1).pow(2).mean()};
            }),
      plain("a gradient penalty through attention and norms", {normal({1, 2, 3, 4}), normal({4})},
            [](const Tensors& in) -> Tensors {
              const auto q = at::rms_norm(in[0], {4}, in[1], 1e-6);
              const auto y = at::scaled_dot_product_attention(q, in[0], q * 2, {}, 0.0, true);
              const auto loss = torch::nn::functional::cross_entropy(
                  y.flatten(0, 2), torch::tensor({0, 1, 2, 3, -100, 1}));
              const auto grad = torch::autograd::grad({loss}, {in[0]}, {}, true, true)[0];
              return {loss, grad.pow(2).sum()};
            }),
      plain("two backward passes through one graph", {x, normal({4, 2})},
            [](const Tensors& in) -> Tensors {
              const auto y = in[0].matmul(in[1]).sin();
              const auto a = torch::autograd::grad({y.sum()}, {in[0]}, {}, true, true)[0];
              const auto b = torch::autograd::grad({y.square().sum()}, {in[1]}, {}, true, true)[0];
              return {y, a * in[0], b * in[1]};
            }),
      plain("a tensor used by two outputs and a hook", {x},
            [](const Tensors& in) -> Tensors {
              auto y = in[0].sin();
              if (y.requires_grad()) y.register_hook([](at::Tensor g) { return g * 2; });
              return {y, y * in[0]};
            }),
      plain("complex rotation", {normal({3, 2, 2})},
            [](const Tensors& in) -> Tensors {
              const auto angle = torch::arange(6, torch::kFloat64).view({3, 2});
              const auto turn = torch::polar(torch::ones_like(angle), angle);
              return {torch::view_as_real(torch::view_as_complex(in[0].contiguous()) * turn)};
            }),
      plain("a conjugated constant and the constant", {normal({3, 2, 2})},
            [fixed](const Tensors& in) -> Tensors {
              const auto z = torch::view_as_complex(in[0].contiguous());
              return {torch::view_as_real(z * fixed.conj()), torch::view_as_real(z * fixed)};
            }),
      plain("the imaginary part of a conjugated constant", {normal({3, 2})},
            [fixed](const Tensors& in) -> Tensors { return {in[0] * at::imag(fixed.conj())}; }),
      plain("indexing by tensors", {x, torch::tensor({2, 0, 2})},
            [](const Tensors& in) -> Tensors {
              return {in[0].index({in[1]}), in[0].gather(1, in[1].view({3, 1}))};
            }),
      plain("einsum, chunk, cat, stack and split", {x, normal({3, 4, 2})},
            [](const Tensors& in) -> Tensors {
              const auto parts = torch::einsum("ij,ijk->ik", {in[0], in[1]}).chunk(2, 1);
              return {torch::cat({parts[1], parts[0]}, -1), torch::stack({in[0], in[0] * 2}, -1),
                      in[0].split(3, 1)[1], in[0].unbind(0)[2]};
            }),
      plain("reductions", {x},
            [](const Tensors& in) -> Tensors {
              return {in[0].var(1),
                      in[0].std(),
                      in[0].max(),
                      std::get<0>(in[0].max(1)),
                      in[0].prod(),
                      in[0].logsumexp(-1),
                      in[0].norm(),
                      in[0].amax(0),
                      std::get<0>(in[0].topk(2)),
                      std::get<0>(in[0].sort(1)),
                      in[0].mean(0, true),
                      in[0].argmax(1)};
            }),
      plain(
          "powers and numbers", {uniform({3, 4})},
          [](const Tensors& in) -> Tensors {
            return {
                2.0 / in[0],           1 - in[0],
                in[0].pow(3),          torch::pow(2.0, in[0]),
                in[0] % 0.3,           torch::where(in[0] > 0.5, in[0], 0.0),
                in[0].clamp(0.2, 0.8), torch::maximum(in[0], torch::tensor(0.5, torch::kFloat64))};
          }),
  };
}

struct Averaged : nn::Module {
  nn::Linear linear{4, 4};
  at::Tensor average, steps;
  Averaged() {
    register_module("linear", linear);
    average = register_buffer("average", torch::zeros({4}));
    steps = register_buffer("steps", torch::zeros({}, torch::kLong));
    to(torch::kFloat64);
    steps.set_data(steps.to(torch::kLong));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = linear(x);
    {
      at::NoGradGuard no_grad;
      average.mul_(0.9).add_(y.mean(0), 0.1);
      steps += 1;
    }
    return y - average;
  }
};

struct Shared : nn::Module {
  nn::Linear linear{4, 4};
  at::Tensor row;
  Shared() {
    register_module("linear", linear);
    to(torch::kFloat64);
    row = register_buffer("row", linear->weight.detach()[1]);
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x) * row; }
};

Forward squares(std::function<at::Tensor(const at::Tensor&)> run) {
  return [run](const Batch& b) {
    const auto y = run(b.at("x"));
    return Result{y.square().sum(), {{"y", y}}};
  };
}

const Batch& one_batch() {
  static const Batch batch{{"x", normal({3, 4})}};
  return batch;
}

}  // namespace

TEST_CASE("writes through views equal eager autograd") {
  for (const auto& layer : writing_layers()) check_layer(layer);
}

TEST_CASE("unusual gradients equal eager autograd") {
  for (const auto& layer : gradient_layers()) check_layer(layer);
}

TEST_CASE("a model can compute gradients of its own parameters") {
  nn::Sequential net(nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 1));
  net->to(torch::kFloat64);
  const auto weight = net->named_parameters()["0.weight"];
  const Forward penalty = [&](const Batch& b) {
    const auto y = net->forward(b.at("x")).sum();
    const auto grads = torch::autograd::grad({y}, net->parameters(), {}, true, true);
    return Result{y + grads[0].square().sum() + grads[2].square().sum()};
  };
  for (int i = 0; i < 2; ++i) check_parity(*net, one_batch(), penalty);
  // After the capture, the module's parameters have gradients of their own.
  const auto y = (weight * weight).sum();
  CHECK(torch::autograd::grad({y}, {weight})[0].equal(2 * weight));
  weight.mutable_grad() = at::Tensor();
  (weight * weight).sum().backward();
  CHECK(weight.grad().equal(2 * weight));
}

TEST_CASE("backward ops of a gradient penalty have the scope of their forward ops") {
  nn::Linear linear(4, 4);
  linear->to(torch::kFloat64);
  const auto captured = capture(*linear, one_batch(), [&](const Batch& b) {
    const auto hidden = linear(b.at("x"));
    const auto y = torch::sigmoid(linear(torch::tanh(hidden))).sum();
    const auto grad = torch::autograd::grad({y}, {hidden}, {}, true, true)[0];
    return Result{y + grad.square().sum()};
  });
  int linked = 0;
  for (const auto& node : captured.graph.nodes) {
    if (node.forward_node < 0) continue;
    const auto& forward = captured.graph.nodes[node.forward_node];
    ++linked;
    if (node.op == "aten::tanh_backward") CHECK(forward.op.starts_with("aten::tanh"));
    if (node.op == "aten::sigmoid_backward") CHECK(forward.op.starts_with("aten::sigmoid"));
  }
  CHECK(linked > 5);
}

TEST_CASE("buffers that the forward pass updates are outputs") {
  Averaged net;
  const auto captured = capture(net, one_batch(), squares([&](auto x) { return net.forward(x); }));
  CHECK(captured.graph.find_output(graph::Output::Kind::buffer, "average"));
  CHECK(captured.graph.find_output(graph::Output::Kind::buffer, "steps"));
  check_parity(net, one_batch(), squares([&](auto x) { return net.forward(x); }));
}

TEST_CASE("a buffer that is a view of a parameter follows it") {
  Shared net;
  const auto captured = capture(net, one_batch(), squares([&](auto x) { return net.forward(x); }));
  CHECK(captured.graph.find_input("row") == nullptr);
  check_parity(net, one_batch(), squares([&](auto x) { return net.forward(x); }));
}

TEST_CASE("a buffer that is the conjugate of another follows it") {
  struct Turned : nn::Module {
    nn::Linear linear{4, 4};
    at::Tensor turn, back;
    Turned() {
      register_module("linear", linear);
      to(torch::kFloat64);
      turn = register_buffer("turn", torch::complex(normal({3, 2}), normal({3, 2})));
      back = register_buffer("back", turn.conj());
    }
    at::Tensor forward(const at::Tensor& x) {
      const auto z = torch::view_as_complex(linear(x).view({3, 2, 2}));
      return torch::view_as_real(z * turn + z * back[0]);
    }
  } net;
  const auto captured = capture(net, one_batch(), squares([&](auto x) { return net.forward(x); }));
  CHECK(captured.graph.find_input("back") == nullptr);
  check_parity(net, one_batch(), squares([&](auto x) { return net.forward(x); }));
}

TEST_CASE("a buffer's memory as numbers of another type is refused") {
  struct Table : nn::Module {
    at::Tensor w = register_parameter("w", normal({3, 2}));
    at::Tensor table = register_buffer("table", normal({3, 2, 2}));
    at::Tensor turn = torch::view_as_complex(table);
  } net;
  const Forward loss = [&](const Batch&) {
    return Result{(net.w * (net.turn * net.turn).abs()).sum()};
  };
  CHECK_THROWS_WITH(
      capture(net, one_batch(), loss),
      Catch::Contains("a view of it with its type") && Catch::Contains("ComplexDouble[3, 2]"));
  net.register_buffer("turn", net.turn);
  CHECK_THROWS_WITH(capture(net, one_batch(), loss),
                    Catch::Contains("\"table\" and \"turn\" share memory"));
}

TEST_CASE("buffers of two types share memory where their bytes do") {
  struct Packed : nn::Module {
    at::Tensor bytes = torch::ones({16}, torch::kByte);
    at::Tensor w = register_parameter("w", normal({8}));
    at::Tensor count = register_buffer("count", bytes.slice(0, 8, 16).view(torch::kLong));
    at::Tensor flags = register_buffer("flags", bytes.slice(0, 0, 8));
  } net;
  const auto captured = capture(net, one_batch(), [&](const Batch&) {
    return Result{(net.w * net.count * net.flags).sum()};
  });
  CHECK(captured.graph.find_input("count"));
  CHECK(captured.graph.find_input("flags"));
}

TEST_CASE("a module used twice adds up its gradients") {
  nn::Linear linear(4, 4);
  linear->to(torch::kFloat64);
  check_parity(*linear, one_batch(), squares([&](auto x) { return linear(linear(x).relu()); }));
}

TEST_CASE("a parameter that the loss does not use has no gradient") {
  nn::Sequential net(nn::Linear(4, 4), nn::Linear(4, 4));
  const auto captured = capture(*net, one_batch(), [&](const Batch& b) {
    return Result{net->ptr<nn::LinearImpl>(0)->forward(b.at("x").to(torch::kFloat32)).sum()};
  });
  CHECK(captured.graph.find_input("1.weight"));
  CHECK(!captured.graph.find_output(graph::Output::Kind::gradient, "1.weight"));
  CHECK(captured.graph.find_output(graph::Output::Kind::gradient, "0.weight"));
}

TEST_CASE("a frozen parameter has no gradient") {
  nn::Linear linear(4, 4);
  linear->to(torch::kFloat64);
  linear->weight.set_requires_grad(false);
  const auto captured = capture(*linear, one_batch(), squares([&](auto x) { return linear(x); }));
  CHECK(!captured.graph.find_input("weight")->trainable);
  CHECK(!captured.graph.find_output(graph::Output::Kind::gradient, "weight"));
  check_parity(*linear, one_batch(), squares([&](auto x) { return linear(x); }));
}

TEST_CASE("parameters that overlap in part are refused") {
  struct Overlapping : nn::Module {
    Overlapping() {
      const auto flat = torch::zeros({6});
      register_parameter("a", flat.slice(0, 0, 4));
      register_parameter("b", flat.slice(0, 2, 6));
    }
  } net;
  CHECK_THROWS_WITH(capture(net, one_batch(), [](const Batch&) { return Result{}; }),
                    Catch::Contains("\"a\" and \"b\" share memory"));
}

}  // namespace perigee::test
