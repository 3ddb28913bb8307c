#include "tests/shard/support.h"

#include "base/fail.h"
#include "graph/ops.h"

namespace perigee::shard {

plan::Plan plan_for(const graph::Graph& graph, std::string_view axes,
                    const std::map<std::string, std::string>& placements) {
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(graph);
  plan.mesh = mesh::parse_axes(axes);
  for (const auto& [name, text] : placements) {
    plan.placements[name] = mesh::parse_placements(text);
  }
  plan::verify(plan, graph);
  return plan;
}

LocalGraph local_graph(const graph::Graph& graph, const plan::Plan& plan, int64_t rank) {
  return partition(graph, propagate(graph, plan), plan, rank);
}

std::string collectives(const graph::Graph& graph) {
  std::string text;
  for (const auto& node : graph.nodes) {
    if (!graph::is_collective(node.op)) continue;
    if (!text.empty()) text += ' ';
    text += fmt::format("{}({})", node.op.substr(6), node.get<std::string>("axis", ""));
  }
  return text;
}

std::string placement(const graph::Graph& graph, const Sharding& sharding, std::string_view name) {
  const auto names = graph::value_names(graph);
  for (size_t v = 0; v < names.size(); ++v) {
    if (names[v] == name) return mesh::to_string(sharding.values[v]);
  }
  fail("test", "no value is named \"{}\"", name);
}

graph::Graph mlp() {
  return graph::parse(R"(perigee.graph/1
scope "" Net
scope fc1 Linear
scope fc2 Linear
input data %0: float64[8, 4] = x
input parameter %1: float64[4, 6] = fc1.weight
input parameter %2: float64[6] = fc1.bias
input parameter %3: float64[6, 4] = fc2.weight
%4: float64[8, 6] = aten::addmm(self=%2, mat1=%0, mat2=%1)   @fc1 forward
%5: float64[8, 6] = aten::relu(self=%4)   @fc1 forward
%6: float64[8, 4] = aten::mm(self=%5, mat2=%3)   @fc2 forward
%7: float64[] = aten::mean(self=%6)   @ forward
%8: float64[] = perigee::full(value=1.0)   @ backward of %7
%9: float64[8, 4] = perigee::expand(self=%8)   @ backward of %7
%10: float64[8, 4] = aten::div.Scalar(self=%9, other=32.0)   @ backward of %7
%11: float64[6, 8] = aten::t(self=%5)   @fc2 backward of %6
%12: float64[6, 4] = aten::mm(self=%11, mat2=%10)   @fc2 backward of %6
%13: float64[4, 6] = aten::t(self=%3)   @fc2 backward of %6
%14: float64[8, 6] = aten::mm(self=%10, mat2=%13)   @fc2 backward of %6
%15: float64[8, 6] = aten::threshold_backward(grad_output=%14, self=%5, threshold=0)   @fc1 backward of %5
%16: float64[4, 8] = aten::t(self=%0)   @fc1 backward of %4
%17: float64[4, 6] = aten::mm(self=%16, mat2=%15)   @fc1 backward of %4
%18: float64[6] = aten::sum.dim_IntList(self=%15, dim=[0])   @fc1 backward of %4
output loss %7 = loss
output gradient %17 = fc1.weight
output gradient %18 = fc1.bias
output gradient %12 = fc2.weight
)");
}

}  // namespace perigee::shard
