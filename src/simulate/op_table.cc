#include "simulate/op_table.h"

#include <algorithm>
#include <map>
#include <utility>

namespace perigee::simulate {

using compile::Instruction;

std::vector<OpRow> op_table(const compile::Program& program, const mesh::Mesh& mesh,
                            OpCosts& costs) {
  std::vector<int64_t> runs(program.sections.size());
  for (const auto& run : program.order) {
    if (run.every == 1) ++runs[run.section];
  }
  std::map<std::pair<std::string, std::string>, OpRow> rows;
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
      auto& row = rows[{name, stream}];
      row.name = name;
      row.stream = stream;
      row.runs += runs[s];
      row.seconds += times * time.seconds;
      row.flops += times * work.flops;
      row.bytes += times * work.bytes;
      if (time.measured) row.measured += times * time.seconds;
    }
  }
  std::vector<OpRow> list;
  for (auto& [key, row] : rows) list.push_back(std::move(row));
  std::stable_sort(list.begin(), list.end(),
                   [](const OpRow& a, const OpRow& b) { return a.seconds > b.seconds; });
  return list;
}

}  // namespace perigee::simulate
