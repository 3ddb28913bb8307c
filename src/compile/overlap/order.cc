// The start of collectives and the unpacking of their results.
#include "compile/overlap/order.h"

#include <algorithm>

namespace perigee::compile {

namespace {

// Moves instructions of one section within their dependencies.
class Order {
 public:
  Order(const Draft& draft, std::vector<DraftInstruction>& list)
      : draft_(draft), list_(list), made_(draft.program.values.size(), -1), used_(made_) {}

  void run() {
    start_early();
    unpack_late();
  }

 private:
  template <class F>
  void each_write(const Instruction& instruction, F f) const {
    for (auto v : instruction.outputs) {
      if (v.defined()) f(draft_.root(v).index);
    }
  }

  bool reads_what_lasts(const Instruction& instruction) const {
    bool lasts = false;
    each_operand(instruction, [&](ValueId v) {
      lasts = lasts || draft_.homes[draft_.root(v).index].kind == Home::Kind::persistent;
    });
    return lasts;
  }

  // Moves collectives to the instruction that they must follow (-1: none). Instructions that follow
  // the same one keep their order.
  void start_early() {
    std::vector<std::vector<size_t>> followers(list_.size() + 1);
    int64_t last_collective = -1;
    for (size_t i = 0; i < list_.size(); ++i) {
      const auto& instruction = list_[i].instruction;
      int64_t after = static_cast<int64_t>(i) - 1;
      if (list_[i].move == Move::early && !reads_what_lasts(instruction)) {
        after = -1;
        each_operand(instruction,
                     [&](ValueId v) { after = std::max(after, made_[draft_.root(v).index]); });
        each_write(instruction, [&](int32_t root) {
          after = std::max({after, made_[root], used_[root]});
        });
      }
      const bool collective = instruction.kind == Instruction::Kind::collective &&
                              !is_copy(instruction.op);
      if (collective) after = std::max(after, last_collective);
      // A moved instruction has the position of the one that it follows.
      const int64_t place = list_[i].move == Move::early ? after : static_cast<int64_t>(i);
      if (collective) last_collective = place;
      each_operand(instruction, [&](ValueId v) {
        auto& used = used_[draft_.root(v).index];
        used = std::max(used, place);
      });
      each_write(instruction, [&](int32_t root) { made_[root] = std::max(made_[root], place); });
      if (list_[i].move == Move::early) {
        followers[static_cast<size_t>(after + 1)].push_back(i);
      }
    }
    std::vector<DraftInstruction> out;
    out.reserve(list_.size());
    const auto put = [&](size_t place) {
      for (size_t i : followers[place]) out.push_back(std::move(list_[i]));
    };
    put(0);
    for (size_t i = 0; i < list_.size(); ++i) {
      if (list_[i].move != Move::early) out.push_back(std::move(list_[i]));
      put(i + 1);
    }
    list_ = std::move(out);
  }

  // Delays copies that unpack results until an instruction uses their source or target.
  void unpack_late() {
    std::vector<DraftInstruction> out, held;
    const auto touches = [&](const Instruction& instruction, const Instruction& other) {
      bool found = false;
      const auto compare = [&](int32_t root) {
        each_write(other, [&](int32_t written) { found = found || written == root; });
      };
      each_operand(instruction, [&](ValueId v) { compare(draft_.root(v).index); });
      each_write(instruction, compare);
      return found;
    };
    for (auto& draft : list_) {
      if (draft.move == Move::late) {
        held.push_back(std::move(draft));
        continue;
      }
      for (auto late = held.begin(); late != held.end();) {
        if (touches(draft.instruction, late->instruction) ||
            touches(late->instruction, draft.instruction)) {
          out.push_back(std::move(*late));
          late = held.erase(late);
        } else {
          ++late;
        }
      }
      out.push_back(std::move(draft));
    }
    for (auto& late : held) out.push_back(std::move(late));
    list_ = std::move(out);
  }

  const Draft& draft_;
  std::vector<DraftInstruction>& list_;
  // By root: the last instruction that wrote it, or read it.
  std::vector<int64_t> made_, used_;
};

}  // namespace

void order_collectives(Draft& draft) {
  for (auto& section : draft.sections) Order(draft, section.instructions).run();
}

}  // namespace perigee::compile
