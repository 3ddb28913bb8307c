#include "compile/memory/finish.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "compile/stages/slots.h"

namespace perigee::compile {

namespace {

// A variant of a section, with the runs that use it.
struct Variant {
  SectionRole::Position position = SectionRole::Position::any;
  uint8_t when;
};

// Returns whether an operand of a collective shares its memory with the result.
bool shares_result_memory(const Draft& draft, const Instruction& instruction, int32_t root) {
  for (auto v : instruction.outputs) {
    const int32_t other = draft.root(v).index;
    if (other != root && draft.program.values[other].place == draft.program.values[root].place) {
      return true;
    }
  }
  return false;
}

std::vector<Variant> variants(const DraftSection& section, int64_t microbatches) {
  using Position = SectionRole::Position;
  if (!section.repeats || microbatches == 1) return {{Position::any, kFirst}};
  bool first_differs = false, last_differs = false;
  for (const auto& draft : section.instructions) {
    const bool first = draft.when & kFirst, middle = draft.when & kMiddle,
               last = draft.when & kLast;
    first_differs = first_differs || first != (microbatches > 2 ? middle : last);
    last_differs = last_differs || last != middle;
  }
  std::vector<Variant> result;
  if (microbatches == 2) {
    if (!first_differs) return {{Position::any, kFirst}};
    return {{Position::first, kFirst}, {last_differs ? Position::last : Position::any, kLast}};
  }
  if (first_differs) result.push_back({Position::first, kFirst});
  result.push_back({Position::any, kMiddle});
  if (last_differs) result.push_back({Position::last, kLast});
  return result;
}

// -1 where there is none.
int32_t frame_of_part(const Program& program, const PartId& part, bool host = false) {
  if (!part.defined()) return -1;
  const auto name = frame_name(part, host);
  for (size_t f = 0; f < program.frames.size(); ++f) {
    if (program.frames[f].name == name) return static_cast<int32_t>(f);
  }
  return -1;
}

// Sets Instruction::releases. `own`: by root, whether it lives within this section only. `open`: by
// event, the roots that its collective uses, in whichever section it starts.
void add_releases(const Draft& draft, const std::vector<bool>& own,
                  const std::vector<std::vector<int32_t>>& open, Section& section) {
  std::vector<int32_t> last(own.size(), -1);
  for (size_t i = 0; i < section.instructions.size(); ++i) {
    const auto& instruction = section.instructions[i];
    auto touch = [&](ValueId v) {
      const int32_t root = draft.root(v).index;
      if (own[root]) last[root] = static_cast<int32_t>(i);
    };
    each_operand(instruction, touch);
    for (auto v : instruction.outputs) {
      if (v.defined()) touch(v);
    }
    if (instruction.kind == Instruction::Kind::wait) {
      for (int32_t root : open[instruction.event]) {
        if (own[root]) last[root] = std::max(last[root], static_cast<int32_t>(i));
      }
    }
  }
  for (size_t root = 0; root < last.size(); ++root) {
    if (last[root] < 0) continue;
    section.instructions[last[root]].releases.push_back({static_cast<int32_t>(root)});
  }
}

// Removes variants of sections that no microbatch runs (a part's first run, say, is of a microbatch
// that keeps its results or of one that does not), and waits for collectives that only they start.
void drop_unused_sections(Program& program) {
  std::vector<int32_t> now(program.sections.size(), -1);
  for (const auto& run : program.order) now[run.section] = 0;
  std::vector<Section> sections;
  for (size_t s = 0; s < now.size(); ++s) {
    if (now[s] < 0) continue;
    now[s] = static_cast<int32_t>(sections.size());
    sections.push_back(std::move(program.sections[s]));
  }
  program.sections = std::move(sections);
  for (auto& run : program.order) run.section = now[run.section];
  std::vector<bool> started(static_cast<size_t>(program.events));
  for (const auto& section : program.sections) {
    for (const auto& i : section.instructions) {
      if (i.kind == Instruction::Kind::collective) started[i.event] = true;
    }
  }
  for (auto& section : program.sections) {
    std::erase_if(section.instructions, [&](const Instruction& i) {
      return i.kind == Instruction::Kind::wait && !started[i.event];
    });
  }
}

}  // namespace

Program finish(Draft draft) {
  // The section in which a value dies: the last that touches it.
  std::vector<int32_t> dies(draft.program.values.size(), -1);
  std::vector<std::vector<int32_t>> open(draft.program.events);
  std::vector<size_t> started(draft.program.events);  // by event: the section
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    for (const auto& part : draft.sections[s].instructions) {
      const auto& instruction = part.instruction;
      if (instruction.kind == Instruction::Kind::collective) started[instruction.event] = s;
      auto touch = [&](ValueId v) {
        const int32_t root = draft.root(v).index;
        dies[root] = static_cast<int32_t>(s);
        if (instruction.kind == Instruction::Kind::collective &&
            !shares_result_memory(draft, instruction, root)) {
          open[instruction.event].push_back(root);
        }
      };
      each_operand(instruction, touch);
      for (auto v : instruction.outputs) {
        if (v.defined()) touch(v);
      }
      if (instruction.kind == Instruction::Kind::wait) {
        for (int32_t root : open[instruction.event]) dies[root] = static_cast<int32_t>(s);
      }
    }
  }
  for (size_t v = 0; v < dies.size(); ++v) {
    const auto& home = draft.homes[v];
    if (home.kind == Home::Kind::persistent || home.outlives ||
        draft.program.values[v].place.frame < 0) {
      dies[v] = -1;
    }
  }

