#include <algorithm>
#include <map>

#include "compile/passes.h"

namespace perigee::compile {

namespace {

// A collective that has started and that nobody has waited for.
struct Pending {
  int32_t event;
  uint8_t when;
  size_t section;
};

}  // namespace

void insert_waits(Draft& draft) {
  std::map<int32_t, Pending> results;        // by root: a collective writes it
  std::multimap<int32_t, Pending> operands;  // by root: collectives read it
  const bool several = draft.program.microbatches > 1;
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    auto& section = draft.sections[s];
    std::vector<DraftInstruction> out;
    out.reserve(section.instructions.size());
    auto wait = [&](const Pending pending) {
      std::erase_if(results, [&](const auto& p) { return p.second.event == pending.event; });
      std::erase_if(operands, [&](const auto& p) { return p.second.event == pending.event; });
      auto waiting = wait_for(pending.event);
      if (pending.section == s) {
        // In every run that has started it: those where the first reader is another one as well.
        waiting.when = pending.when;
      } else {
        waiting.when = section.repeats && several ? kFirst : kAlways;
      }
      out.push_back(std::move(waiting));
    };
    for (auto& draft_instruction : section.instructions) {
      const auto& instruction = draft_instruction.instruction;
      if (instruction.kind == Instruction::Kind::wait) {
        const auto open = std::find_if(results.begin(), results.end(), [&](const auto& p) {
          return p.second.event == instruction.event;
        });
        if (open != results.end()) wait(open->second);
        continue;
      }
      if (!results.empty()) {
        each_operand(instruction, [&](ValueId v) {
          const auto found = results.find(draft.root(v).index);
          if (found != results.end()) wait(found->second);
        });
        for (auto v : instruction.outputs) {
          if (!v.defined()) continue;
          const int32_t root = draft.root(v).index;
          if (auto found = results.find(root); found != results.end()) wait(found->second);
          for (auto found = operands.find(root); found != operands.end();
               found = operands.find(root)) {
            wait(found->second);
          }
        }
      }
      if (instruction.kind == Instruction::Kind::collective) {
        const Pending pending{instruction.event, draft_instruction.when, s};
        each_operand(instruction,
                     [&](ValueId v) { operands.emplace(draft.root(v).index, pending); });
        for (auto v : instruction.outputs) results[draft.root(v).index] = pending;
      }
      out.push_back(std::move(draft_instruction));
    }
    // Nothing stays open over microbatches; at the very end nothing stays open at all.
    const bool last = s + 1 == draft.sections.size();
    for (bool again = true; again;) {
      again = false;
      for (const auto& [root, pending] : results) {
        const bool every_time = section.repeats && several && (pending.when & kFirst);
        if (!last && !(every_time && pending.section == s)) continue;
        wait(pending);
        again = true;
        break;
      }
    }
    section.instructions = std::move(out);
  }
}

}  // namespace perigee::compile
