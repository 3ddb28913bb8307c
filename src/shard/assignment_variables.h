// The variables of an assignment (assignment.h): what is to be chosen for a graph on the axes that
// are planned. Placements are on these axes, in their order, where nothing else is said.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"
#include "shard/assignment.h"
#include "shard/key.h"
#include "shard/partition.h"
#include "shard/redistribute.h"
#include "shard/ways.h"

namespace perigee::shard {

// Where a value lies. With a piece it is whole on some axes where the piece is sharded, and the
// backward pass gathers it again.
struct State {
  mesh::Placements lies;
  mesh::Placements piece = {};  // empty: none
  const mesh::Placements& kept() const { return piece.empty() ? lies : piece; }
};

// An op of the problem: a node that takes one of its ways, or a value in one of its states.
struct Variable {
  std::string name;
  size_t node = 0;            // its ways; of a value: what makes it
  std::vector<State> states;  // empty: a node
  graph::ValueId value = {};  // one of those that it stands for
  std::vector<double> time;   // per option
};

// What the variables are made of; all of it must outlive them.
struct AssignmentInputs {
  const graph::Graph& graph;
  const plan::Plan& plan;
  const std::vector<int>& axes;  // that are planned
  const AssignmentOptions& options;
  const Sharding& base;  // how all lies on the other axes
  const Ways& ways;
  const std::vector<size_t>& stands_for;  // per node (alike.h)
};

class Variables {
 public:
  Variables(const AssignmentInputs& inputs, Redistributor& redistributor,
            PlacementNumbers& numbers);

  const Variable& at(int variable) const { return list_[variable]; }
  Variable& at(int variable) { return list_[variable]; }
  int size() const { return static_cast<int>(list_.size()); }
  int of_node(size_t node) const { return of_node_[node]; }
  // Returns the variable that says where the value lies, or -1: as it comes.
  int of_value(graph::ValueId v) const { return settled_[v.index]; }
  // The same for a value of the forward pass in the backward pass.
  int of_value_again(graph::ValueId v) const { return again_[v.index]; }

  bool is_forward(graph::ValueId v) const;
  // Returns how often a node runs.
  double runs_of(size_t node) const;
  // Whether the node is a view in the forward pass that the backward pass reads, itself or by views
  // of it.
  bool is_kept_view(size_t node) const { return kept_views_[node]; }
  // Returns those of the axes that are planned.
  mesh::Placements on_axes(const mesh::Placements& all) const;
  // Returns the value's placements on all axes, these on the planned ones.
  mesh::Placements placed(graph::ValueId v, const mesh::Placements& on_axes) const;

 private:
  void find_pins();
  void add_nodes();
  void find_uses();
  void add_values();
  void add_class(const std::vector<graph::ValueId>& members);
  void add_pieces(std::vector<State>& states, const mesh::Placements& lies) const;
  bool obeys(const State& state, graph::ValueId v) const;
  void keep(int variable, const std::vector<graph::ValueId>& members);
  double bytes_of(graph::ValueId v) const;
  double share_on_axes(const mesh::Placements& placements) const;
  int add_variable(graph::ValueId v, std::vector<State> states);
  void add_parameters();
  std::vector<State> states_of(graph::ValueId v) const;
  bool fits(const graph::TensorType& type, const mesh::Placements& placements, int dim) const;
  double price_of_gathering(graph::ValueId v, const State& state);

  const graph::Graph& graph_;
  const plan::Plan& plan_;
  const std::vector<int>& axes_;
  const AssignmentOptions& options_;
  const Sharding& base_;
  const Ways& ways_;
  const std::vector<size_t>& stands_for_;
  Redistributor& redistributor_;
  PlacementNumbers& numbers_;
  std::vector<Variable> list_;
  std::vector<mesh::Placements> pinned_;           // per value: empty where nothing is
  std::vector<int> of_node_;                       // per node
  std::vector<int> settled_, again_;               // per value: variables, or -1
  std::vector<int> forward_uses_, backward_uses_;  // per value
  std::vector<bool> kept_views_;                   // per node
  std::vector<std::vector<std::pair<size_t, size_t>>> readers_;  // per value: nodes, operands
};

}  // namespace perigee::shard
