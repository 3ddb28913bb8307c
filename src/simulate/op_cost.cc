#include "simulate/op_cost.h"

#include <algorithm>

#include "compile/draft/collective.h"

namespace perigee::simulate {

using compile::Instruction;
using graph::ValueId;

compile::OpInstance instance_of(const compile::Program& program, const Instruction& instruction) {
  compile::OpInstance instance{.op = instruction.op, .args = instruction.args};
  int32_t next = 0;
  const auto add = [&](ValueId& v) {
    if (!v.defined()) return;
    const auto& value = program.values[v.index];
    instance.operands.push_back(value.type);
    instance.operand_strides.push_back(value.strides);
    v.index = next++;
  };
  for (auto& [name, arg] : instance.args) {
    if (auto* v = std::get_if<ValueId>(&arg)) {
      add(*v);
    } else if (auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      for (auto& v : *list) add(v);
    }
  }
  if (instruction.in_place) return instance;
  for (auto v : instruction.outputs) {
    instance.outputs.push_back(v.defined() ? std::optional(program.values[v.index].type)
                                           : std::nullopt);
  }
  return instance;
}

cost::OpWork work_of(const compile::OpInstance& instance) {
  graph::Graph one;
  for (const auto& type : instance.operands) one.add_value(type);
  graph::Node node{.op = instance.op, .args = instance.args};
  for (const auto& type : instance.outputs) {
    node.outputs.push_back(type ? one.add_value(*type) : ValueId{});
  }
  return cost::work_of(one, node);
}

Exchange exchange_of(const compile::Program& program, const Instruction& instruction,
                     const mesh::Mesh& mesh, int64_t rank) {
  Exchange exchange;
  exchange.copies = compile::is_copy(instruction.op);
  exchange.kind = exchange.copies ? cost::CollectiveKind::message
                                  : cost::collective_kind(instruction.op);
  exchange.stream = program.streams[instruction.stream];
  exchange.ranks = exchange.copies ? std::vector<int64_t>{rank}
                                   : compile::ranks_of(mesh, exchange.stream, rank);
  const auto bytes = [&](ValueId v) {
    return static_cast<double>(program.values[v.index].type.bytes());
  };
  const bool of_result = instruction.op == "comm::all_gather" ||
                         instruction.op == "comm::receive" || instruction.op == "host::fetch";
  const graph::Node node{.op = instruction.op, .args = instruction.args};
  if (instruction.op == "comm::barrier") {
    exchange.bytes = 1;
  } else if (of_result) {
    exchange.bytes = bytes(instruction.outputs.front());
  } else if (instruction.op == "comm::exchange") {
    // One side has the tokens' rows, the other has room for the most rows that can arrive.
    exchange.bytes = std::min(bytes(node.get<ValueId>("self", {})),
                              bytes(instruction.outputs.front()));
  } else {
    node.each_operand([&](ValueId v) { exchange.bytes += bytes(v); });
  }
  return exchange;
}

cost::Time OpCosts::op(const compile::Program& program, const Instruction& instruction,
                       int64_t rank) {
  const auto& device = cluster_.device(rank);
  if (instruction.kind == Instruction::Kind::load) {
    const auto bytes = program.values[instruction.outputs.front().index].type.bytes();
    return cost::estimate({.bytes = 2.0 * static_cast<double>(bytes)}, device);
  }
  if (instruction.kind != Instruction::Kind::op) return {};
  const auto instance = instance_of(program, instruction);
  const auto key = compile::key(instance);
  const std::lock_guard lock(asking_);
  const auto [entry, added] = ops_.try_emplace(device.name + " " + key);
  if (!added) return entry->second;
  if (const auto seconds = measurements_.op(key)) {
    entry->second = {*seconds, true};
  } else {
    entry->second = cost::estimate(work_of(instance), device);
  }
  return entry->second;
}

cost::Time OpCosts::collective(const Exchange& exchange) {
  if (exchange.copies) {
    return {exchange.bytes / cluster_.device(exchange.ranks.front()).host, false};
  }
  const std::lock_guard lock(asking_);
  if (const auto seconds = measurements_.collective(cluster_, exchange.kind, exchange.bytes,
                                                    exchange.ranks)) {
    return {*seconds, true};
  }
  return {cost::collective_seconds(cluster_, exchange.kind, exchange.bytes, exchange.ranks), false};
}

}  // namespace perigee::simulate
