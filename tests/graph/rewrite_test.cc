// Rewrites whose patterns add an incoming gradient to the gradient of an input.
#include "graph/rewrite/rewrite.h"

#include <catch2/catch.hpp>

using namespace perigee;
using namespace perigee::graph;

TEST_CASE("a residual layer is replaced together with its sum of gradients, also in a stack") {
  const std::string inputs =
      "perigee.graph/1\n"
      "input parameter %0: float32[1009, 1013] = x\n"
      "input data %1: float32[1009, 1013] = gradient:y\n";
  const auto replacement =
      inputs +
      "%2: float32[1009, 1013] = perigee::residual(self=%0)   @ forward\n"
      "%3: float32[1009, 1013] = perigee::residual_backward(grad_output=%1, self=%0)   @ backward "
      "of %2\n"
      "output result %2 = y\n"
      "output gradient %3 = x\n";
  const auto stack = parse(R"(perigee.graph/1
scope "" Net
input parameter %0: float32[4, 8] = x
%1: float32[4, 8] = aten::sigmoid(self=%0)   @ forward
%2: float32[4, 8] = aten::add.Tensor(self=%0, other=%1)   @ forward
%3: float32[4, 8] = aten::sigmoid(self=%2)   @ forward
%4: float32[4, 8] = aten::add.Tensor(self=%2, other=%3)   @ forward
%5: float32[] = aten::sum(self=%4)   @ forward
%6: float32[4, 8] = perigee::full(value=1.0)   @ backward of %5
%7: float32[4, 8] = aten::sigmoid_backward(grad_output=%6, output=%3)   @ backward of %3
%8: float32[4, 8] = aten::add.Tensor(self=%6, other=%7)   @ backward of %3
%9: float32[4, 8] = aten::sigmoid_backward(grad_output=%8, output=%1)   @ backward of %1
%10: float32[4, 8] = aten::add.Tensor(self=%8, other=%9)   @ backward of %1
output loss %5 = loss
output gradient %10 = x
)");
  verify(stack);
  for (const std::string terms : {"self=%1, other=%4", "self=%4, other=%1"}) {
    INFO(terms);
    const auto pattern =
        inputs +
        "%2: float32[1009, 1013] = aten::sigmoid(self=%0)   @ forward\n"
        "%3: float32[1009, 1013] = aten::add.Tensor(self=%0, other=%2)   @ forward\n"
        "%4: float32[1009, 1013] = aten::sigmoid_backward(grad_output=%1, output=%2)   @ backward "
        "of %2\n"
        "%5: float32[1009, 1013] = aten::add.Tensor(" +
        terms +
        ")   @ backward of %2\n"
        "output result %3 = y\n"
        "output gradient %5 = x\n";
    Rewritten done;
    const auto graph = rewrite(stack, parse_rewrite("residual", pattern, replacement), done);
    CHECK(done.count == 2);
    CHECK(done.refused.empty());
    CHECK(print(renumber(graph)) == R"(perigee.graph/1
scope "" Net
input parameter %0: float32[4, 8] = x
%1: float32[4, 8] = perigee::residual(self=%0)   @ forward
%2: float32[4, 8] = perigee::residual(self=%1)   @ forward
%3: float32[] = aten::sum(self=%2)   @ forward
%4: float32[4, 8] = perigee::full(value=1.0)   @ backward of %3
%5: float32[4, 8] = perigee::residual_backward(grad_output=%4, self=%1)   @ backward of %2
%6: float32[4, 8] = perigee::residual_backward(grad_output=%5, self=%0)   @ backward of %1
output loss %3 = loss
output gradient %6 = x
)");
  }
}

TEST_CASE("a layer whose gradient adds an incoming gradient that its ops do not read stays") {
  const std::string pattern = R"(perigee.graph/1
input parameter %0: float32[1009, 1013] = x
input parameter %1: float32[1009, 1013] = r
input data %2: float32[1009, 1013] = gradient:y
input data %3: float32[1009, 1013] = gradient:sum
%4: float32[1009, 1013] = aten::add.Tensor(self=%0, other=%1)   @ forward
%5: float32[1009, 1013] = aten::sigmoid(self=%4)   @ forward
%6: float32[1009, 1013] = aten::neg(self=%5)   @ forward
%7: float32[1009, 1013] = aten::neg(self=%2)   @ backward of %6
%8: float32[1009, 1013] = aten::sigmoid_backward(grad_output=%7, output=%5)   @ backward of %5
%9: float32[1009, 1013] = aten::add.Tensor(self=%3, other=%8)   @ backward of %5
output result %6 = y
output result %4 = sum
output gradient %9 = x
output gradient %9 = r
)";
  const auto net = parse(R"(perigee.graph/1
scope "" Net
input parameter %0: float32[4, 8] = x
input parameter %1: float32[4, 8] = r
%2: float32[4, 8] = aten::add.Tensor(self=%0, other=%1)   @ forward
%3: float32[4, 8] = aten::sigmoid(self=%2)   @ forward
%4: float32[4, 8] = aten::neg(self=%3)   @ forward
%5: float32[4, 8] = aten::add.Tensor(self=%2, other=%4)   @ forward
%6: float32[] = aten::sum(self=%5)   @ forward
%7: float32[4, 8] = perigee::full(value=1.0)   @ backward of %6
%8: float32[4, 8] = aten::neg(self=%7)   @ backward of %4
%9: float32[4, 8] = aten::sigmoid_backward(grad_output=%8, output=%3)   @ backward of %3
%10: float32[4, 8] = aten::add.Tensor(self=%7, other=%9)   @ backward of %3
output loss %6 = loss
output gradient %10 = x
output gradient %10 = r
)");
  verify(net);
  Rewritten done;
  const auto graph = rewrite(net, parse_rewrite("negative", pattern, pattern), done);
  CHECK(done.count == 0);
  CHECK(done.refused ==
        std::vector<std::string>{": the gradient of \"x\" adds an input that is no operand of the "
                                 "ops that make its other parts"});
  CHECK(graph == net);
}
