#include "compile/graph/fuse/fold_casts.h"

#include "compile/graph/fuse/readers.h"

namespace perigee::compile {

using graph::DType;
using graph::Graph;
using graph::ValueId;

Graph fold_casts(Graph graph) {
  const auto readers = count_readers(graph);
  // Returns what a cast to float32 that has one reader casts, if it has a low precision.
  const auto source_of = [&](ValueId v) {
    const auto producer = graph.values[v.index].producer;
    if (producer < 0 || readers[v.index] != 1) return ValueId{};
    const auto& node = graph.nodes[producer];
    if (node.op != "perigee::cast") return ValueId{};
    const auto source = node.get<ValueId>("self", {});
    return graph::is_half(graph.type(source).dtype) ? source : ValueId{};
  };
  for (auto& node : graph.nodes) {
    if (node.op != "aten::add.Tensor" || node.args.size() != 2) continue;
    const auto a = node.get<ValueId>("self", {}), b = node.get<ValueId>("other", {});
    if (!a.defined() || !b.defined()) continue;
    const auto is_wide = [&](ValueId v) {
      // The type of a tensor without dims does not count where another one has dims.
      return graph.type(v).dtype == DType::float32 && !graph.type(v).shape.empty();
    };
    if (!is_wide(a) || !is_wide(b)) continue;
    // Not both: the sum of two in the low precision would have it, too.
    const auto other = source_of(b);
    const auto folded = other.defined() ? other : source_of(a);
    if (!folded.defined()) continue;
    for (auto& [name, arg] : node.args) {
      if (name == (other.defined() ? "other" : "self")) arg = folded;
    }
  }
  return graph::eliminate_dead_code(std::move(graph));
}

}  // namespace perigee::compile
