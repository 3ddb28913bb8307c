// The collectives of tensor_parallel's backward pass that products hide (plan::Overlap::bulk).
#include "compile/overlap/bulk.h"

#include <algorithm>
#include <string_view>

#include "mesh/mesh.h"

namespace perigee::compile {

namespace {

bool over_tensor(const Stream& stream) {
  const auto& axes = stream.axes;
  return stream.kind == Stream::Kind::group && !axes.empty() &&
         std::all_of(axes.begin(), axes.end(),
                     [](const auto& axis) { return mesh::kind_of(axis) == "tensor"; });
}

// Returns the collective's name in Overlap::bulk, "" for other collectives.
std::string_view kind_of(const Draft& draft, const Instruction& instruction) {
  if (instruction.kind != Instruction::Kind::collective || instruction.in_place ||
      instruction.phase != graph::Phase::backward ||
      !over_tensor(draft.program.streams[instruction.stream])) {
    return "";
  }
  if (instruction.op == "comm::all_gather") return "gathers";
  return instruction.op == "comm::all_reduce" || instruction.op == "comm::reduce_scatter" ? "sums"
                                                                                          : "";
}

std::pair<int64_t, int64_t> bytes_of(const Draft& draft, const Instruction& instruction) {
  return draft.bytes_of(operand_of(instruction));
}

}  // namespace

WholeCollectives find_waited(const Draft& draft, const std::vector<std::string>& bulk) {
  WholeCollectives found;
  for (const auto& section : draft.sections) {
    for (const auto& draft_instruction : section.instructions) {
      const auto& instruction = draft_instruction.instruction;
      const auto kind = kind_of(draft, instruction);
      if (kind.empty() || std::find(bulk.begin(), bulk.end(), kind) != bulk.end()) continue;
      found[instruction.event] = bytes_of(draft, instruction);
    }
  }
  return found;
}

void wait_at_once(Draft& draft, const WholeCollectives& waited) {
  if (waited.empty()) return;
  for (auto& section : draft.sections) {
    std::vector<DraftInstruction> out;
    for (auto& instruction : section.instructions) {
      const auto found = waited.find(instruction.instruction.event);
      const bool whole = found != waited.end() &&
                         instruction.instruction.kind == Instruction::Kind::collective &&
                         found->second == bytes_of(draft, instruction.instruction);
      const auto event = instruction.instruction.event;
      out.push_back(std::move(instruction));
      if (whole) out.push_back(wait_for(event));
    }
    section.instructions = std::move(out);
  }
}

}  // namespace perigee::compile
