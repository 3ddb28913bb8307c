#include "simulate/op_table.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace perigee::simulate {

namespace {

using compile::Instruction;

// Scope, whether it is the backward pass, name, stream.
using Key = std::tuple<std::string, bool, std::string, std::string>;

// `by_scope`: rows of different scopes and passes are distinct.
std::map<Key, OpRow> rows_of(const compile::Program& program, const mesh::Mesh& mesh,
                             OpCosts& costs, bool by_scope) {
  std::vector<int64_t> runs(program.sections.size());
  for (const auto& run : program.order) {
    if (run.in_every_step()) ++runs[run.section];
  }
  std::map<Key, OpRow> rows;
  for (size_t s = 0; s < program.sections.size(); ++s) {
    if (runs[s] == 0) continue;
    const auto times = static_cast<double>(runs[s]);
    for (const auto& instruction : program.sections[s].instructions) {
      if (instruction.kind == Instruction::Kind::wait) continue;
      cost::Time time;
      cost::OpWork work;
      std::string stream;
      if (instruction.kind == Instruction::Kind::collective) {
        const auto exchange = exchange_of(program, instruction, mesh, program.rank);
        stream = exchange.stream.name();
        work.bytes = exchange.bytes;
        time = costs.collective(exchange);
      } else {
        time = costs.op(program, instruction, program.rank);
        if (instruction.kind == Instruction::Kind::op) {
          work = work_of(instance_of(program, instruction));
        }
      }
      const bool load = instruction.kind == Instruction::Kind::load;
      const auto name = load ? std::string("load") : instruction.op;
      const bool backward = by_scope && instruction.phase == graph::Phase::backward;
      const auto scope = by_scope ? instruction.scope : std::string();
      auto& row = rows[{scope, backward, name, stream}];
      row.name = name;
      row.stream = stream;
      row.scope = scope;
      row.backward = backward;
      row.runs += runs[s];
      row.seconds += times * time.seconds;
      row.flops += times * work.flops;
      row.bytes += times * work.bytes;
      if (time.measured) row.measured += times * time.seconds;
    }
  }
  return rows;
}

}  // namespace

std::vector<OpRow> op_table(const compile::Program& program, const mesh::Mesh& mesh,
                            OpCosts& costs) {
  std::vector<OpRow> list;
  for (auto& [key, row] : rows_of(program, mesh, costs, false)) list.push_back(std::move(row));
  std::stable_sort(list.begin(), list.end(),
                   [](const OpRow& a, const OpRow& b) { return a.seconds > b.seconds; });
  return list;
}

std::vector<OpRow> scope_table(const compile::Programs& programs, const mesh::Mesh& mesh,
                               OpCosts& costs) {
  std::map<Key, OpRow> slowest;
  for (const auto& program : programs.programs) {
    for (auto& [key, row] : rows_of(program, mesh, costs, true)) {
      const auto [at, added] = slowest.try_emplace(key, row);
      if (!added && at->second.seconds < row.seconds) at->second = row;
    }
  }
  std::vector<OpRow> list;
  for (auto& [key, row] : slowest) list.push_back(std::move(row));
  return list;
}

}  // namespace perigee::simulate
