#include "exec/reference/reference.h"

#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using graph::DType;
using graph::Graph;
using graph::Input;
using graph::Output;
using graph::ValueId;

std::vector<at::Tensor> call(const std::string& name, const Named& tensors, const Args& args,
                             const std::vector<graph::TensorType>& types) {
  return call(reference_kernel, name, tensors, args, types);
}

TEST_CASE("a graph's loss, gradients and buffers equal eager autograd's") {
  // loss = sum(relu(x w)), d w = x^T mask
  Graph g;
  const auto w = g.add_input(Input::Kind::parameter, "w", f64({3, 2}));
  const auto x = g.add_input(Input::Kind::data, "x", f64({4, 3}));
  const auto y = g.add_node("aten::mm", {{"self", x}, {"mat2", w}}, {f64({4, 2})})[0];
  const auto z = g.add_node("aten::relu", {{"self", y}}, {f64({4, 2})})[0];
  const auto loss = g.add_node("aten::sum", {{"self", z}}, {f64({})})[0];
  const auto one = g.add_node("perigee::full", {{"value", 1.0}}, {f64({4, 2})})[0];
  const auto d = g.add_node("aten::threshold_backward",
                            {{"grad_output", one}, {"self", z}, {"threshold", int64_t{0}}},
                            {f64({4, 2})})[0];
  const auto xt = g.add_node("aten::t", {{"self", x}}, {f64({3, 4})})[0];
  const auto dw = g.add_node("aten::mm", {{"self", xt}, {"mat2", d}}, {f64({3, 2})})[0];
  g.outputs = {{Output::Kind::loss, "", loss}, {Output::Kind::gradient, "w", dw}};

  auto wt = at::randn({3, 2}, at::kDouble).requires_grad_(true);
  const auto xt_ = at::randn({4, 3}, at::kDouble);
  const auto eager = at::relu(xt_.mm(wt)).sum();
  eager.backward();
  const auto out = evaluate(g, {{"w", wt}, {"x", xt_}});
  REQUIRE(at::equal(out.at("loss"), eager.detach()));
  REQUIRE(at::allclose(out.at("gradient:w"), wt.grad(), 1e-14, 1e-14));
}

TEST_CASE("errors of the reference name op, scope and input") {
  Graph g;
  const auto x = g.add_input(Input::Kind::data, "x", f64({4, 3}));
  const auto y = g.add_node("aten::mm", {{"self", x}, {"mat2", x}}, {f64({4, 3})},
                            "blocks.1.mlp")[0];
  g.outputs = {{Output::Kind::result, "y", y}};
  REQUIRE_THROWS_WITH(evaluate(g, {}), Catch::Contains("\"x\""));
  REQUIRE_THROWS_WITH(evaluate(g, {{"x", at::ones({4, 3})}}), Catch::Contains("Double[4, 3]"));
  REQUIRE_THROWS_WITH(evaluate(g, {{"x", at::ones({4, 3}, at::kDouble)}}),
                      Catch::Contains("aten::mm") && Catch::Contains("blocks.1.mlp"));
  REQUIRE_THROWS_WITH(call("aten::no_such_op", {}, {}, {f64({1})}), Catch::Contains("no_such_op"));
  REQUIRE_THROWS_WITH(call("aten::mm", {{"self", at::ones({1, 1})}}, {}, {f64({1})}),
                      Catch::Contains("mat2"));
}

TEST_CASE("a boxed call fills in defaults and converts constants") {
  const auto x = at::randn({2, 3, 4}, at::kDouble);
  REQUIRE(at::equal(call("aten::slice.Tensor", {{"self", x}},
                         {{"dim", int64_t{2}}, {"end", int64_t{2}}}, {f64({2, 3, 2})})[0],
                    x.slice(2, {}, 2)));
  REQUIRE(at::equal(call("aten::add.Scalar", {{"self", x}}, {{"other", 2.5}}, {f64({2, 3, 4})})[0],
                    x + 2.5));
  REQUIRE(
      at::equal(call("aten::mean.dim", {{"self", x}},
                     {{"dim", std::vector<int64_t>{1}}, {"keepdim", true}}, {f64({2, 1, 4})})[0],
                x.mean(1, true)));
  const auto splits = call("aten::split.Tensor", {{"self", x}},
                           {{"split_size", int64_t{2}}, {"dim", int64_t{1}}},
                           {f64({2, 2, 4}), f64({2, 1, 4})});
  REQUIRE(at::equal(splits[1], x.narrow(1, 2, 1)));
}

