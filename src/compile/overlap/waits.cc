#include "compile/overlap/waits.h"

#include <algorithm>
#include <map>
#include <utility>

namespace perigee::compile {

namespace {

// A collective that has started and has not been waited for.
struct Pending {
  int32_t event;
  uint8_t when;
  size_t section;
  std::pair<int64_t, int64_t> bytes;  // of the root's memory
};

// Pending collectives by root.
using Open = std::multimap<int32_t, Pending>;

// Returns a pending collective that uses some of these bytes, or nullptr.
const Pending* find(const Open& open, int32_t root, std::pair<int64_t, int64_t> bytes) {
  const auto [first, last] = open.equal_range(root);
  for (auto at = first; at != last; ++at) {
    const auto& used = at->second.bytes;
    if (used.first < bytes.second && bytes.first < used.second) return &at->second;
  }
  return nullptr;
}

}  // namespace

void insert_waits(Draft& draft) {
  Open results, operands;  // of unfinished collectives
  const bool several = draft.program.microbatches > 1;
  // A microbatch runs either the sections of parts or those of kept parts: both begin with the same
  // unfinished collectives, and collectives that either starts are waited for after both.
  const auto find_parts = [&](bool kept) {
    return std::find_if(draft.sections.begin(), draft.sections.end(),
                        [&](const auto& section) {
                          return section.role.part.defined() && section.role.part.kept == kept;
                        }) -
           draft.sections.begin();
  };
  const auto parts = find_parts(false), kept = find_parts(true);
  std::pair<Open, Open> before, other;
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    auto& section = draft.sections[s];
    const auto now = static_cast<ptrdiff_t>(s);
    if (kept < std::ssize(draft.sections)) {
      if (now == parts) before = {results, operands};
      if (now == kept) {
        other = std::exchange(before, {});
        std::swap(results, other.first);
        std::swap(operands, other.second);
      }
      if (now > kept && !section.role.part.defined()) {
        results.merge(other.first);
        operands.merge(other.second);
      }
    }
    std::vector<DraftInstruction> out;
    out.reserve(section.instructions.size());
    auto wait = [&](const Pending pending) {
      std::erase_if(results, [&](const auto& p) { return p.second.event == pending.event; });
      std::erase_if(operands, [&](const auto& p) { return p.second.event == pending.event; });
      auto waiting = wait_for(pending.event);
      if (pending.section == s) {
        // In every run that has started it, also those where another instruction reads it first.
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
        const auto wait_for_all = [&](const Open& open, ValueId v) {
          const int32_t root = draft.root(v).index;
          const auto bytes = draft.bytes_of(v);
          while (const auto* pending = find(open, root, bytes)) wait(*pending);
        };
        each_operand(instruction, [&](ValueId v) { wait_for_all(results, v); });
        for (auto v : instruction.outputs) {
          if (!v.defined()) continue;
          wait_for_all(results, v);
          wait_for_all(operands, v);
        }
      }
      if (instruction.kind == Instruction::Kind::collective) {
        const auto open = [&](Open& list, ValueId v) {
          list.emplace(draft.root(v).index,
                       Pending{instruction.event, draft_instruction.when, s, draft.bytes_of(v)});
        };
        each_operand(instruction, [&](ValueId v) { open(operands, v); });
        for (auto v : instruction.outputs) open(results, v);
      }
      out.push_back(std::move(draft_instruction));
    }
    // Only collectives that the first microbatch starts for all may be open across microbatches; at
    // the end of the step none may be.
    const bool last = s + 1 == draft.sections.size();
    for (bool changed = true; changed;) {
      changed = false;
      for (const auto& [root, pending] : results) {
        const bool every_time = section.repeats && several && (pending.when & kFirst) &&
                                pending.when != kFirst;
        if (!last && !(every_time && pending.section == s)) continue;
        wait(pending);
        changed = true;
        break;
      }
    }
    section.instructions = std::move(out);
  }
}

}  // namespace perigee::compile
