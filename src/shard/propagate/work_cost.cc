#include "shard/propagate/work_cost.h"

#include <algorithm>

#include "graph/flops.h"
#include "graph/ops.h"

namespace perigee::shard {

using mesh::Placements;

double largest_share(const std::vector<int64_t>& shape, const Placements& placements,
                     const mesh::Mesh& mesh) {
  double share = 1;
  for (size_t a = 0; a < placements.size(); ++a) {
    const auto& p = placements[a];
    if (!p.is_shard() || shape[p.dim] == 0) continue;
    const auto parts = mesh.axes[a].size, size = shape[p.dim];
    share *= p.run != 0
                 ? 1.0 / static_cast<double>(parts)
                 : static_cast<double>((size + parts - 1) / parts) / static_cast<double>(size);
  }
  return share;
}

double rank_flops(const Call& call, const NodeSharding& choice, const mesh::Mesh& mesh) {
  double least = 1;
  for (int i = 0; i < call.operand_count(); ++i) {
    least = std::min(least, largest_share(call.shape(i), choice.operands[i], mesh));
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (!call.has_result(r)) continue;
    least = std::min(least, largest_share(call.result_shape(r), choice.results[r], mesh));
  }
  return least * graph::flops_of(call.graph(), call.node());
}

double work_cost(const Call& call, const NodeSharding& choice, const mesh::Mesh& mesh,
                 const WorkPrices& prices) {
  double bytes = 0;
  const auto count = [&](const graph::TensorType& type, const Placements& placements) {
    bytes += largest_share(type.shape, placements, mesh) * static_cast<double>(type.bytes());
  };
  const auto& op = call.node().op;
  for (int i = 0; i < call.operand_count(); ++i) {
    // Only the looked-up rows of a table are read.
    if (op == "aten::embedding" && call.argument_of(i) == "weight") continue;
    count(call.operand_type(i), choice.operands[i]);
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (call.has_result(r)) count(call.result_type(r), choice.results[r]);
  }
  if (graph::is_view(op) || op == "perigee::reshape") bytes = 0;
  return prices.per_flop * rank_flops(call, choice, mesh) + prices.per_byte * bytes;
}

}  // namespace perigee::shard
