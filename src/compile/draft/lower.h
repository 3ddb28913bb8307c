// Lowers nodes of a local graph to instructions on a draft's values: views become addresses, ops
// get their allocations.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/draft/draft.h"
#include "compile/trace.h"
#include "graph/graph.h"
#include "mesh/mesh.h"

namespace perigee::compile {

// Returns whether the op's result has the elements of its first operand: views, and reshapes (which
// keep row-major order and may copy).
bool shows_operand(const std::string& op);
// Returns whether such an op copies where the layouts require it.
bool may_copy(const std::string& op);

class Lowering {
 public:
  // `names` are graph::value_names. All are kept by reference.
  Lowering(Draft& draft, const graph::Graph& graph, const std::vector<std::string>& names,
           const mesh::Mesh& mesh, TraceSource& traces);

  // Sets the program value of a graph value (an input, an average).
  void set(graph::ValueId v, ValueId value) { values_[v.index] = value; }
  // Returns the program value, or undefined where none was set.
  ValueId get(graph::ValueId v) const { return values_[v.index]; }
  // Counts a use of the value by a node of this section or after it.
  void count_use(graph::ValueId v) { ++uses_[v.index]; }
  int uses(graph::ValueId v) const { return uses_[v.index]; }

  // Makes the op that produces `v` write it to `target` (same type, contiguous) in the runs `when`;
  // in other runs it writes a new value.
  void direct(graph::ValueId v, ValueId target, uint8_t when = kAlways);
  // Returns whether the value is written to its target; valid after run() of its node.
  bool is_direct(graph::ValueId v) const { return directs_[v.index].done; }

  // Appends the node's instructions.
  void run(graph::NodeId node, std::vector<DraftInstruction>& out);

 private:
  struct Direct {
    ValueId target;
    uint8_t when = 0;
    bool done = false;
  };

  void run_view(const graph::Node& node);
  // lower_collective.cc
  void run_collective(const graph::Node& node, std::vector<DraftInstruction>& out);
  void run_op(const graph::Node& node, std::vector<DraftInstruction>& out);
  // Returns the op's allocations: from its trace, else its results one by one, by the layout rules.
  OpTrace trace_of(const OpInstance& instance, bool& recorded);
  ValueId operand(const graph::Node& node, graph::ValueId v) const;

  Draft& draft_;
  const graph::Graph& graph_;
  const std::vector<std::string>& names_;
  const mesh::Mesh& mesh_;
  TraceSource& traces_;
  std::vector<ValueId> values_;
  std::vector<int> uses_;
  std::vector<Direct> directs_;
  struct Known {
    OpTrace trace;
    bool recorded = false;
  };
  std::map<std::string, Known> known_;
};

}  // namespace perigee::compile
