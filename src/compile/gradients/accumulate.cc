#include "compile/gradients/accumulate.h"

#include <vector>

#include "compile/draft/instance.h"
#include "compile/draft/layout.h"

namespace perigee::compile {

namespace {

bool is_row_major(const Draft& draft, ValueId v) {
  const auto& value = draft.value(v);
  return is_contiguous(value.type.shape, value.strides);
}

// Returns whether a value covers all of its memory, in row-major order.
bool is_plain(const Draft& draft, ValueId v) {
  const auto& value = draft.value(v);
  return draft.view_offset[v.index] == 0 && is_contiguous(value.type.shape, value.strides) &&
         value.type.numel() == draft.value(draft.root(v)).type.numel();
}

}  // namespace

void accumulate_products(Draft& draft, TraceSource& traces) {
  const auto reads = count_reads(draft);
  for (auto& section : draft.sections) {
    auto& list = section.instructions;
    std::vector<int32_t> maker(draft.program.values.size(), -1);  // by root: an aten::mm
    std::vector<bool> fused_away(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const auto& instruction = list[i].instruction;
      if (instruction.op == "aten::mm" && instruction.outputs[0].defined()) {
        maker[draft.root(instruction.outputs[0]).index] = static_cast<int32_t>(i);
      }
      if (instruction.op != "perigee::accumulate_" || instruction.args.size() != 2) continue;
      const auto sum = std::get<ValueId>(instruction.args[0].second);
      const auto term = std::get<ValueId>(instruction.args[1].second);
      const auto root = draft.root(term).index;
      if (static_cast<size_t>(root) >= maker.size() || maker[root] < 0 || reads[root] != 1) {
        continue;
      }
      auto& product = list[maker[root]];
      const ValueId made = product.instruction.outputs[0];
      const auto& to = draft.value(sum);
      if (product.when != list[i].when || !is_plain(draft, made) || !is_plain(draft, term) ||
          made.index != root || !is_contiguous(to.type.shape, to.strides) ||
          to.type.dtype != draft.value(made).type.dtype) {
        continue;
      }
      const auto type = draft.value(made).type;
      const auto name = to.name;
      const ValueId target = draft.add_view(sum, 0, type, contiguous_strides(type.shape), name);
      auto args = product.instruction.args;
      args.insert(args.begin(), {"sum", target});
      auto fused = in_place("perigee::addmm_", std::move(args), {target});
      fused.when = product.when;
      fused.instruction.scope = product.instruction.scope;
      fused.instruction.phase = product.instruction.phase;
      set_allocations(draft, fused, traces);
      product = std::move(fused);
      maker[root] = -1;
      fused_away[i] = true;
    }
    std::vector<DraftInstruction> out;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!fused_away[i]) out.push_back(std::move(list[i]));
    }
    list = std::move(out);
  }
}

void accumulate_casts(Draft& draft) {
  const auto reads = count_reads(draft);
  for (auto& section : draft.sections) {
    auto& list = section.instructions;
    std::vector<int32_t> maker(draft.program.values.size(), -1);  // by root: a cast
    std::vector<bool> fused_away(list.size());
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
          wide.type.numel() != draft.value(low).type.numel() || !is_row_major(draft, term) ||
          !is_row_major(draft, {root}) || !is_row_major(draft, low)) {
        continue;
      }
      const ProgramValue from = draft.value(low);
      const graph::TensorType type{from.type.dtype, wide.type.shape};
      term = type == from.type
                 ? low
                 : draft.add_view(low, 0, type, contiguous_strides(type.shape), from.name);
      fused_away[maker[root]] = true;
      maker[root] = -1;
    }
    std::vector<DraftInstruction> out;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!fused_away[i]) out.push_back(std::move(list[i]));
    }
    list = std::move(out);
  }
}

}  // namespace perigee::compile
