// The copy of a part's frame that a microbatch uses while a stage runs its sections.
#include "compile/stages/slots.h"

#include <algorithm>
#include <set>

#include "compile/stages/rendezvous.h"

namespace perigee::compile {

namespace {

// Returns the pieces of a part's section, in order.
std::vector<int32_t> pieces_of(const Draft& draft, const PartId& part, SectionKind kind) {
  std::vector<int32_t> pieces;
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    const auto& section = draft.sections[s];
    if (section.role.part == part && section.role.kind == kind)
      pieces.push_back(static_cast<int32_t>(s));
  }
  return pieces;
}

// Returns the sections that an op of a schedule runs.
SectionKind section_of(PipelineKind kind) {
  switch (kind) {
    case PipelineKind::forward:
      return SectionKind::forward;
    case PipelineKind::weight_grad:
      return SectionKind::weights;
    case PipelineKind::backward:
    case PipelineKind::input_grad:
      break;
  }
  return SectionKind::backward;
}

// Calls f(root) for values that the section's instructions read or write and that live within
// a step.
template <class F>
void each_root(const Draft& draft, const DraftSection& section, F f) {
  const auto touch = [&](ValueId v) {
    const auto root = draft.root(v).index;
    const auto& home = draft.homes[root];
    if (home.kind != Home::Kind::persistent && !home.outlives) f(root);
  };
  for (const auto& part : section.instructions) {
    each_operand(part.instruction, touch);
    for (auto v : part.instruction.outputs) {
      if (v.defined()) touch(v);
    }
  }
}

// Returns the roots that sections outside of parts use: they belong to no microbatch.
std::set<int32_t> roots_outside_parts(const Draft& draft) {
  std::set<int32_t> outside;
  for (const auto& section : draft.sections) {
    if (section.role.part.defined()) continue;
    each_root(draft, section, [&](int32_t root) { outside.insert(root); });
  }
  return outside;
}

}  // namespace

std::vector<DraftRun> runs_of(const Draft& draft) {
  std::vector<int> parts;  // by chunk
  for (const auto& section : draft.sections) {
    if (!section.role.part.defined() || section.role.part.kept || section.role.part.deferred)
      continue;
    const bool known = std::find(parts.begin(), parts.end(), section.role.part.part) != parts.end();
    if (section.role.kind == SectionKind::forward && !known)
      parts.push_back(section.role.part.part);
  }
  std::vector<DraftRun> runs;
  const auto add = [&](std::vector<DraftRun>& to, size_t position, const PipelineOp& op,
                       SectionKind kind, bool deferred) {
    const PartId part{.part = parts[op.chunk],
                      .kept = !draft.kept.empty() && draft.kept[op.microbatch],
                      .deferred = deferred};
    for (auto piece : pieces_of(draft, part, kind)) to.push_back({piece, op.microbatch, position});
  };
  const auto add_op = [&](std::vector<DraftRun>& to, size_t position) {
    const auto& op = draft.order[position];
    add(to, position, op, section_of(op.kind), false);
    // Where a schedule splits only some backward passes, a whole one runs both sections.
    if (op.kind != PipelineKind::backward) return;
    add(to, position, op, SectionKind::weights, false);
    if (op.microbatch >= draft.deferred) add(to, position, op, SectionKind::weights, true);
  };
  for (size_t at = 0; at < draft.order.size(); ++at) {
    const auto last = draft.interleaved[at].last;
    std::vector<DraftRun> backward, forward;
    for (; at < last; ++at) add_op(backward, at);
    add_op(forward, last);
    for (size_t k = 0; k < std::max(backward.size(), forward.size()); ++k) {
      if (k < backward.size()) runs.push_back(backward[k]);
      if (k < forward.size()) runs.push_back(forward[k]);
    }
  }
  size_t position = draft.order.size();
  for (const auto& op : draft.order) {
    if (op.kind != PipelineKind::backward || op.microbatch >= draft.deferred) continue;
    add(runs, position++, op, SectionKind::weights, true);
  }
  return runs;
}

