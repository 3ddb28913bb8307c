#include "compile/ranks/signatures.h"

#include <fmt/format.h>

#include "base/parallel.h"

namespace perigee::compile {

Signatures::Signatures(const plan::Plan& plan, const shard::Sharding& sharding,
                       const graph::Graph& graph)
    : plan_(plan), matters_(plan.mesh.axes.size()) {
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
      // Placements with runs are always cut evenly.
      if (!placement.is_shard() || placement.dim != static_cast<int>(d) || placement.run != 0) {
        continue;
      }
      cut.axes.push_back(static_cast<int>(a));
      parts *= plan_.mesh.axes[a].size;
    }
    if (shape[d] % parts != 0) cuts_.insert(std::move(cut));
  }
}

void Signatures::find_places(const std::function<std::string(int64_t)>& local) {
  const auto& mesh = plan_.mesh;
  const auto at = [&](int64_t position) {
    return local(mesh.order.empty() ? position : mesh.order[position]);
  };
  std::vector<size_t> axes;
  std::vector<int64_t> strides, positions{0};  // of the first rank, and of the last on each axis
  int64_t stride = 1;
  for (size_t a = 0; a < mesh.axes.size(); ++a) {
    const auto& axis = mesh.axes[a];
    if (axis.size > 1 && axis.name != plan_.pipeline.axis) {
      axes.push_back(a);
      strides.push_back(stride);
      positions.push_back(stride * (axis.size - 1));
    }
    stride *= axis.size;
  }
  if (axes.empty()) return;
  std::vector<std::string> found(positions.size());
  in_parallel(positions.size(), [&](size_t k) { found[k] = at(positions[k]); });
  for (size_t k = 0; k < axes.size(); ++k) {
    // Parts of uneven cuts are the shortest on the last rank, which counts as a difference:
    // equivalent ranks may be distinguished, different ranks are never merged.
    const auto& last = found[k + 1];
    if (last == found.front()) continue;
    const bool differ = mesh.axes[axes[k]].size > 2 && at(strides[k]) != last;
    matters_[axes[k]] = differ ? Matters::each : Matters::first;
  }
}

std::string Signatures::without_stage(int64_t rank) const {
  const auto position = mesh::coordinates(plan_.mesh, rank);
  std::string text;
  for (size_t a = 0; a < position.size(); ++a) {
    if (matters_[a] == Matters::first) text += position[a] == 0 ? 'f' : 'o';
    if (matters_[a] == Matters::each) text += fmt::format(" {}={}", a, position[a]);
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
