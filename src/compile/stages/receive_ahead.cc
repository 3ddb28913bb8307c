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
      // Where the message comes to nothing else lies, whichever run goes on.
      const ValueId wanted = part.instruction.outputs[0];
      const ProgramValue like = draft.value(wanted);
      const ValueId landing = draft.add(like.type, like.name + " received",
                                        Home{.kind = Home::Kind::communication,
                                             .stream = part.instruction.stream,
                                             .landing = true});
      auto copy = in_place("perigee::copy_", {{"self", wanted}, {"source", landing}}, {wanted});
      copy.instruction.scope = part.instruction.scope;
      copy.instruction.phase = part.instruction.phase;
      part.instruction.outputs[0] = landing;
      part.move = Move::none;
      part.ahead = true;
      out.push_back(std::move(part));
      out.push_back(std::move(copy));
    }
    section.instructions = std::move(out);
  }
}

void share_landings(Draft& draft) {
  std::optional<PartId> owner;
  for (const auto& section : draft.sections) {
    const bool lands = std::any_of(section.instructions.begin(), section.instructions.end(),
                                   [](const DraftInstruction& part) { return part.ahead; });
    if (!lands) continue;
    auto landing = section.role.part;
    landing.landing = true;
    if (!owner) owner = landing;
    draft.frames[landing] = *owner;
  }
  if (owner) draft.copies[*owner] = 2;
}

}  // namespace perigee::compile
