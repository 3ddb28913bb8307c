// Low gradients that are widened only to be added up.
#include <vector>

#include "compile/layout.h"
#include "compile/passes.h"

namespace perigee::compile {

namespace {

bool is_plain(const Draft& draft, ValueId v) {
  const auto& value = draft.value(v);
  return is_contiguous(value.type.shape, value.strides);
}

}  // namespace

void accumulate_casts(Draft& draft) {
  const auto reads = count_reads(draft);
  for (auto& section : draft.sections) {
    auto& list = section.instructions;
    std::vector<int32_t> maker(draft.program.values.size(), -1);  // by root: a cast
    std::vector<bool> gone(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      auto& instruction = list[i].instruction;
      if (instruction.op == "perigee::cast" && !instruction.in_place &&
          instruction.outputs[0].defined()) {
        maker[draft.root(instruction.outputs[0]).index] = static_cast<int32_t>(i);
      }
      if (instruction.op != "perigee::accumulate_") continue;
      auto& term = std::get<ValueId>(instruction.args[1].second);
      const auto root = draft.root(term).index;
      if (static_cast<size_t>(root) >= maker.size() || maker[root] < 0 || reads[root] != 1) {
        continue;
      }
      const auto& cast = list[maker[root]];
      const auto low = std::get<ValueId>(cast.instruction.args[0].second);
      const auto& wide = draft.value(term);
      if (cast.when != list[i].when || cast.instruction.outputs[0].index != root ||
          draft.view_offset[term.index] != 0 ||
          wide.type.numel() != draft.value(low).type.numel() || !is_plain(draft, term) ||
          !is_plain(draft, {root}) || !is_plain(draft, low)) {
        continue;
      }
      const ProgramValue from = draft.value(low);
      const graph::TensorType type{from.type.dtype, wide.type.shape};
      term = type == from.type
                 ? low
                 : draft.add_view(low, 0, type, contiguous_strides(type.shape), from.name);
      gone[maker[root]] = true;
      maker[root] = -1;
    }
    std::vector<DraftInstruction> out;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!gone[i]) out.push_back(std::move(list[i]));
    }
    list = std::move(out);
  }
}

}  // namespace perigee::compile
