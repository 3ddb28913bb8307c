// What a rank runs as a whole for one microbatch, and how long what it sends stays in use.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "compile/passes.h"
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
  if (!stage) return {{.name = "micro", .nodes = micro}};
  std::vector<MicroSection> sections;
  for (const auto& section : stage->sections) {
    const char* name = section.kind == PipelineKind::forward    ? "forward"
                       : section.kind == PipelineKind::backward ? "backward"
                                                                : "weights";
    auto part = section.part;
    part.kept = kept;
    sections.push_back({fmt::format("{}.{}", name, to_string(part)), part, section.kind, {}});
  }
  for (auto n : micro) sections[stage->section[n]].nodes.push_back(n);
  return sections;
}

void wait_for_sends(Draft& draft) {
  // What a forward pass sends is waited for by its microbatch's backward pass; what a backward pass
  // sends by the forward passes of the parts that have its copy of the frame next.
  const auto find = [&](const PartId& part, PipelineKind kind) {
    std::vector<DraftSection*> found;
    for (auto& section : draft.sections) {
      if (!section.part.defined() || section.kind != kind) continue;
      const bool shares =
          kind == PipelineKind::forward && draft.frame_of(section.part) == draft.frame_of(part);
      if (section.part == part || shares) found.push_back(&section);
    }
    return found;
  };
  for (size_t s = 0; s < draft.sections.size(); ++s) {
    auto& section = draft.sections[s];
    if (!section.part.defined()) continue;
    std::vector<DraftInstruction> waits;
    for (const auto& sent : section.instructions) {
      if (is_send(sent)) waits.push_back(wait_for(sent.instruction.event));
    }
    if (waits.empty()) continue;
    const bool forward = section.kind == PipelineKind::forward;
    const auto where = find(section.part, forward ? PipelineKind::backward : PipelineKind::forward);
    if (where.empty()) {
      std::move(waits.begin(), waits.end(), std::back_inserter(section.instructions));
    }
    for (auto* waiting : where) {
      waiting->instructions.insert(waiting->instructions.begin(), waits.begin(), waits.end());
    }
  }
}

}  // namespace perigee::compile