std::map<int32_t, PartId> deferred_operands(const Draft& draft) {
  const auto outside = roots_outside_parts(draft);
  std::map<int32_t, PartId> found;
  std::set<int32_t> made;  // by preceding sections
  for (const auto& section : draft.sections) {
    if (!section.role.part.defined()) continue;
    each_root(draft, section, [&](int32_t root) {
      if (!section.role.part.deferred) {
        made.insert(root);
      } else if (made.contains(root) && !outside.contains(root)) {
        found.emplace(root, section.role.part);
      }
    });
  }
  return found;
}

std::vector<std::map<PartId, int32_t>> copies_by_run(const Draft& draft) {
  const auto runs = runs_of(draft);
  // By section: the parts whose frames it uses, its own and those whose values it reads.
  std::vector<std::set<PartId>> touched(draft.sections.size());
  const auto deferred = deferred_operands(draft);
  const auto outside = roots_outside_parts(draft);
  std::map<int32_t, PartId> made_by;  // root: part
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    const auto& section = draft.sections[s];
    if (!section.role.part.defined()) continue;
    touched[s].insert(section.role.part);
    each_root(draft, section, [&](int32_t root) {
      if (outside.contains(root)) return;
      if (const auto at = deferred.find(root); at != deferred.end()) {
        touched[s].insert(at->second);
      } else if (!section.role.part.deferred) {
        const auto [at, added] = made_by.emplace(root, section.role.part);
        if (at->second.kept == section.role.part.kept) touched[s].insert(at->second);
      }
    });
  }
  std::map<std::pair<PartId, int32_t>, InterleavedRange> spans;
  for (size_t r = 0; r < runs.size(); ++r) {
    // Interleaved ops are all in progress from the first to the last; deferred sections run after
    // all ops.
    const auto at = runs[r].position;
    const auto span = at < draft.interleaved.size() ? draft.interleaved[at]
                                                    : InterleavedRange{at, at};
    for (const auto& part : touched[runs[r].section]) {
      const auto [known, added] = spans.try_emplace({part, runs[r].microbatch}, span);
      known->second.last = std::max(known->second.last, span.last);
    }
  }
  struct Use {
    InterleavedRange span;
    PartId part;
    int32_t microbatch;
  };
  std::map<PartId, std::vector<Use>> by_frame;
  for (const auto& [key, span] : spans) {
    by_frame[draft.frame_of(key.first)].push_back({span, key.first, key.second});
  }
  std::map<int32_t, std::vector<size_t>> of_microbatch;
  for (size_t r = 0; r < runs.size(); ++r) of_microbatch[runs[r].microbatch].push_back(r);
  std::vector<std::map<PartId, int32_t>> copies(runs.size());
  for (auto& [frame, list] : by_frame) {
    std::stable_sort(list.begin(), list.end(),
                     [](const Use& a, const Use& b) { return a.span.first < b.span.first; });
    std::vector<InterleavedRange> ordered;
    for (const auto& use : list) ordered.push_back(use.span);
    const auto taken = assign_copies(ordered, draft.copies.at(frame));
    for (size_t k = 0; k < list.size(); ++k) {
      for (size_t r : of_microbatch[list[k].microbatch]) {
        if (touched[runs[r].section].contains(list[k].part)) copies[r][frame] = taken[k];
      }
    }
  }
  int32_t landed = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    auto buffer = draft.sections[runs[r].section].role.part;
    buffer.received = true;
    const auto frame = draft.frames.find(buffer);
    if (frame != draft.frames.end()) copies[r][frame->second] = landed++ % 2;
  }
  return copies;
}

std::map<PartId, int64_t> copies_of_frames(const Draft& draft) {
  auto most = draft.copies;
  for (const auto& copies : copies_by_run(draft)) {
    for (const auto& [frame, copy] : copies) {
      const auto found = most.find(frame);
      if (found != most.end()) found->second = std::max(found->second, int64_t{copy} + 1);
    }
  }
  return most;
}

}  // namespace perigee::compile
