// Sections of a pipeline's parts, cut at the expert all-to-alls.
#include "compile/stages/cut_exchanges.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "compile/stages/stage.h"

namespace perigee::compile {

namespace {

using Instructions = std::vector<DraftInstruction>;

bool is_collective(const DraftInstruction& draft) {
  return draft.instruction.kind == Instruction::Kind::collective && !is_copy(draft.instruction.op);
}

// Returns whether instruction `to` depends on the results of `from`.
bool depends(const Draft& draft, const Instructions& list, size_t from, size_t to) {
  std::set<int32_t> made;
  const auto add = [&](const Instruction& instruction) {
    for (auto v : instruction.outputs) {
      if (v.defined()) made.insert(draft.root(v).index);
    }
  };
  add(list[from].instruction);
  for (size_t i = from + 1; i <= to; ++i) {
    bool reads = false;
    each_operand(list[i].instruction,
                 [&](ValueId v) { reads = reads || made.contains(draft.root(v).index); });
    if (i == to) return reads;
    if (reads) add(list[i].instruction);
  }
  return false;
}

// Returns the starts of a section's second and later pieces. All ranks that exchange rows have the
// same collectives in the same order, with different compute between them. So there is a cut
// between an exchange and the next collective, unless that is an independent exchange. The cut is
// after the instructions that do not depend on the received rows: a piece begins with the wait
// for them.
std::vector<size_t> find_cuts(const Draft& draft, const Instructions& list) {
  std::vector<size_t> cuts;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!is_collective(list[i]) || !is_exchange(list[i].instruction.op)) continue;
    size_t cut = list.size(), next = i + 1;
    for (; next < list.size() && !is_collective(list[next]); ++next) {
      const auto& instruction = list[next].instruction;
      const bool waits = instruction.kind == Instruction::Kind::wait &&
                         instruction.event == list[i].instruction.event;
      if (waits && cut == list.size()) cut = next;
    }
    if (next < list.size() && is_exchange(list[next].instruction.op) &&
        !depends(draft, list, i, next)) {
      continue;
    }
    cuts.push_back(std::min(cut, next));
  }
  return cuts;
}

}  // namespace

void cut_exchanges(Draft& draft) {
  const auto is_single = [](InterleavedRange span) { return span.first == span.last; };
  if (std::all_of(draft.interleaved.begin(), draft.interleaved.end(), is_single)) return;
  std::vector<DraftSection> sections;
  for (auto& section : draft.sections) {
    if (!section.role.part.defined()) {
      sections.push_back(std::move(section));
      continue;
    }
    Instructions list = std::exchange(section.instructions, {});
    auto cuts = find_cuts(draft, list);
    cuts.push_back(list.size());
    size_t from = 0;
    for (size_t piece = 0; piece < cuts.size(); ++piece) {
      DraftSection made = section;
      for (size_t i = from; i < cuts[piece]; ++i) made.instructions.push_back(std::move(list[i]));
      made.role.piece = static_cast<int>(piece);
      from = cuts[piece];
      sections.push_back(std::move(made));
    }
  }
  draft.sections = std::move(sections);
}

}  // namespace perigee::compile
