// The variables of an assignment (assignment.h). Placements are on the planned axes, in their
// order, unless said otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"
#include "shard/partition.h"
#include "shard/propagate/content_key.h"
#include "shard/redistribute.h"
#include "shard/solver/assignment.h"
#include "shard/solver/sharding_options.h"

namespace perigee::shard {

// The placements of a value. With a `shard` the value is whole on some axes where the shard is cut:
// the shard is saved, and the backward pass re-gathers it.
struct ValueState {
  mesh::Placements placements;
  mesh::Placements shard = {};  // empty: none
  const mesh::Placements& saved() const { return shard.empty() ? placements : shard; }
};

// A variable of the problem: a node, which takes one of its sharding options, or a value, which
// takes one of its states.
struct AssignmentVariable {
  std::string name;
  size_t node = 0;                 // the node; of a value: its producer
  std::vector<ValueState> states;  // empty for a node
  graph::ValueId value = {};       // one of the values that it represents
  std::vector<double> time;        // cost of each option
};

// The inputs of AssignmentVariables, which must outlive it.
struct AssignmentInputs {
  const graph::Graph& graph;
  const plan::Plan& plan;
  const std::vector<int>& axes;  // that are planned
  const AssignmentOptions& options;
  const Sharding& base;  // the sharding on the other axes
  const ShardingOptions& node_options;
  const std::vector<size_t>& representative;  // per node (repeated_blocks.h)
};

class AssignmentVariables {
 public:
  AssignmentVariables(const AssignmentInputs& inputs, Redistributor& redistributor,
                      PlacementNumbers& numbers);

  const AssignmentVariable& at(int variable) const { return list_[variable]; }
  AssignmentVariable& at(int variable) { return list_[variable]; }
  int size() const { return static_cast<int>(list_.size()); }
  int of_node(size_t node) const { return of_node_[node]; }
  // Returns the variable of the value's placements, or -1: it has those of its producer's result.
  int of_value(graph::ValueId v) const { return variable_of_value_[v.index]; }
  // Returns the variable of a forward value's placements in the backward pass, or -1.
  int of_value_in_backward(graph::ValueId v) const { return backward_variable_of_value_[v.index]; }

  bool is_forward(graph::ValueId v) const;
  // Returns how often a node runs.
  double runs_of(size_t node) const;
  // Returns whether the node is a view in the forward pass that the backward pass reads, directly
  // or through other views.
  bool is_saved_view(size_t node) const { return saved_views_[node]; }
  // Returns the placements on the planned axes.
  mesh::Placements on_axes(const mesh::Placements& all) const;
  // Returns the value's placements on all axes: `on_axes` on the planned ones, its base on
  // the others.
  mesh::Placements placed(graph::ValueId v, const mesh::Placements& on_axes) const;

 private:
  void find_pins();
  void add_nodes();
  void find_uses();
  void add_values();
  void add_class(const std::vector<graph::ValueId>& members);
  void add_sharded_states(std::vector<ValueState>& states, const mesh::Placements& shard) const;
  bool obeys(const ValueState& state, graph::ValueId v) const;
  void add_saved_cost(int variable, const std::vector<graph::ValueId>& members);
  double bytes_of(graph::ValueId v) const;
  double share_on_axes(const mesh::Placements& placements) const;
  int add_variable(graph::ValueId v, std::vector<ValueState> states);
  void add_parameters();
  std::vector<ValueState> states_of(graph::ValueId v) const;
  bool fits(const graph::TensorType& type, const mesh::Placements& placements, int dim) const;
  double price_of_gathering(graph::ValueId v, const ValueState& state);

  const graph::Graph& graph_;
  const plan::Plan& plan_;
  const std::vector<int>& axes_;
  const AssignmentOptions& options_;
  const Sharding& base_;
  const ShardingOptions& node_options_;
  const std::vector<size_t>& representative_;
  Redistributor& redistributor_;
  PlacementNumbers& numbers_;
  std::vector<AssignmentVariable> list_;
  std::vector<mesh::Placements> pinned_;                             // per value; empty: no pin
  std::vector<int> of_node_;                                         // per node
  std::vector<int> variable_of_value_, backward_variable_of_value_;  // per value: variables, or -1
  std::vector<int> forward_uses_, backward_uses_;                    // per value
  std::vector<bool> saved_views_;                                    // per node
  // per value: nodes and operand positions
  std::vector<std::vector<std::pair<size_t, size_t>>> readers_;
};

}  // namespace perigee::shard
