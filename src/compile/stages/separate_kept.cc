// Memory of microbatches that keep their results, separate from that of recomputing ones.
#include "compile/stages/separate_kept.h"

#include <cstdint>
#include <map>
#include <vector>

namespace perigee::compile {

namespace {

// The sections that use a value, as bits.
enum Used : uint8_t { kRecomputing = 1, kKeeping = 2, kOutside = 4 };

template <class F>
void each_value(Instruction& instruction, F f) {
  for (auto& [name, arg] : instruction.args) {
    if (auto* v = std::get_if<ValueId>(&arg)) {
      if (v->defined()) f(*v);
    } else if (auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      for (auto& v : *list) {
        if (v.defined()) f(v);
      }
    }
  }
  for (auto& v : instruction.outputs) {
    if (v.defined()) f(v);
  }
}

}  // namespace

void separate_kept(Draft& draft) {
  if (draft.kept.empty()) return;
  std::vector<uint8_t> used(draft.program.values.size());
  for (auto& section : draft.sections) {
    const auto bit = !section.role.part.defined() ? kOutside
                     : section.role.part.kept     ? kKeeping
                                                  : kRecomputing;
    for (auto& part : section.instructions) {
      each_value(part.instruction, [&](ValueId v) { used[draft.root(v).index] |= bit; });
    }
  }
  std::map<int32_t, ValueId> twins;  // by value
  const auto twin = [&](ValueId v, auto& self) -> ValueId {
    const auto known = twins.find(v.index);
    if (known != twins.end()) return known->second;
    const ProgramValue from = draft.value(v);
    const ValueId made = from.view_of.defined()
                             ? draft.add_view(self(from.view_of, self), draft.view_offset[v.index],
                                              from.type, from.strides, from.name)
                             : draft.add(from.type, from.name, draft.homes[v.index], from.strides);
    return twins[v.index] = made;
  };
  for (auto& section : draft.sections) {
    if (!section.role.part.kept) continue;
    for (auto& part : section.instructions) {
      each_value(part.instruction, [&](ValueId& v) {
        const auto root = static_cast<size_t>(draft.root(v).index);
        if (root >= used.size() || used[root] != (kRecomputing | kKeeping)) return;
        const auto& home = draft.homes[root];
        if (home.kind == Home::Kind::persistent || home.outlives) return;
        v = twin(v, twin);
      });
    }
  }
}

}  // namespace perigee::compile
