#include "compile/events.h"

namespace perigee::compile {

std::vector<bool> started_once(const Program& program) {
  std::vector<int64_t> runs(program.sections.size());
  for (const auto& run : program.order) ++runs[run.section];
  std::vector<int64_t> starts(static_cast<size_t>(program.events));
  for (size_t s = 0; s < program.sections.size(); ++s) {
    for (const auto& instruction : program.sections[s].instructions) {
      if (instruction.kind == Instruction::Kind::collective) starts[instruction.event] += runs[s];
    }
  }
  std::vector<bool> once;
  for (const auto count : starts) once.push_back(count <= 1);
  return once;
}

}  // namespace perigee::compile
