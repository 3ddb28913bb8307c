// Which copy of a part's frame a microbatch has, while a stage runs its sections.
#include <algorithm>
#include <set>

#include "compile/passes.h"
#include "compile/rendezvous.h"

namespace perigee::compile {

namespace {

int32_t section_of(const Draft& draft, int part, PipelineKind kind) {
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    const auto& section = draft.sections[s];
    if (section.part == part && section.kind == kind) return static_cast<int32_t>(s);
  }
  return -1;
}

}  // namespace

std::vector<std::pair<int32_t, int32_t>> runs_of(const Draft& draft) {
  std::vector<int> parts;  // by chunk
  for (const auto& section : draft.sections) {
    if (section.part < 0 || is_kept(section.part)) continue;
    if (section.kind == PipelineKind::forward) parts.push_back(section.part);
  }
  std::vector<std::pair<int32_t, int32_t>> runs;
  for (const auto& op : draft.order) {
    const bool input = op.kind == PipelineKind::input_grad;
    const bool keeps = !draft.kept.empty() && draft.kept[op.microbatch];
    const int part = keeps ? kept_part(parts[op.chunk]) : parts[op.chunk];
    runs.emplace_back(section_of(draft, part, input ? PipelineKind::backward : op.kind),
                      op.microbatch);
    // Where a schedule splits some of its backward passes, the others are both halves.
    if (op.kind != PipelineKind::backward) continue;
    if (const auto weights = section_of(draft, part, PipelineKind::weight_grad); weights >= 0) {
      runs.emplace_back(weights, op.microbatch);
    }
  }
  return runs;
}

std::vector<std::map<int, int32_t>> copies_by_run(const Draft& draft) {
  const auto runs = runs_of(draft);
  // Which parts' frames a section touches: its own, and those of parts whose values it uses.
  std::vector<std::set<int>> touched(draft.sections.size());
  std::map<int32_t, int> made_by;  // root: part
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    const auto& section = draft.sections[s];
    if (section.part < 0) continue;
    touched[s].insert(section.part);
    for (const auto& part : section.instructions) {
      const auto touch = [&](ValueId v) {
        const auto root = draft.root(v).index;
        const auto& home = draft.homes[root];
        if (home.kind == Home::Kind::persistent || home.outlives) return;
        const auto [at, added] = made_by.emplace(root, section.part);
        if (is_kept(at->second) == is_kept(section.part)) touched[s].insert(at->second);
      };
      each_operand(part.instruction, touch);
      for (auto v : part.instruction.outputs) {
        if (v.defined()) touch(v);
      }
    }
  }
  std::map<std::pair<int, int32_t>, Span> spans;
  for (size_t r = 0; r < runs.size(); ++r) {
    for (int part : touched[runs[r].first]) {
      const auto [at, added] = spans.try_emplace({part, runs[r].second}, Span{r, r});
      at->second.last = r;
    }
  }
  std::map<int, std::vector<std::pair<Span, int32_t>>> by_part;  // with microbatches
  for (const auto& [key, span] : spans) by_part[key.first].emplace_back(span, key.second);
  std::vector<std::map<int, int32_t>> copies(runs.size());
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

int64_t copies_of(const Draft& draft, int part) {
  int64_t most = draft.copies.at(part);
  for (const auto& copies : copies_by_run(draft)) {
    const auto found = copies.find(part);
    if (found != copies.end()) most = std::max(most, int64_t{found->second} + 1);
  }
  return most;
}

}  // namespace perigee::compile
