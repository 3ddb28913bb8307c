// The sections of one microbatch, and the lifetime of sent values.
#include "compile/stages/parts.h"

#include <algorithm>
#include <iterator>

#include "compile/draft/source.h"
#include "graph/ops.h"

namespace perigee::compile {

using graph::NodeId;

namespace {

bool is_send(const DraftInstruction& draft) { return draft.instruction.op == "comm::send"; }

}  // namespace

size_t Source::section_of(graph::ValueId v) const {
  const auto producer = local.graph.values[v.index].producer;
  for (size_t s = 0; s + 1 < sections.size() && producer >= 0; ++s) {
    const auto& nodes = sections[s].nodes;
    if (std::binary_search(nodes.begin(), nodes.end(), producer)) return s;
  }
  return sections.size() - 1;
}

std::vector<MicroSection> make_micro_sections(const std::vector<NodeId>& micro, const Stage* stage,
                                              bool kept) {
  if (!stage) return {{.nodes = micro}};
  std::vector<MicroSection> sections;
  for (auto role : stage->sections) {
    role.part.kept = kept;
    sections.push_back({role, {}});
  }
  for (auto n : micro) sections[stage->section[n]].nodes.push_back(n);
  return sections;
}

void wait_for_sends(Draft& draft) {
  // The sends of a forward pass are waited for by its microbatch's backward pass; those of a
  // backward pass by the forward passes of the parts that use its copy of the frame next.
  const auto find = [&](const PartId& part, SectionKind kind) {
    std::vector<DraftSection*> found;
    for (auto& section : draft.sections) {
      if (!section.role.part.defined() || section.role.kind != kind) continue;
      const bool shares = kind == SectionKind::forward &&
                          draft.frame_of(section.role.part) == draft.frame_of(part);
      if (section.role.part == part || shares) found.push_back(&section);
    }
    return found;
  };
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    auto& section = draft.sections[s];
    if (!section.role.part.defined()) continue;
    std::vector<DraftInstruction> waits;
    for (const auto& sent : section.instructions) {
      if (is_send(sent)) waits.push_back(wait_for(sent.instruction.event));
    }
    if (waits.empty()) continue;
    const bool forward = section.role.kind == SectionKind::forward;
    const auto where = find(section.role.part,
                            forward ? SectionKind::backward : SectionKind::forward);
    if (where.empty()) {
      std::move(waits.begin(), waits.end(), std::back_inserter(section.instructions));
    }
    for (auto* waiting : where) {
      waiting->instructions.insert(waiting->instructions.begin(), waits.begin(), waits.end());
    }
  }
}

}  // namespace perigee::compile
