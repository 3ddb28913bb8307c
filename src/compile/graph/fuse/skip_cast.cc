#include "compile/graph/fuse/skip_cast.h"

#include <cstddef>

#include "graph/ops.h"

namespace perigee::compile {

using graph::Node;
using graph::ValueId;

ValueId skip_cast(graph::Graph& graph, const std::vector<int>& readers, ValueId v,
                  std::optional<graph::DType> from) {
  const auto producer = [&](ValueId made) {
    const auto n = graph.values[made.index].producer;
    return n < 0 ? nullptr : &graph.nodes[static_cast<size_t>(n)];
  };
  std::vector<Node*> views;  // the last one first
  ValueId wide = v;
  auto* maker = producer(wide);
  while (maker && readers[wide.index] == 1 && maker->outputs.size() == 1 &&
         (graph::is_view(maker->op) || maker->op == "perigee::reshape")) {
    views.push_back(maker);
    wide = maker->get<ValueId>("self", {});
    maker = producer(wide);
  }
  if (!maker || readers[wide.index] != 1 || maker->op != "perigee::cast") return {};
  const auto low = maker->get<ValueId>("self", {});
  const auto dtype = graph.type(low).dtype;
  if (graph.type(wide).dtype != graph::DType::float32 || !graph::is_half(dtype) ||
      from.value_or(dtype) != dtype) {
    return {};
  }
  if (views.empty()) return low;
  for (auto* view : views) graph.values[view->outputs[0].index].type.dtype = dtype;
  views.back()->each_operand([&](ValueId& operand) {
    if (operand == wide) operand = low;
  });
  return v;
}

}  // namespace perigee::compile