TEST_CASE("attention and its backward equal eager autograd") {
  const bool causal = GENERATE(true, false), biased = GENERATE(true, false);
  const int64_t groups = GENERATE(1, 2, 4);
  auto q = at::randn({2, 4, 5, 3}, at::kDouble).requires_grad_(true);
  auto k = at::randn({2, groups, 6, 3}, at::kDouble).requires_grad_(true);
  auto v = at::randn({2, groups, 6, 7}, at::kDouble).requires_grad_(true);
  auto bias = at::randn({4, 5, 6}, at::kDouble).requires_grad_(true);
  auto scores = at::matmul(q, k.repeat_interleave(4 / groups, 1).transpose(-2, -1)) * 0.5;
  if (biased) scores = scores + bias;
  if (causal) scores = scores.masked_fill(at::ones({5, 6}, at::kBool).triu(1), -INFINITY);
  const auto eager = at::matmul(scores.softmax(-1), v.repeat_interleave(4 / groups, 1));
  const auto grad = at::randn({2, 4, 5, 7}, at::kDouble);
  eager.backward(grad);

  at::NoGradGuard no_grad;
  Named in = {{"query", q}, {"key", k}, {"value", v}};
  if (biased) in.emplace_back("bias", bias);
  const Args args = {{"causal", causal}, {"scale", 0.5}, {"bias_grad", biased}};
  const auto out = call("perigee::attention", in, args, {f64({2, 4, 5, 7}), f64({2, 4, 5})});
  REQUIRE(at::allclose(out[0], eager, 1e-12, 1e-12));
  REQUIRE(at::allclose(out[1], scores.logsumexp(-1), 1e-12, 1e-12));
  in.insert(in.begin(), {"grad", grad});
  in.emplace_back("output", out[0]);
  in.emplace_back("logsumexp", out[1]);
  std::vector<graph::TensorType> types = {f64({2, 4, 5, 3}), f64({2, groups, 6, 3}),
                                          f64({2, groups, 6, 7})};
  if (biased) types.push_back(f64({4, 5, 6}));
  const auto d = call("perigee::attention_backward", in, args, types);
  REQUIRE(at::allclose(d[0], q.grad(), 1e-12, 1e-12));
  REQUIRE(at::allclose(d[1], k.grad(), 1e-12, 1e-12));
  REQUIRE(at::allclose(d[2], v.grad(), 1e-12, 1e-12));
  if (biased) REQUIRE(at::allclose(d[3], bias.grad(), 1e-12, 1e-12));
}

TEST_CASE("cross entropy and its backward equal eager autograd") {
  const double smoothing = GENERATE(0.0, 0.1);
  const bool weighted = GENERATE(true, false);
  auto x = at::randn({6, 5}, at::kDouble).requires_grad_(true);
  auto target = at::randint(0, 5, {6}, at::kLong);
  target[2] = -100;
  const auto w = at::rand({5}, at::kDouble);
  const auto eager = at::cross_entropy_loss(x, target, weighted ? w : at::Tensor(), 0, -100,
                                            smoothing);
  const auto grad = at::randn({6}, at::kDouble);
  eager.backward(grad);
  at::NoGradGuard no_grad;
  Named in = {{"logits", x}, {"target", target}};
  if (weighted) in.emplace_back("weight", w);
  const auto out = call("perigee::cross_entropy", in, {{"label_smoothing", smoothing}},
                        {f64({6}), f64({6})});
  REQUIRE(at::allclose(out[0], eager, 1e-13, 1e-13));
  in.insert(in.begin(), {"grad", grad});
  in.emplace_back("logsumexp", out[1]);
  const auto d = call("perigee::cross_entropy_backward", in, {{"label_smoothing", smoothing}},
                      {f64({6, 5})});
  REQUIRE(at::allclose(d[0], x.grad(), 1e-13, 1e-13));

  Named labels = {{"target", target}};
  if (weighted) labels.emplace_back("weight", w);
  const auto total = call("perigee::label_weight", labels, {}, {f64({})});
  const auto expected = at::cross_entropy_loss(x, target, weighted ? w : at::Tensor(), 2, -100, 0) /
                        at::cross_entropy_loss(x, target, weighted ? w : at::Tensor(), 1, -100, 0);
  REQUIRE(at::allclose(total[0], expected, 1e-12, 1e-12));
}

TEST_CASE("nll over trailing dims and its backward equal eager autograd") {
  auto x = at::randn({3, 4, 2, 2}, at::kDouble).requires_grad_(true);
  auto target = at::randint(0, 4, {3, 2, 2}, at::kLong);
  target[1][0][1] = 2;
  const auto w = at::rand({4}, at::kDouble);
  const auto eager = at::nll_loss_nd(x, target, w, 0, 2);
  const auto grad = at::randn({3, 2, 2}, at::kDouble);
  eager.backward(grad);
  at::NoGradGuard no_grad;
  const auto out = call("perigee::nll", {{"self", x}, {"target", target}, {"weight", w}},
                        {{"ignore_index", int64_t{2}}}, {f64({3, 2, 2})});
  REQUIRE(at::allclose(out[0], eager));
  const auto d = call("perigee::nll_backward",
                      {{"grad", grad}, {"self", x}, {"target", target}, {"weight", w}},
                      {{"ignore_index", int64_t{2}}}, {f64({3, 4, 2, 2})});
  REQUIRE(at::allclose(d[0], x.grad()));
}

TEST_CASE("rms norm and its backward equal eager autograd") {
  auto x = at::randn({2, 3, 8}, at::kDouble).requires_grad_(true);
  auto w = at::randn({8}, at::kDouble).requires_grad_(true);
  const auto eager = x * (x.square().mean(-1, true) + 1e-5).rsqrt() * w;
  const auto grad = at::randn({2, 3, 8}, at::kDouble);
  eager.backward(grad);
  at::NoGradGuard no_grad;
  const auto out = call("perigee::rms_norm", {{"self", x}, {"weight", w}}, {{"eps", 1e-5}},
                        {f64({2, 3, 8}), f64({2, 3, 1})});
  REQUIRE(at::allclose(out[0], eager, 1e-13, 1e-13));
  const auto d = call("perigee::rms_norm_backward",
                      {{"grad", grad}, {"self", x}, {"weight", w}, {"rstd", out[1]}}, {},
                      {f64({2, 3, 8}), f64({8})});
  REQUIRE(at::allclose(d[0], x.grad(), 1e-12, 1e-12));
  REQUIRE(at::allclose(d[1], w.grad(), 1e-12, 1e-12));
}

}  // namespace
}  // namespace perigee::exec
