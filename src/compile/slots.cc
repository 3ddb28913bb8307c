// Which copy of a part's frame a microbatch has, while a stage runs its sections.
#include <algorithm>
#include <set>

#include "compile/passes.h"
#include "compile/rendezvous.h"

namespace perigee::compile {

namespace {

int32_t section_of(const Draft& draft, const PartId& part, PipelineKind kind) {
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    const auto& section = draft.sections[s];
    if (section.part == part && section.kind == kind) return static_cast<int32_t>(s);
  }
  return -1;
}

// Calls f(root) for what the section's instructions read or write of what lives within a step.
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

}  // namespace

std::vector<std::pair<int32_t, int32_t>> runs_of(const Draft& draft) {
  std::vector<int> parts;  // by chunk
  for (const auto& section : draft.sections) {
    if (!section.part.defined() || section.part.kept) continue;
    if (section.kind == PipelineKind::forward) parts.push_back(section.part.part);
  }
  const auto part_of = [&](const PipelineOp& op) {
    return PartId{.part = parts[op.chunk],
                  .kept = !draft.kept.empty() && draft.kept[op.microbatch]};
  };
  std::vector<std::pair<int32_t, int32_t>> runs;
  const auto run_weights = [&](const PipelineOp& op, bool deferred) {
    auto part = part_of(op);
    part.deferred = deferred;
    const auto section = section_of(draft, part, PipelineKind::weight_grad);
    if (section >= 0) runs.emplace_back(section, op.microbatch);
  };
  for (const auto& op : draft.order) {
    const bool input = op.kind == PipelineKind::input_grad;
    runs.emplace_back(section_of(draft, part_of(op), input ? PipelineKind::backward : op.kind),
                      op.microbatch);
    // Where a schedule splits some of its backward passes, the others are both halves.
    if (op.kind != PipelineKind::backward) continue;
    run_weights(op, false);
    if (op.microbatch >= draft.deferred) run_weights(op, true);
  }
  for (const auto& op : draft.order) {
    const bool waits = op.kind == PipelineKind::backward && op.microbatch < draft.deferred;
    if (waits) run_weights(op, true);
  }
  return runs;
}

std::map<int32_t, PartId> deferred_operands(const Draft& draft) {
  std::set<int32_t> beyond;  // what sections of no part touch: no microbatch's
  for (const auto& section : draft.sections) {
    if (section.part.defined()) continue;
    each_root(draft, section, [&](int32_t root) { beyond.insert(root); });
  }
  std::map<int32_t, PartId> found;
  std::set<int32_t> made;  // by sections before
  for (const auto& section : draft.sections) {
    if (!section.part.defined()) continue;
    each_root(draft, section, [&](int32_t root) {
      if (!section.part.deferred) {
        made.insert(root);
      } else if (made.contains(root) && !beyond.contains(root)) {
        found.emplace(root, section.part);
      }
    });
  }
  return found;
}

std::vector<std::map<PartId, int32_t>> copies_by_run(const Draft& draft) {
  const auto runs = runs_of(draft);
  // Which parts' frames a section touches: its own, and those of parts whose values it uses.
  std::vector<std::set<PartId>> touched(draft.sections.size());
  const auto deferred = deferred_operands(draft);
  std::map<int32_t, PartId> made_by;  // root: part
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    const auto& section = draft.sections[s];
    if (!section.part.defined()) continue;
    touched[s].insert(section.part);
    each_root(draft, section, [&](int32_t root) {
      if (const auto at = deferred.find(root); at != deferred.end()) {
        touched[s].insert(at->second);
      } else if (!section.part.deferred) {
        const auto [at, added] = made_by.emplace(root, section.part);
        if (at->second.kept == section.part.kept) touched[s].insert(at->second);
      }
    });
  }
  std::map<std::pair<PartId, int32_t>, Span> spans;
  for (size_t r = 0; r < runs.size(); ++r) {
    for (const auto& part : touched[runs[r].first]) {
      const auto [at, added] = spans.try_emplace({part, runs[r].second}, Span{r, r});
      at->second.last = r;
    }
  }
  std::map<PartId, std::vector<std::pair<Span, int32_t>>> by_part;  // with microbatches
  for (const auto& [key, span] : spans) by_part[key.first].emplace_back(span, key.second);
  std::vector<std::map<PartId, int32_t>> copies(runs.size());
  for (auto& [part, list] : by_part) {
    std::sort(list.begin(), list.end(),
              [](const auto& a, const auto& b) { return a.first.first < b.first.first; });
    std::vector<Span> ordered;
    for (const auto& [span, microbatch] : list) ordered.push_back(span);
    const auto taken = assign_copies(ordered, draft.copies.at(part));
    for (size_t k = 0; k < list.size(); ++k) {
      const auto& [span, microbatch] = list[k];
      for (size_t r = span.first; r <= span.last; ++r) {
        const bool uses = runs[r].second == microbatch && touched[runs[r].first].contains(part);
        if (uses) copies[r][part] = taken[k];
      }
    }
  }
  return copies;
}

int64_t copies_of(const Draft& draft, const PartId& part) {
  int64_t most = draft.copies.at(part);
  for (const auto& copies : copies_by_run(draft)) {
    const auto found = copies.find(part);
    if (found != copies.end()) most = std::max(most, int64_t{found->second} + 1);
  }
  return most;
}

}  // namespace perigee::compile
