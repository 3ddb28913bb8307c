// Makes one node local: the context of a rule's `lower` function.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "shard/rules/rule.h"

namespace perigee::shard {

using Args = std::vector<std::pair<std::string, graph::Arg>>;

// One node on one rank. Emitted nodes get its scope and phase.
class RuleLowering {
 public:
  const Call& call;  // global types
  const Pattern& pattern;
  const mesh::Mesh& mesh;
  int64_t rank;
  const std::vector<mesh::Placements>& operand_placements;
  const std::vector<mesh::Placements>& result_placements;
  std::vector<graph::ValueId> operands;  // in `local`, with operand_placements
  graph::Graph& local;
  // Values that lowerings of other nodes emitted for reuse, by a key of their content.
  std::map<std::string, graph::ValueId>& shared;

  // Returns the node's arguments with local operands and sizes.
  Args local_args() const;
  // Returns the local types of the defined results; undefined ones have an empty shape.
  std::vector<graph::TensorType> local_types() const;
  // Emits the same op with local_args, changed by the caller, and local types.
  std::vector<graph::ValueId> emit(Args args);
  // Emits a node with these results.
  std::vector<graph::ValueId> emit(std::string op, Args args, std::vector<graph::TensorType> types);
  // Emits a node with one result.
  graph::ValueId emit(std::string op, Args args, graph::TensorType type);
  // Returns the mesh axes on which the operand's dim is sharded.
  std::string axes_of(int operand, int dim) const;
  // Returns the range of the dim that this rank holds of the operand or result. The dim is not cut
  // in runs.
  mesh::Range operand_range(int operand, int dim) const;
  mesh::Range result_range(int result, int dim) const;
  // Returns the ranges of a dim that may be cut zigzag: one or two.
  std::vector<mesh::Range> operand_pieces(int operand, int dim) const;
  std::vector<mesh::Range> result_pieces(int result, int dim) const;
  const graph::TensorType& type(graph::ValueId v) const { return local.type(v); }
};

}  // namespace perigee::shard
