// A pipeline's messages, received while the stage computes something else.
#include "compile/stages/receive_ahead.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace perigee::compile {

void receive_ahead(Draft& draft) {
  for (auto& section : draft.sections) {
    if (!section.role.part.defined()) continue;
    std::vector<DraftInstruction> out;
    for (auto& part : section.instructions) {
      if (part.instruction.op != "comm::receive") {
        out.push_back(std::move(part));
        continue;
      }
      // The receive buffer shares memory with no other value, since any section may run meanwhile.
      const ValueId wanted = part.instruction.outputs[0];
      const ProgramValue like = draft.value(wanted);
      const ValueId buffer = draft.add(like.type, like.name + " received",
                                       Home{.kind = Home::Kind::communication,
                                            .stream = part.instruction.stream,
                                            .received_early = true});
      auto copy = in_place("perigee::copy_", {{"self", wanted}, {"source", buffer}}, {wanted});
      copy.instruction.scope = part.instruction.scope;
      copy.instruction.phase = part.instruction.phase;
      part.instruction.outputs[0] = buffer;
      part.move = Move::none;
      part.ahead = true;
      out.push_back(std::move(part));
      out.push_back(std::move(copy));
    }
    section.instructions = std::move(out);
  }
}

void share_receive_buffers(Draft& draft) {
  std::optional<PartId> owner;
  for (const auto& section : draft.sections) {
    const bool lands = std::any_of(section.instructions.begin(), section.instructions.end(),
                                   [](const DraftInstruction& part) { return part.ahead; });
    if (!lands) continue;
    auto buffer = section.role.part;
    buffer.received = true;
    if (!owner) owner = buffer;
    draft.frames[buffer] = *owner;
  }
  if (owner) draft.copies[*owner] = 2;
}

}  // namespace perigee::compile