  // A value that a backward pass sends is free once the next forward pass in its copy of the frame,
  // of any part, has waited for the send.
  std::vector<std::set<int32_t>> freed(draft.sections.size());
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    if (!draft.sections[s].role.part.defined()) continue;
    for (const auto& part : draft.sections[s].instructions) {
      const auto event = part.instruction.event;
      if (part.instruction.kind != Instruction::Kind::wait || started[event] <= s) continue;
      for (int32_t root : open[event]) {
        dies[root] = -1;
        freed[s].insert(root);
      }
    }
  }

  auto& program = draft.program;
  const int64_t count = program.microbatches;
  std::vector<std::vector<Variant>> lists;
  std::vector<int32_t> bases;                             // by draft section: its first variant
  std::vector<int32_t> ahead(draft.sections.size(), -1);  // by draft section: its early receives
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    const auto& section = draft.sections[s];
    lists.push_back(variants(section, count));
    const auto frame = frame_of_part(program, draft.frame_of(section.role.part));
    Section early{section.role, {}, frame};
    early.role.receives = true;
    for (const auto& part : section.instructions) {
      if (part.ahead) early.instructions.push_back(part.instruction);
    }
    if (!early.instructions.empty()) {
      ahead[s] = static_cast<int32_t>(program.sections.size());
      program.sections.push_back(std::move(early));
    }
    bases.push_back(static_cast<int32_t>(program.sections.size()));
    std::vector<bool> own(dies.size());
    for (size_t v = 0; v < dies.size(); ++v) own[v] = dies[v] == static_cast<int32_t>(s);
    for (int32_t root : freed[s]) own[root] = true;
    for (const auto& variant : lists.back()) {
      Section made{section.role, {}, frame};
      made.role.position = variant.position;
      for (const auto& part : section.instructions) {
        if ((part.when & variant.when) && !part.ahead)
          made.instructions.push_back(part.instruction);
      }
      add_releases(draft, own, open, made);
      program.sections.push_back(std::move(made));
    }
  }

  // Returns the variant of a section's k-th run.
  const auto variant_of = [&](size_t s, int64_t k, int64_t runs) {
    const auto& list = lists[s];
    const uint8_t wanted = k == 0 ? kFirst : k + 1 == runs ? kLast : kMiddle;
    int32_t chosen = 0;
    for (size_t v = 0; v < list.size(); ++v) {
      if (list[v].when == wanted) chosen = static_cast<int32_t>(v);
    }
    if (list.size() > 1 && wanted == kLast && list.back().when != kLast) {
      chosen = static_cast<int32_t>(list.size()) - 1;
    }
    if (list.size() > 1 && wanted == kFirst && list.front().when != kFirst) chosen = 0;
    return bases[s] + chosen;
  };
  bool parts_done = false;
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    const auto& section = draft.sections[s];
    if (!section.role.part.defined()) {
      const int64_t runs = section.repeats ? count : 1;
      for (int64_t m = 0; m < runs; ++m) {
        program.order.push_back({variant_of(s, m, runs), static_cast<int32_t>(m), 0, section.every,
                                 section.after_writes});
      }
    } else if (!std::exchange(parts_done, true)) {
      const auto runs = runs_of(draft);
      const auto copies = copies_by_run(draft);
      std::map<std::vector<int32_t>, int32_t> known;  // slots
      const auto slot_of = [&](const std::map<PartId, int32_t>& parts) {
        std::vector<int32_t> slot(program.frames.size());
        for (const auto& [part, copy] : parts) {
          slot[frame_of_part(program, part)] = copy;
          const auto host = frame_of_part(program, part, true);
          if (host >= 0) slot[host] = copy;
        }
        const auto [at, added] = known.emplace(slot, program.slots.size());
        if (added) program.slots.push_back(slot);
        return at->second;
      };
      slot_of({});
      // By run: the early receives that start before it. A run's messages are received one run
      // ahead, unless the preceding run is of the same section and copy of the frame, whose events
      // are open.
      const auto same_copy = [&](size_t r) {
        const auto frame = draft.frame_of(draft.sections[runs[r].section].role.part);
        return copies[r].at(frame) == copies[r - 1].at(frame);
      };
      std::vector<std::vector<Run>> received(runs.size());
      for (size_t r = 0; r < runs.size(); ++r) {
        const auto [ran, microbatch, position] = runs[r];
        if (ahead[ran] < 0) continue;
        const bool early = r > 0 && (runs[r - 1].section != ran || !same_copy(r));
        received[early ? r - 1 : r].push_back({ahead[ran], microbatch, slot_of(copies[r])});
      }
      // Runs of a section and of its kept variant are counted together.
      std::vector<size_t> counted(draft.sections.size());
      for (size_t ran = 0; ran < counted.size(); ++ran) {
        counted[ran] = ran;
        for (size_t other = 0; other < ran; ++other) {
          const auto &one = draft.sections[ran], &first = draft.sections[other];
          auto same = first.role.part;
          same.kept = true;
          if (first.role.part.defined() && same == one.role.part &&
              first.role.kind == one.role.kind) {
            counted[ran] = other;
          }
        }
      }
      std::vector<int64_t> done(draft.sections.size());
      for (size_t r = 0; r < runs.size(); ++r) {
        const auto [ran, microbatch, position] = runs[r];
        for (const auto& run : received[r]) program.order.push_back(run);
        program.order.push_back(
            {variant_of(ran, done[counted[ran]]++, count), microbatch, slot_of(copies[r])});
      }
    }
  }
  if (!draft.kept.empty()) drop_unused_sections(program);
  return std::move(draft.program);
}

}  // namespace perigee::compile
