#include "shard/solver/group_memory.h"

#include <algorithm>
#include <map>
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

// Readers of a forward value on another stage than its producer's.
struct Received {
  int group = -1;      // the first that reads it
  bool saved = false;  // read after that group's forward pass
  double share = 0;
};

class MemoryCounter {
 public:
  MemoryCounter(const Graph& graph, const mesh::Mesh& mesh, const std::vector<int>& groups,
                const std::vector<int>& stages, const ValuePlacements& placements)
      : graph_(graph), mesh_(mesh), groups_(groups), stages_(stages), placements_(placements) {
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
    std::map<std::pair<size_t, int>, Received> received;  // by value and stage
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto& node = graph_.nodes[n];
      node.each_operand([&](ValueId v) {
        const auto root = roots_[v.index];
        if (!is_forward(root)) return;
        const int own = groups_[graph_.values[root.index].producer], here = groups_[n];
        const double share = largest_share(graph_.type(v).shape, placements_.saved[v.index], mesh_);
        if (stages_[own] != stages_[here]) {
          auto& read = received[{root.index, stages_[here]}];
          if (read.group < 0) read.group = here;
          read.saved = read.saved || node.phase == Phase::backward || read.group != here;
          read.share = std::max(read.share, share);
          return;
        }
        const bool outside = own != here;
        if (node.phase == Phase::forward && !outside) return;
        auto& read = reads[root.index];
        (outside ? read.outside : read.within) = true;
        read.share = std::max(read.share, share);
      });
    }
    for (size_t v = 0; v < reads.size(); ++v) {
      const auto& read = reads[v];
      if (!read.within && !read.outside) continue;
      auto& own = groups_memory[groups_[graph_.values[v].producer]];
      (read.outside ? own.read : own.inner) += read.share *
                                               static_cast<double>(graph_.values[v].type.bytes());
    }
    for (const auto& [at, read] : received) {
      if (!read.saved) continue;
      groups_memory[read.group].read += read.share *
                                        static_cast<double>(graph_.values[at.first].type.bytes());
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
  const std::vector<int>& stages_;  // per group
  const ValuePlacements& placements_;
  std::vector<ValueId> roots_;  // per value
};

}  // namespace

std::vector<GroupMemory> find_group_memory(const Graph& graph, const mesh::Mesh& mesh,
                                           const std::vector<int>& groups,
                                           const std::vector<int>& stages,
                                           const ValuePlacements& placements,
                                           const std::function<bool(const Input&)>& trains) {
  std::vector<GroupMemory> groups_memory(stages.size());
  const MemoryCounter counter(graph, mesh, groups, stages, placements);
  counter.add_parameters(groups_memory, trains);
  counter.add_values(groups_memory);
  counter.add_working(groups_memory);
  return groups_memory;
}

}  // namespace perigee::shard
