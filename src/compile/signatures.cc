#include "compile/signatures.h"

#include <fmt/format.h>

namespace perigee::compile {

Signatures::Signatures(const plan::Plan& plan, const shard::Sharding& sharding,
                       const graph::Graph& graph)
    : plan_(plan), first_matters_(plan.mesh.axes.size()) {
  for (size_t v = 0; v < sharding.values.size(); ++v) {
    add(graph.values[v].type.shape, sharding.values[v]);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    size_t next = 0;
    node.each_operand([&](graph::ValueId v) {
      if (next < sharding.operands[n].size()) add(graph.type(v).shape, sharding.operands[n][next]);
      ++next;
    });
    for (size_t k = 0; k < node.outputs.size() && k < sharding.results[n].size(); ++k) {
      if (node.outputs[k].defined()) add(graph.type(node.outputs[k]).shape, sharding.results[n][k]);
    }
  }
}

void Signatures::add(const std::vector<int64_t>& shape, const mesh::Placements& placements) {
  for (size_t d = 0; d < shape.size(); ++d) {
    Cut cut{shape[d], {}};
    int64_t parts = 1;
    for (size_t a = 0; a < placements.size(); ++a) {
      const auto& placement = placements[a];
      // Runs are cut evenly.
      if (!placement.is_shard() || placement.dim != static_cast<int>(d) || placement.run != 0) {
        continue;
      }
      cut.axes.push_back(static_cast<int>(a));
      parts *= plan_.mesh.axes[a].size;
    }
    if (shape[d] % parts != 0) cuts_.insert(std::move(cut));
  }
}

void Signatures::find_first_ranks(const std::function<std::string(int64_t)>& local) {
  const auto& mesh = plan_.mesh;
  const auto rank_at = [&](int64_t position) {
    return mesh.order.empty() ? position : mesh.order[position];
  };
  std::string first;
  int64_t stride = 1;
  for (size_t a = 0; a < mesh.axes.size(); ++a) {
    const auto& axis = mesh.axes[a];
    if (axis.size > 1 && axis.name != plan_.pipeline.axis) {
      if (first.empty()) first = local(rank_at(0));
      // The last rank of the axis: parts of uneven cuts are the shortest there, which counts as a
      // difference; that tells ranks apart that need not be, and never the other way round.
      first_matters_[a] = local(rank_at(stride * (axis.size - 1))) != first;
    }
    stride *= axis.size;
  }
}

std::string Signatures::without_stage(int64_t rank) const {
  const auto position = mesh::coordinates(plan_.mesh, rank);
  std::string text;
  for (size_t a = 0; a < position.size(); ++a) {
    if (first_matters_[a]) text += position[a] == 0 ? 'f' : 'o';
  }
  for (const auto& cut : cuts_) {
    int64_t length = cut.size;
    for (auto axis = cut.axes.rbegin(); axis != cut.axes.rend(); ++axis) {
      length = mesh::split(length, plan_.mesh.axes[*axis].size, position[*axis]).length;
    }
    text += fmt::format(" {}", length);
  }
  return text;
}

std::string Signatures::with_stage(int64_t rank) const {
  auto text = without_stage(rank);
  if (!plan_.pipeline.cuts()) return text;
  const auto position = mesh::coordinates(plan_.mesh, rank);
  return text + fmt::format(" stage {}", position[plan_.mesh.find(plan_.pipeline.axis)]);
}

}  // namespace perigee::compile
