// The binding of ops: arguments, overloads, results and errors.
#include <fmt/format.h>

#include "base/error.h"
#include "exec/reference/reference.h"
#include "tests/binding/support.h"

namespace perigee::test {
namespace {

using Catch::Matchers::Contains;

// Evaluates the results of a forward body at x and w = 1.
exec::Tensors results_of(const std::string& body, const at::Tensor& x) {
  INFO(body);
  const LuaFile file(script_of(body));
  const auto lua = binding::load_lua(file.settings());
  const auto captured = capture_evaluation(*lua.model.module, {{"x", x}}, lua.model.forward);
  auto inputs = exec::evaluate(captured.init, {}, {.seed = 1});
  inputs["x"] = x;
  return exec::evaluate(captured.graph, inputs);
}

struct Case {
  std::string expression;
  at::Tensor expected;
};

}  // namespace

TEST_CASE("ops take the arguments of their schemas") {
  torch::manual_seed(5);
  const auto x = torch::randn({2, 3}, torch::kDouble);
  const auto rows = torch::tensor({1, 0});
  const std::vector<Case> cases = {
      {"torch.softmax(x, -1)", x.softmax(-1)},
      {"x:softmax(0)", x.softmax(0)},
      {"torch.softmax(x, { dim = 1, dtype = 'float32' })", x.softmax(1, torch::kFloat)},
      {"torch.gelu(x, { approximate = 'tanh' })", torch::gelu(x, "tanh")},
      {"x:view(3, 2)", x.view({3, 2})},
      {"x:view { -1 }", x.view({-1})},
      {"x:permute(1, 0)", x.permute({1, 0})},
      {"x:mean { 0, 1 }", x.mean(at::IntArrayRef({0, 1}))},
      {"x:mean(1, true)", x.mean(1, true)},
      {"x:sum()", x.sum()},
      {"x:sum(0, { keepdim = true })", x.sum(0, true)},
      {"torch.max(x, 1)", std::get<0>(x.max(1))},
      {"select(2, torch.max(x, 1))", std::get<1>(x.max(1))},
      {"torch.cat({ x, x }, 1)", torch::cat({x, x}, 1)},
      {"x:split(1)[2]", x.split(1)[1]},
      {"torch.tensor_split(x, 3, 1)[3]", x.slice(1, 2, 3)},
      {"x:view(3, 2):hsplit(2)[2]", x.view({3, 2}).slice(1, 1, 2)},
      {"x[1]", x[1]},
      {"x[-1] + x[0]", x[-1] + x[0]},
      {"torch.index(x, { false, torch.tensor { 1, 0 } })",
       x.index({torch::indexing::Slice(), rows})},
      {"x:to('float32')", x.to(torch::kFloat)},
      {"torch.where(x:gt(0), x, 0)", torch::where(x > 0, x, torch::zeros_like(x))},
      {"x:masked_fill(torch.lt(x, 0), -1)", x.masked_fill(x < 0, -1)},
      {"torch.full({ 2, 2 }, 0.5)", torch::full({2, 2}, 0.5, torch::kDouble)},
      {"torch.arange(0, 6, 2, { dtype = 'int64' })", torch::arange(0, 6, 2, torch::kLong)},
      {"torch.tensor { { 1, 2 }, { 3, 4.5 } }",
       torch::tensor({1.0, 2.0, 3.0, 4.5}, torch::kDouble).view({2, 2})},
      {"torch.tensor({ 1, 0 }, { dtype = 'float32' })", torch::tensor({1.0f, 0.0f})},
      {"torch.einsum('ij,jk->ik', { x, w })", x.matmul(torch::ones({3, 4}, torch::kDouble))},
      {"torch.linear(x, w:t(), nil)", x.matmul(torch::ones({3, 4}, torch::kDouble))},
      {"x:matmul(w)", x.matmul(torch::ones({3, 4}, torch::kDouble))},
      {"torch.conv1d(x:unsqueeze(0), torch.ones { 1, 2, 2 }, nil, 1, 1)",
       torch::conv1d(x.unsqueeze(0), torch::ones({1, 2, 2}, torch::kDouble), {}, 1, 1)},
      {"torch.no_grad(function() return x * 2 end)", x * 2},
      {"torch.div(x, 2, { rounding_mode = 'floor' })", torch::div(x, 2, "floor")},
      {"x:clone():add_(1)", x + 1},
  };
  std::string body = "return {\n";
  for (size_t i = 0; i < cases.size(); ++i) {
    body += fmt::format("r{} = ({}),\n", i, cases[i].expression);
  }
  const auto results = results_of(body + "}", x);
  for (size_t i = 0; i < cases.size(); ++i) {
    INFO(cases[i].expression);
    const auto& got = results.at(fmt::format("r{}", i));
    CHECK(got.scalar_type() == cases[i].expected.scalar_type());
    REQUIRE(got.sizes() == cases[i].expected.sizes());
    CHECK(torch::allclose(got, cases[i].expected, 1e-12, 1e-12));
  }
}

TEST_CASE("a literal has any number of numbers") {
  const auto x = torch::ones({2, 3}, torch::kDouble);
  const auto results = results_of(
      "local ones = {}\nfor i = 1, 1048577 do ones[i] = 1 end\n"
      "return { y = x * torch.tensor(ones):sum() }",
      x);
  CHECK(results.at("y").equal(1048577 * x));
}

TEST_CASE("operators work with tensors and numbers on either side") {
  torch::manual_seed(5);
  const auto x = torch::rand({2, 3}, torch::kDouble) + 0.5;
  const auto results = results_of(
      "return { a = 2 + x, b = x - 1, c = 1 - x, d = 3 * x, e = 2 / x, f = x / 2, g = x ^ 2,\n"
      "h = 2 ^ x, i = -x, j = x % 1, k = x * x - x / x, l = torch.tensor(#x + x.shape[2] + "
      "x:size(-1) + x:numel() + x:dim()) }",
      x);
  const std::map<std::string, at::Tensor> expected = {{"a", 2 + x},
                                                      {"b", x - 1},
                                                      {"c", 1 - x},
                                                      {"d", 3 * x},
                                                      {"e", 2 / x},
                                                      {"f", x / 2},
                                                      {"g", x.pow(2)},
                                                      {"h", torch::pow(2, x)},
                                                      {"i", -x},
                                                      {"j", x.remainder(1)},
                                                      {"k", x * x - x / x},
                                                      {"l", torch::tensor(2 + 3 + 3 + 6 + 2)}};
  for (const auto& [name, value] : expected) {
    INFO(name);
    CHECK(torch::allclose(results.at(name), value, 1e-12, 1e-12));
  }
}

TEST_CASE("a wrong argument is an error at the script's line") {
  const auto error = [](const std::string& line) {
    return error_of(script_of("local y\n" + line + "\nreturn { y = y }"));
  };
  // Line 7 of the script.
  CHECK_THAT(
      error("y = torch.softmx(x, 1)"),
      Contains(".lua:7: [model] torch.softmx is no op of LibTorch, did you mean \"softmax\"?"));
  CHECK_THAT(error("y = x:sofmax(1)"),
             Contains(":7: [model] a tensor has no method \"sofmax\", did you mean \"softmax\"?"));
  CHECK_THAT(
      error("y = torch.softmax(x, 'rows')"),
      Contains(":7: [model] torch.softmax: argument dim must be an integer, but got \"rows\""));
  CHECK_THAT(error("y = torch.softmax(x)"),
             Contains("argument dim must be an integer, but got nothing"));
  CHECK_THAT(error("y = torch.softmax(x, 1.5)"),
             Contains("argument dim must be an integer, but got 1.5"));
  CHECK_THAT(error("y = torch.relu(x, 2)"),
             Contains("torch.relu: takes at most 1 arguments by position, but got 2"));
  CHECK_THAT(error("y = torch.gelu(x, { aproximate = 'tanh' })"),
             Contains("torch.gelu: has no argument aproximate to name here, did you mean "
                      "\"approximate\"?"));
  CHECK_THAT(error("y = torch.linear(x, 3)"),
             Contains("torch.linear: argument weight must be a tensor, but got 3"));
  CHECK_THAT(error("y = torch.cat({ x, 1 })"),
             Contains("argument tensors must be a list of tensors, but got {float64[2, 3], 1}"));
  for (const std::string list : {"torch.cat { x, x, dim = -1 }", "torch.cat({ x, x, dim = -1 }, 1)",
                                 "x:mean { 1, dim = true }", "torch.ones { 2, 2, dim = 1 }",
                                 "torch.tensor { 1, 2, dim = 1 }"}) {
    CHECK_THAT(error("y = " + list),
               Contains(":7: [model] a list must have the keys 1, 2, ... alone, but got \"dim\": "
                        "named arguments are a table of their own, after the list"));
  }
  CHECK_THAT(error("y = x:to('float23')"), Contains("torch.to"));
  CHECK_THAT(error("y = x:matmul(x)"),
             Contains(":7: [model] torch.matmul(float64[2, 3], float64[2, 3]): ") &&
                 Contains("cannot be multiplied"));
  CHECK_THAT(error("y = torch.nonzero(x)"), Contains(":7: ") && Contains("torch.nonzero"));
  CHECK_THAT(error("y = x:item()"), Contains(":7: [model] torch.item"));
  CHECK_THAT(error("if x < 1 then y = x end"), Contains("compare") || Contains("torch.lt"));
  CHECK_THAT(error("if x < x then y = x end"), Contains(":7: ") && Contains("torch.lt(a, b)"));
  CHECK_THAT(error("if x ~= w then y = x end"), Contains(":7: ") && Contains("torch.eq(a, b)"));
  for (const std::string product : {"x * (x ~= 0)", "(x == 0) - x"}) {
    CHECK_THAT(error("y = " + product),
               Contains(":7: [model] a tensor's operand must be a tensor or a number, but got a "
                        "boolean: comparisons of tensors are functions, torch.ne(a, b)"));
  }
  CHECK_THAT(error("x.name = 1"), Contains(":7: [model] a tensor has no fields to set"));
  CHECK_THAT(error("y = x:size(2)"), Contains("takes a dim of float64[2, 3], counted from 0"));
  CHECK_THAT(error("y = torch.tensor { { 1, 2 }, { 3 } }"), Contains("lists of the same length"));
}

TEST_CASE("an error in a layer shows where the user called it") {
  const auto error = [](const std::string& line) {
    return error_of(
        "local nn = require 'perigee.nn'\n"
        "local Net = nn.Module 'Net'\n"
        "function Net:init() self.fc = nn.Linear(4, 5) end\n"
        "function Net:forward(batch)\n" +
        line + "\nend\nreturn { model = function() return Net() end }");
  };
  CHECK_THAT(error("local y = self.fc(batch.x)\nreturn y"),
             Contains(".lua:5: [model] torch.addmm") && Contains("cannot be multiplied"));
  // A tail call has no stack frame: the error names its line, or the function's first line where it
  // has several tail calls.
  CHECK_THAT(error("\nreturn self.fc(batch.x)"), Contains(".lua:6: [model] torch.addmm"));
  CHECK_THAT(error("return batch.x:softmax('a')"), Contains(".lua:5: [model] torch.softmax"));
  CHECK_THAT(error("if batch then\nreturn self.fc(batch.x)\nend\nreturn self.fc(1)"),
             Contains(".lua:4: [model] torch.addmm"));
}

}  // namespace perigee::test
