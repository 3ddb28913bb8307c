// A plan's JSON (plan/plan.h), also checked against a graph.
#include "graph/graph.h"
#include "plan/plan.h"
#include "tests/fuzz/target.h"

using namespace perigee;

namespace {

const graph::Graph& small_graph() {
  static const graph::Graph graph = graph::parse(R"(perigee.graph/1
scope "" Net
scope head Linear
input parameter %0: float32[4, 8] = head.weight
input data %1: float32[2, 8] = x
%2: float32[8, 4] = aten::t(self=%0)   @head forward
%3: float32[2, 4] = aten::mm(self=%1, mat2=%2)   @head forward
%4: float32[] = aten::sum(self=%3)   @ forward
%5: float32[2, 4] = perigee::full(value=1.0)   @ backward of %4
%6: float32[4, 2] = aten::t(self=%5)   @head backward of %3
%7: float32[4, 8] = aten::mm(self=%6, mat2=%1)   @head backward of %3
output loss %4 = loss
output gradient %7 = head.weight
)");
  return graph;
}

}  // namespace

PERIGEE_FUZZ_TARGET(plan) {
  auto plan = plan::parse(input, "plan.json");
  const auto text = plan::print(plan);
  const auto again = fuzz::accepted("a printed plan is refused", [&] { return plan::parse(text); });
  fuzz::require(again == plan, "a printed plan is another plan");
  plan::explain(plan);
  plan.graph_hash = graph::structural_hash(small_graph());
  plan::verify(plan, small_graph());
}
