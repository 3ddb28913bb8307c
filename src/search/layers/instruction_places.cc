#include "search/layers/instruction_places.h"

#include <algorithm>
#include <unordered_map>

namespace perigee::search {

using compile::Instruction;
using compile::SectionKind;
using graph::Phase;
using graph::ValueId;

InstructionPlaces::InstructionPlaces(const compile::Program& program, const LayerScopes& scopes)
    : program_(program), scopes_(scopes) {
  find_late();
  find_weight_gradients();
}

const Where& InstructionPlaces::where(const Instruction& instruction) const {
  static const Where last{kEpilogue, ""};
  return late_.contains(&instruction) ? last : scopes_.of_scope(instruction.scope);
}

// Finds the part of the epilogue whose scope begins before the blocks.
void InstructionPlaces::find_late() {
  for (const auto& section : program_.sections) {
    const auto& list = section.instructions;
    const auto in_block = [&](Phase phase) {
      return [this, phase](const Instruction& i) {
        return i.phase == phase && scopes_.of_scope(i.scope).place == kBlock;
      };
    };
    const auto forward = std::find_if(list.rbegin(), list.rend(), in_block(Phase::forward));
    const auto backward = std::find_if(list.begin(), list.end(), in_block(Phase::backward));
    const auto note = [&](auto begin, auto end, Phase phase) {
      for (auto at = begin; at != end; ++at) {
        if (at->phase == phase) late_.insert(&*at);
      }
    };
    if (forward != list.rend()) note(forward.base(), list.end(), Phase::forward);
    if (backward != list.end()) note(list.begin(), backward, Phase::backward);
  }
}

void InstructionPlaces::find_weight_gradients() {
  for (const auto& section : program_.sections) {
    if (section.role.kind == SectionKind::step) break;
    std::unordered_map<int32_t, const Where*> made;
    std::set<int32_t> wanted;
    const auto each_operand = [](const Instruction& instruction, auto visit) {
      const graph::Node node{.op = instruction.op, .args = instruction.args};
      node.each_operand(visit);
    };
    for (const auto& instruction : section.instructions) {
      if (instruction.phase != Phase::backward) continue;
      const auto& here = where(instruction);
      each_operand(instruction, [&](ValueId v) {
        const auto found = made.find(root_of(program_, v).index);
        if (found != made.end() && *found->second != here) wanted.insert(found->first);
      });
      for (auto v : instruction.outputs) {
        if (v.defined()) made.try_emplace(root_of(program_, v).index, &here);
      }
    }
    for (auto at = section.instructions.rbegin(); at != section.instructions.rend(); ++at) {
      if (at->phase != Phase::backward || at->kind == Instruction::Kind::wait) continue;
      const bool needed = std::any_of(at->outputs.begin(), at->outputs.end(), [&](ValueId v) {
        return v.defined() && wanted.contains(root_of(program_, v).index);
      });
      if (!needed) {
        weight_gradients_.insert(&*at);
        continue;
      }
      each_operand(*at, [&](ValueId v) { wanted.insert(root_of(program_, v).index); });
    }
  }
}

ValueId root_of(const compile::Program& program, ValueId v) {
  const auto base = program.values[v.index].view_of;
  return base.defined() ? base : v;
}

}  // namespace perigee::search
