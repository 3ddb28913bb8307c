// Matrix products that are computed and all-reduced in pieces.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "compile/collective.h"
#include "compile/instance.h"
#include "compile/layout.h"
#include "compile/passes.h"

namespace perigee::compile {

namespace {

using Instructions = std::vector<DraftInstruction>;

// A product and the all-reduce of all of it, which nothing else reads.
struct Reduced {
  size_t product = 0, reduce = 0;  // instructions
  ValueId sums;                    // [rows, columns], its own memory
  ValueId result;                  // of the all-reduce
};

class Slices {
 public:
  Slices(Draft& draft, int64_t slices, TraceSource& traces)
      : draft_(draft), slices_(slices), traces_(traces) {}

  void run() {
    for (auto& section : draft_.sections) {
      for (const auto& part : section.instructions) {
        reads_.resize(draft_.program.values.size());
        each_operand(part.instruction, [&](ValueId v) { ++reads_[draft_.root(v).index]; });
      }
    }
    bool any = false;
    for (auto& section : draft_.sections) {
      auto& list = section.instructions;
      for (const auto& reduced : find(list)) any = cut(list, reduced) || any;
      Instructions out;
      for (size_t i = 0; i < list.size(); ++i) {
        const auto made = pieces_.find(i);
        if (made != pieces_.end()) {
          for (auto& piece : made->second) out.push_back(std::move(piece));
        } else if (!gone_.contains(i)) {
          out.push_back(std::move(list[i]));
        }
      }
      list = std::move(out);
      pieces_.clear();
      gone_.clear();
    }
    if (!any) {
      fail("overlap",
           "slices cut matrix products whose sums are all-reduced, but the step has none: use "
           "tensor_parallel without sequence = true beside it, or leave slices out");
    }
  }

 private:
  std::vector<Reduced> find(const Instructions& list) const {
    std::vector<Reduced> found;
    for (size_t j = 0; j < list.size(); ++j) {
      const auto& reduce = list[j].instruction;
      if (reduce.op != "comm::all_reduce" || reduce.in_place) continue;
      ValueId operand;
      each_operand(reduce, [&](ValueId v) { operand = v; });
      const auto root = draft_.root(operand);
      const auto& sums = draft_.value(root);
      const auto& whole = draft_.value(operand).type;
      if (sums.type.shape.size() != 2 || !is_contiguous(sums.type.shape, sums.strides) ||
          whole.numel() != sums.type.numel() || reads_[root.index] != 1 ||
          draft_.value(reduce.outputs[0]).view_of.defined()) {
        continue;
      }
      for (size_t i = j; i-- > 0;) {
        const auto& product = list[i].instruction;
        if (product.kind == Instruction::Kind::collective) break;
        if (product.outputs.empty() || !product.outputs[0].defined() ||
            draft_.root(product.outputs[0]) != root) {
          continue;
        }
        if (product.op == "aten::mm" && product.outputs[0] == root &&
            list[i].when == list[j].when) {
          found.push_back({i, j, root, reduce.outputs[0]});
        }
        break;
      }
    }
    return found;
  }

  // Rows [begin, begin + count) of a matrix.
  ValueId rows(ValueId v, int64_t begin, int64_t count) {
    const ProgramValue whole = draft_.value(v);
    auto type = whole.type;
    type.shape[0] = count;
    const auto offset = begin * whole.strides[0] * static_cast<int64_t>(graph::size_of(type.dtype));
    return draft_.add_view(v, offset, std::move(type), whole.strides, whole.name);
  }

  bool cut(const Instructions& list, const Reduced& reduced) {
    const auto all = draft_.value(reduced.sums).type.shape[0];
    const auto lengths = part_lengths(all, std::min(slices_, all));
    if (lengths.size() < 2) return false;
    Instructions pieces;
    int64_t begin = 0;
    for (int64_t length : lengths) {
      auto product = list[reduced.product];
      for (auto& [name, arg] : product.instruction.args) {
        if (name == "self") arg = rows(std::get<ValueId>(arg), begin, length);
      }
      const auto part = rows(reduced.sums, begin, length);
      product.instruction.outputs = {part};
      if (!set_allocations(draft_, product, traces_)) return false;
      auto reduce = list[reduced.reduce];
      for (auto& [name, arg] : reduce.instruction.args) {
        if (std::holds_alternative<ValueId>(arg)) arg = part;
      }
      reduce.instruction.outputs = {part};
      reduce.instruction.in_place = true;
      reduce.move = Move::none;
      if (begin > 0) reduce.instruction.event = draft_.program.events++;
      pieces.push_back(std::move(product));
      pieces.push_back(std::move(reduce));
      begin += length;
    }
    // What read the result reads the sums where they are.
    for (auto& value : draft_.program.values) {
      if (value.view_of == reduced.result) value.view_of = reduced.sums;
    }
    draft_.value(reduced.result).view_of = reduced.sums;
    pieces_[reduced.product] = std::move(pieces);
    gone_.insert(reduced.reduce);
    return true;
  }

  Draft& draft_;
  const int64_t slices_;
  TraceSource& traces_;
  std::vector<int> reads_;                 // by root
  std::map<size_t, Instructions> pieces_;  // by the product that they stand for
  std::set<size_t> gone_;                  // all-reduces
};

}  // namespace

void slice_products(Draft& draft, int64_t slices, TraceSource& traces) {
  if (slices > 1) Slices(draft, slices, traces).run();
}

}  // namespace perigee::compile
