// Values that outlive a step in host memory: on the device while an instruction needs them.
#include "compile/overlap/offload_state.h"

#include <algorithm>
#include <map>
#include <vector>

#include "graph/ops.h"

namespace perigee::compile {

namespace {

using Instructions = std::vector<DraftInstruction>;

bool on_host(const Draft& draft, ValueId v) {
  const auto& home = draft.homes[draft.root(v).index];
  return home.kind == Home::Kind::persistent && home.host;
}

// An instruction on values in host memory, rewritten to use copies on the device.
struct Staged {
  size_t at = 0;  // its index
  uint8_t when = kAlways;
  Instructions fetches, stores;
  std::vector<int32_t> writes;  // roots
};

// Replaces values on the host by values on the device.
Staged stage(Draft& draft, DraftInstruction& part, size_t at) {
  auto& instruction = part.instruction;
  const bool collective = instruction.kind == Instruction::Kind::collective;
  const Home home = collective ? Home{Home::Kind::communication, instruction.stream} : Home{};
  std::map<int32_t, ValueId> twins;  // by value on the host
  const auto twin = [&](ValueId v) {
    auto& made = twins[v.index];
    if (!made.defined()) {
      const ProgramValue like = draft.value(v);
      made = draft.add(like.type, like.name, home, like.strides);
    }
    return made;
  };
  Staged staged{.at = at, .when = part.when, .fetches = {}, .stores = {}, .writes = {}};
  const auto copy = [&](Instructions& to, ValueId from, ValueId target, bool store) {
    to.push_back(copy_bytes(draft, from, target, store));
    to.back().when = part.when;
    to.back().instruction.scope = instruction.scope;
    to.back().instruction.phase = instruction.phase;
  };
  std::vector<ValueId> reads, writes;
  each_read(instruction, [&](ValueId v) {
    if (on_host(draft, v) && std::find(reads.begin(), reads.end(), v) == reads.end()) {
      reads.push_back(v);
    }
  });
  for (auto v : instruction.outputs) {
    if (v.defined() && on_host(draft, v)) writes.push_back(v);
  }
  for (auto v : reads) copy(staged.fetches, v, twin(v), false);
  for (auto v : writes) {
    copy(staged.stores, twin(v), v, true);
    staged.writes.push_back(draft.root(v).index);
  }
  const auto replace = [&](ValueId& v) {
    if (v.defined() && on_host(draft, v)) v = twin(v);
  };
  for (auto& [name, arg] : instruction.args) {
    if (auto* v = std::get_if<ValueId>(&arg)) {
      replace(*v);
    } else if (auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      for (auto& v : *list) replace(v);
    }
  }
  for (auto& v : instruction.outputs) replace(v);
  return staged;
}

}  // namespace

void stage_host_state(Draft& draft, const plan::Offload& offload) {
  if (!offload.parameters && !offload.optimizer) return;
  for (auto& section : draft.sections) {
    auto& list = section.instructions;
    std::vector<Staged> staged;
    for (size_t i = 0; i < list.size(); ++i) {
      if (is_copy(list[i].instruction.op)) continue;
      bool touches = false;
      each_operand(list[i].instruction, [&](ValueId v) { touches = touches || on_host(draft, v); });
      for (auto v : list[i].instruction.outputs) {
        touches = touches || (v.defined() && on_host(draft, v));
      }
      if (touches) staged.push_back(stage(draft, list[i], i));
    }
    if (staged.empty()) continue;
    // Instructions to insert before and after each instruction.
    std::vector<Instructions> before(list.size()), after(list.size());
    for (size_t k = 0; k < staged.size(); ++k) {
      size_t early = k;
      const auto writes = [&](size_t other, ValueId v) {
        const auto& roots = staged[other].writes;
        return std::find(roots.begin(), roots.end(), draft.root(v).index) != roots.end();
      };
      const auto clear = [&](size_t other) {
        return std::none_of(staged[k].fetches.begin(), staged[k].fetches.end(),
                            [&](const DraftInstruction& fetch) {
                              bool found = false;
                              each_operand(fetch.instruction,
                                           [&](ValueId v) { found = found || writes(other, v); });
                              return found;
                            });
      };
      while (early > 0 && static_cast<int64_t>(k - early) < offload.prefetch && clear(early - 1)) {
        --early;
      }
      for (auto& fetch : staged[k].fetches) before[staged[early].at].push_back(std::move(fetch));
      // The device's memory is free after the next such instruction.
      const size_t until = offload.prefetch > 0 ? std::min(k + 1, staged.size() - 1) : k;
      for (auto& store : staged[k].stores) {
        auto wait = wait_for(store.instruction.event);
        wait.when = store.when;
        if (until == k) {
          after[staged[k].at].push_back(std::move(store));
          after[staged[k].at].push_back(std::move(wait));
        } else {
          after[staged[k].at].push_back(std::move(store));
          // Before the next instruction's stores.
          auto& next = after[staged[until].at];
          next.insert(next.begin(), std::move(wait));
        }
      }
    }
    Instructions out;
    for (size_t i = 0; i < list.size(); ++i) {
      for (auto& copy : before[i]) out.push_back(std::move(copy));
      out.push_back(std::move(list[i]));
      for (auto& copy : after[i]) out.push_back(std::move(copy));
    }
    list = std::move(out);
  }
}

}  // namespace perigee::compile
