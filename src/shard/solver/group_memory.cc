#include "shard/solver/group_memory.h"

#include <algorithm>
#include <utility>

#include "graph/ops.h"
#include "shard/propagate/work_cost.h"
#include "shard/solver/repeated_blocks.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Input;
using graph::Phase;
using graph::ValueId;

// Readers of a forward value's storage; a view shares the storage of its base.
struct Saved {
  bool within = false, outside = false;  // read by the backward pass of its group; by another group
  double share = 0;                      // fraction saved on a rank
};

class MemoryCounter {
 public:
  MemoryCounter(const Graph& graph, const mesh::Mesh& mesh, const std::vector<int>& groups,
                const ValuePlacements& placements)
      : graph_(graph), mesh_(mesh), groups_(groups), placements_(placements) {
    for (size_t v = 0; v < graph.values.size(); ++v) {
      roots_.push_back(ValueId{static_cast<int32_t>(v)});
      const auto producer = graph.values[v].producer;
      if (producer < 0) continue;
      const auto& node = graph.nodes[producer];
      if (!graph::is_view(node.op) && node.op != "perigee::reshape") continue;
      bool first = true;
      node.each_operand([&](ValueId operand) {
        if (std::exchange(first, false)) roots_.back() = roots_[operand.index];
      });
    }
  }

  void add_parameters(std::vector<GroupMemory>& groups_memory,
                      const std::function<bool(const Input&)>& trains) const {
    const auto first = first_readers(graph_);
    for (const auto& input : graph_.inputs) {
      if (input.kind != Input::Kind::parameter) continue;
      auto& own = groups_memory[groups_[first[input.value.index]]];
      (trains(input) ? own.trained : own.frozen) += bytes_of(input.value, placements_.values);
    }
  }

  void add_values(std::vector<GroupMemory>& groups_memory) const {
    std::vector<Saved> reads(graph_.values.size());
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& node = graph_.nodes[n];
      node.each_operand([&](ValueId v) {
        const auto root = roots_[v.index];
        if (!is_forward(root)) return;
        const bool outside = groups_[graph_.values[root.index].producer] != groups_[n];
        if (node.phase == Phase::forward && !outside) return;
        auto& read = reads[root.index];
        (outside ? read.outside : read.within) = true;
        read.share = std::max(
            read.share, largest_share(graph_.type(v).shape, placements_.saved[v.index], mesh_));
      });
    }
    for (size_t v = 0; v < reads.size(); ++v) {
      const auto& read = reads[v];
      if (!read.within && !read.outside) continue;
      auto& own = groups_memory[groups_[graph_.values[v].producer]];
      (read.outside ? own.read : own.inner) += read.share *
                                               static_cast<double>(graph_.values[v].type.bytes());
    }
  }

  void add_working(std::vector<GroupMemory>& groups_memory) const {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& node = graph_.nodes[n];
      if (graph::is_view(node.op)) continue;
      double bytes = 0;
      node.each_operand([&](ValueId v) {
        if (graph_.values[v.index].producer >= 0) bytes += bytes_of(v, placements_.values);
      });
      for (auto v : node.outputs) {
        if (v.defined()) bytes += bytes_of(v, placements_.values);
      }
      auto& own = groups_memory[groups_[n]];
      own.working = std::max(own.working, bytes);
    }
  }

 private:
  bool is_forward(ValueId v) const {
    const auto producer = graph_.values[v.index].producer;
    return producer >= 0 && graph_.nodes[producer].phase == Phase::forward;
  }
  double bytes_of(ValueId v, const std::vector<mesh::Placements>& placements) const {
    const auto& type = graph_.type(v);
    return largest_share(type.shape, placements[v.index], mesh_) *
           static_cast<double>(type.bytes());
  }

  const Graph& graph_;
  const mesh::Mesh& mesh_;
  const std::vector<int>& groups_;
  const ValuePlacements& placements_;
  std::vector<ValueId> roots_;  // per value
};

}  // namespace

std::vector<GroupMemory> find_group_memory(const Graph& graph, const mesh::Mesh& mesh,
                                           const std::vector<int>& groups, size_t count,
                                           const ValuePlacements& placements,
                                           const std::function<bool(const Input&)>& trains) {
  std::vector<GroupMemory> groups_memory(count);
  const MemoryCounter counter(graph, mesh, groups, placements);
  counter.add_parameters(groups_memory, trains);
  counter.add_values(groups_memory);
  counter.add_working(groups_memory);
  return groups_memory;
}

}  // namespace perigee::shard
