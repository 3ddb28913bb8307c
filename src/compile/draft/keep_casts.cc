#include "compile/draft/keep_casts.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "compile/draft/layout.h"
#include "optim/optimizers.h"

namespace perigee::compile {
namespace {

using graph::DType;
using Instructions = std::vector<DraftInstruction>;

constexpr int64_t kAlignment = 16;  // bytes: products read pieces of so many

bool is_update(const Instruction& instruction) {
  return instruction.kind == Instruction::Kind::op && optim::find_elementwise(instruction.op);
}

class KeepCasts {
 public:
  KeepCasts(Draft& draft, DType low) : draft_(draft), low_(low) {}

  void run() {
    find_writers();
    for (auto& section : draft_.sections) {
      if (runs_in_step(section)) continue;
      std::erase_if(section.instructions, [&](const auto& part) { return keep(part.instruction); });
    }
    if (kept_.empty()) return;
    for (auto& section : draft_.sections) {
      if (runs_in_step(section)) write(section.instructions);
    }
    DraftSection refresh{{.kind = SectionKind::refresh}, false, {}};
    refresh.after_writes = true;
    for (const auto& [root, low] : kept_) {
      refresh.instructions.push_back(copy_of({root}));
    }
    draft_.sections.insert(draft_.sections.begin(), std::move(refresh));
  }

 private:
  // Returns whether the section runs once, after the microbatches.
  static bool runs_in_step(const DraftSection& section) {
    return section.role.kind == SectionKind::step || section.role.kind == SectionKind::average;
  }

  // Finds the values that instructions of microbatches write.
  void find_writers() {
    written_.resize(draft_.program.values.size());
    for (const auto& section : draft_.sections) {
      if (runs_in_step(section)) continue;
      for (const auto& part : section.instructions) {
        for (auto v : part.instruction.outputs) {
          if (v.defined()) written_[draft_.root(v).index] = true;
        }
      }
    }
    for (const auto& binding : draft_.program.bindings) {
      if (!binding.value.defined()) continue;
      const auto root = draft_.root(binding.value).index;
      if (binding.kind == Binding::Kind::result) written_[root] = true;
      if (binding.kind == Binding::Kind::parameter) holds_.insert(root);
    }
  }

  // Returns whether the value is memory of weights that only the step and the host write.
  bool is_weights(ValueId root) const {
    const auto& home = draft_.homes[root.index];
    const auto role = draft_.value(root).name.role;
    return draft_.value(root).type.dtype == DType::float32 && !written_[root.index] &&
           home.kind == Home::Kind::persistent && !home.borrowed && !home.host &&
           home.holders == 1 &&
           (holds_.contains(root.index) || role == ValueRole::flat_parameters ||
            role == ValueRole::whole_parameters);
  }

  // Makes the result of a cast of weights part of their low values. Returns false for all others.
  bool keep(const Instruction& cast) {
    if (cast.op != "perigee::cast" || cast.in_place || cast.args.size() != 1) return false;
    const auto result = cast.outputs[0];
    const auto from = std::get<ValueId>(cast.args[0].second);
    if (!result.defined() || draft_.value(result).type.dtype != low_ || !draft_.is_plain(result) ||
        draft_.root(result) != result || draft_.homes[result.index].kind != Home::Kind::scratch) {
      return false;
    }
    const auto root = draft_.root(from);
    const auto offset = draft_.view_offset[from.index] / 2;  // from 4 to 2 bytes
    if (!is_weights(root) || offset % kAlignment != 0 ||
        !is_contiguous(draft_.value(from).type.shape, draft_.value(from).strides)) {
      return false;
    }
    const auto low = low_of(root);
    for (int32_t v = 0; v < std::ssize(draft_.program.values); ++v) {
      const bool shows = v == result.index || draft_.value({v}).view_of == result;
      if (!shows) continue;
      draft_.value({v}).view_of = low;
      draft_.view_offset[v] += offset;
    }
    return true;
  }

  ValueId low_of(ValueId root) {
    const auto [at, added] = kept_.try_emplace(root.index);
    if (added) {
      auto type = draft_.value(root).type;
      type.dtype = low_;
      auto name = draft_.value(root).name + " low";
      name.role = ValueRole::kept_parameters;
      at->second = draft_.add(std::move(type), std::move(name), {Home::Kind::persistent});
    }
    return at->second;
  }

  DraftInstruction copy_of(ValueId root) const {
    const auto low = kept_.at(root.index);
    return in_place("perigee::copy_", {{"self", low}, {"source", root}}, {low});
  }

  // Lets the instructions of a step write the low values of the weights that they write.
  void write(Instructions& list) {
    std::map<int32_t, std::vector<size_t>> writers;  // by root
    for (size_t i = 0; i < list.size(); ++i) {
      for (auto v : list[i].instruction.outputs) {
        if (!v.defined() || !kept_.contains(draft_.root(v).index)) continue;
        auto& found = writers[draft_.root(v).index];
        if (found.empty() || found.back() != i) found.push_back(i);
      }
    }
    std::map<size_t, Instructions> after;
    for (const auto& [root, found] : writers) {
      if (std::ranges::all_of(found, [&](size_t i) { return is_update(list[i].instruction); })) {
        for (size_t i : found) write_beside(list[i]);
      } else {
        after[found.back()].push_back(copy_of({root}));
      }
    }
    if (after.empty()) return;
    Instructions out;
    for (size_t i = 0; i < list.size(); ++i) {
      out.push_back(std::move(list[i]));
      for (auto& copy : after[i]) out.push_back(std::move(copy));
    }
    list = std::move(out);
  }

  // Adds the operand `low` to an update of weights.
  void write_beside(DraftInstruction& part) {
    auto& update = part.instruction;
    const auto self = std::get<ValueId>(update.args[0].second);
    const auto low = kept_.at(draft_.root(self).index);
    const ProgramValue weights = draft_.value(self);
    auto type = weights.type;
    type.dtype = low_;
    const auto written = draft_.add_view(low, draft_.view_offset[self.index] / 2, std::move(type),
                                         weights.strides, draft_.value(low).name);
    update.args.emplace_back("low", written);
    update.outputs.push_back(written);
    part.output_allocation.push_back(-1);
  }

  Draft& draft_;
  const DType low_;
  std::vector<bool> written_;        // by value: a root that a microbatch writes
  std::set<int32_t> holds_;          // roots with the parameters of bindings
  std::map<int32_t, ValueId> kept_;  // low values, by root
};

}  // namespace

void keep_casts(Draft& draft, const Source& source) {
  const auto& precision = source.plan.precision;
  if (!precision.keep_weights || source.spec.borrow_weights || !optimizer_of(source.spec)) return;
  KeepCasts(draft, *precision.dtype).run();
}

}  // namespace perigee::compile
