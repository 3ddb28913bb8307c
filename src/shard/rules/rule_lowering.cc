#include "shard/rules/rule_lowering.h"

#include "base/error.h"

namespace perigee::shard {

Args RuleLowering::local_args() const {
  Args args = call.node().args;
  size_t next = 0;
  for (auto& [name, arg] : args) {
    if (auto* v = std::get_if<graph::ValueId>(&arg)) {
      if (v->defined()) *v = operands[next++];
    } else if (auto* list = std::get_if<std::vector<graph::ValueId>>(&arg)) {
      for (auto& v : *list) {
        if (v.defined()) v = operands[next++];
      }
    }
  }
  for (const auto& size : pattern.sizes) {
    for (auto& [name, arg] : args) {
      if (name != size.name || std::holds_alternative<std::monostate>(arg)) continue;
      const auto shape = size.of_result
                             ? mesh::local_shape(call.result_shape(size.tensor),
                                                 result_placements[size.tensor], mesh, rank)
                             : type(operands[size.tensor]).shape;
      if (size.dim < 0) {
        arg = shape;
      } else if (std::holds_alternative<std::vector<int64_t>>(arg)) {
        arg = std::vector<int64_t>{shape[size.dim]};
      } else {
        arg = shape[size.dim];
      }
    }
  }
  return args;
}

std::vector<graph::TensorType> RuleLowering::local_types() const {
  std::vector<graph::TensorType> types;
  for (int r = 0; r < call.result_count(); ++r) {
    if (!call.has_result(r)) {
      types.emplace_back();
      continue;
    }
    auto type = call.result_type(r);
    type.shape = mesh::local_shape(type.shape, result_placements[r], mesh, rank);
    types.push_back(std::move(type));
  }
  return types;
}

std::vector<graph::ValueId> RuleLowering::emit(Args args) {
  std::vector<graph::TensorType> types;
  const auto all = local_types();
  for (int r = 0; r < call.result_count(); ++r) {
    if (call.has_result(r)) types.push_back(all[r]);
  }
  const auto& node = call.node();
  auto made = local.add_node(node.op, std::move(args), std::move(types), node.scope, node.phase);
  // add_node makes a result for every type; reinsert the undefined ones.
  std::vector<graph::ValueId> results;
  size_t next = 0;
  for (int r = 0; r < call.result_count(); ++r) {
    results.push_back(call.has_result(r) ? made[next++] : graph::ValueId{});
    if (results.back().defined()) local.values[results.back().index].result = r;
  }
  local.nodes.back().outputs = results;
  return results;
}

std::vector<graph::ValueId> RuleLowering::emit(std::string op, Args args,
                                               std::vector<graph::TensorType> types) {
  const auto& node = call.node();
  return local.add_node(std::move(op), std::move(args), std::move(types), node.scope, node.phase);
}

graph::ValueId RuleLowering::emit(std::string op, Args args, graph::TensorType type) {
  return emit(std::move(op), std::move(args), std::vector{std::move(type)})[0];
}

std::string RuleLowering::axes_of(int operand, int dim) const {
  std::string names;
  const auto& placements = operand_placements[operand];
  for (size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].is_shard() && placements[a].dim == dim) {
      names += (names.empty() ? "" : ",") + mesh.axes[a].name;
    }
  }
  return names;
}

namespace {

// Other dims may be cut in runs.
mesh::Range range_of(const std::vector<int64_t>& shape, mesh::Placements placements, int dim,
                     const mesh::Mesh& mesh, int64_t rank) {
  for (auto& p : placements) {
    if (p.is_shard() && p.dim != dim) p = mesh::Placement::replicate();
  }
  return mesh::local_ranges(shape, placements, mesh, rank)[dim];
}

}  // namespace

mesh::Range RuleLowering::operand_range(int operand, int dim) const {
  return range_of(call.shape(operand), operand_placements[operand], dim, mesh, rank);
}

mesh::Range RuleLowering::result_range(int result, int dim) const {
  return range_of(call.result_shape(result), result_placements[result], dim, mesh, rank);
}

std::vector<mesh::Range> RuleLowering::operand_pieces(int operand, int dim) const {
  return mesh::local_pieces(call.shape(operand), operand_placements[operand], mesh, rank, dim);
}

std::vector<mesh::Range> RuleLowering::result_pieces(int result, int dim) const {
  return mesh::local_pieces(call.result_shape(result), result_placements[result], mesh, rank, dim);
}

}  // namespace perigee::shard
