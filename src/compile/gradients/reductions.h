// When a microbatch's results are reduced over ranks.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "compile/draft/draft.h"
#include "graph/graph.h"
#include "graph/ops.h"

namespace perigee::compile {

// The reductions of a microbatch's gradients. All ranks start reductions, the graph's collectives
// and units' all-gathers in one order: by the node that each follows in the graph that all ranks
// share. A rank whose part is ready earlier still starts it in that order.
class Reductions {
 public:
  // Appends the instructions of one reduction.
  using Start = std::function<void(std::vector<DraftInstruction>&)>;

  // `nodes`: those of the section, in order. `gathers`: the nodes before which a unit is
  // gathered, ascending.
  Reductions(const graph::Graph& graph, const std::vector<graph::NodeId>& nodes,
             const std::vector<graph::NodeId>& gathers = {})
      : graph_(graph), runs_(graph.nodes.size()) {
    for (auto id : nodes) {
      runs_[id] = true;
      if (graph::is_collective(graph.nodes[id].op)) collectives_.push_back(id);
    }
    // An all-gather before a node follows the preceding node.
    for (auto id : gathers) collectives_.push_back(id == kEnd ? kEnd : id - 1);
    std::sort(collectives_.begin(), collectives_.end());
    collectives_.push_back(kEnd);
  }

  static constexpr graph::NodeId kEnd = std::numeric_limits<graph::NodeId>::max();

  // Returns the node that makes the value; kEnd where none of this section does.
  graph::NodeId maker(graph::ValueId v) const {
    const auto producer = graph_.values[v.index].producer;
    return producer >= 0 && runs_[producer] ? producer : kEnd;
  }

  // Announces a reduction after the node, before any has begun; returns its number for `ready`.
  size_t add(graph::NodeId last_maker) {
    queue_.insert({last_maker, start_.size()});
    start_.emplace_back();
    return start_.size() - 1;
  }

  // Called when the operands of reduction `number` are ready. Appends all reductions that may start
  // now in the common order.
  void ready(size_t number, Start start, std::vector<DraftInstruction>& out) {
    start_[number] = std::move(start);
    run(out);
  }

  // Called when a collective of the graph, or an all-gather of a unit, has started.
  void passed(std::vector<DraftInstruction>& out) {
    ++passed_;
    run(out);
  }

 private:
  void run(std::vector<DraftInstruction>& out) {
    while (!queue_.empty()) {
      const auto [last_maker, number] = *queue_.begin();
      if (!start_[number] || last_maker > collectives_[passed_]) return;
      start_[number](out);
      queue_.erase(queue_.begin());
    }
  }

  const graph::Graph& graph_;
  std::vector<bool> runs_;                  // by node
  std::vector<graph::NodeId> collectives_;  // and all-gathers: the node that each follows
  size_t passed_ = 0;
  std::set<std::pair<graph::NodeId, size_t>> queue_;
  std::vector<Start> start_;  // by number; empty: not ready
};

}  // namespace perigee::compile
