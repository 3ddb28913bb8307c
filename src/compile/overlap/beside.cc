// Weight gradients that run during collectives.
#include "compile/overlap/beside.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "compile/overlap/product_pairs.h"

namespace perigee::compile {

namespace {

bool is_product(const Instruction& instruction) {
  return is_plain_product(instruction.op) || instruction.op == "perigee::addmm_" ||
         instruction.op == "perigee::mm_";
}

// Memory that an instruction reads or writes: a root and a range of its bytes.
struct Use {
  int32_t root;
  std::pair<int64_t, int64_t> bytes;
};
using Uses = std::vector<Use>;

bool meet(const Uses& a, const Uses& b) {
  return std::any_of(a.begin(), a.end(), [&](const Use& x) {
    return std::any_of(b.begin(), b.end(), [&](const Use& y) {
      return x.root == y.root && x.bytes.first < y.bytes.second && y.bytes.first < x.bytes.second;
    });
  });
}

void append(Uses& to, const Uses& more) { to.insert(to.end(), more.begin(), more.end()); }

class Beside {
 public:
  Beside(const Draft& draft, std::vector<DraftInstruction>& list) : draft_(draft), list_(list) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].instruction.kind != Instruction::Kind::op ||
          list[i].instruction.op == "perigee::accumulate_") {
        continue;
      }
      const auto out = writes(i);
      for (const auto& use : reads(i)) {
        if (!meet({use}, out)) read_.insert(use.root);
      }
    }
  }

  void run() {
    for (size_t i = 0; i < list_.size(); ++i) {
      const auto& instruction = list_[i].instruction;
      if (instruction.kind == Instruction::Kind::collective && !is_copy(instruction.op) &&
          instruction.phase == graph::Phase::backward) {
        move_after_start(i);
      }
    }
  }

 private:
  Use use(ValueId v) const { return {draft_.root(v).index, draft_.bytes_of(v)}; }
  Uses reads(size_t i) const {
    Uses uses;
    each_operand(list_[i].instruction, [&](ValueId v) { uses.push_back(use(v)); });
    return uses;
  }
  Uses writes(size_t i) const {
    Uses uses;
    for (auto v : list_[i].instruction.outputs) {
      if (v.defined()) uses.push_back(use(v));
    }
    return uses;
  }

  // Returns whether a product's result is only added to a gradient, or not read in the section.
  bool gives_gradient(size_t i) const {
    const auto& instruction = list_[i].instruction;
    return is_product(instruction) && instruction.outputs[0].defined() &&
           !read_.contains(draft_.root(instruction.outputs[0]).index);
  }

  // Returns whether the results of two products are added to each other in place.
  bool same_sum(size_t a, size_t b) const {
    const auto root = [&](size_t i) { return draft_.root(list_[i].instruction.outputs[0]); };
    return root(a) == root(b);
  }

  // Moves products on which the collective does not depend, and their readers, from before the last
  // product on which it depends to after its start.
  void move_after_start(size_t collective) {
    Uses needed = reads(collective);
    size_t begin = collective, last = collective;
    while (begin > 0 && list_[begin - 1].instruction.kind == Instruction::Kind::op) {
      const bool need = meet(writes(begin - 1), needed);
      const bool product = is_product(list_[begin - 1].instruction);
      if (need && product && last < collective && !same_sum(begin - 1, last)) break;
      --begin;
      if (!need) continue;
      if (product) last = begin;
      append(needed, reads(begin));
    }
    if (last == collective) return;
    std::vector<size_t> moved;
    Uses written, read;  // by instructions that move
    for (size_t i = begin; i < collective; ++i) {
      const auto in = reads(i), out = writes(i);
      if ((i < last && gives_gradient(i) && !meet(out, needed)) || meet(in, written)) {
        if (meet(out, needed)) return;
        moved.push_back(i);
        append(written, out);
        append(read, in);
      } else if (meet(out, written) || meet(out, read)) {
        return;
      }
    }
    if (moved.empty() || meet(read, writes(collective))) return;
    std::vector<DraftInstruction> stay, go;
    for (size_t i = begin; i <= collective; ++i) {
      const bool goes = std::binary_search(moved.begin(), moved.end(), i);
      (goes ? go : stay).push_back(std::move(list_[i]));
    }
    std::move(stay.begin(), stay.end(), list_.begin() + static_cast<ptrdiff_t>(begin));
    std::move(go.begin(), go.end(), list_.begin() + static_cast<ptrdiff_t>(begin + stay.size()));
  }

  const Draft& draft_;
  std::vector<DraftInstruction>& list_;
  std::set<int32_t> read_;  // roots that ops read, except sums of gradients that they add to
};

}  // namespace

void put_products_beside(Draft& draft) {
  for (auto& section : draft.sections) Beside(draft, section.instructions).run();
}

}  // namespace perigee::compile
