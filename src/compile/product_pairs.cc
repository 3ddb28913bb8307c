#include "compile/product_pairs.h"

#include <algorithm>

#include "compile/layout.h"

namespace perigee::compile {

ValueId operand_of(const Instruction& collective) {
  ValueId operand;
  each_operand(collective, [&](ValueId v) { operand = v; });
  return operand;
}

std::optional<size_t> rows_of(const Instruction& product) {
  const bool adds = product.op == "aten::addmm";
  if (product.op != "aten::mm" && !adds) return {};
  for (size_t a = 0; a < product.args.size(); ++a) {
    if (product.args[a].first == (adds ? "mat1" : "self")) return a;
  }
  return {};
}

ProductPairs::ProductPairs(const Draft& draft)
    : draft_(draft), reads_(draft.program.values.size()) {
  for (const auto& section : draft.sections) {
    for (const auto& part : section.instructions) {
      each_operand(part.instruction, [&](ValueId v) { ++reads_[draft.root(v).index]; });
    }
  }
}

bool ProductPairs::touches(const Instruction& instruction, ValueId root) const {
  bool found = false;
  const auto look = [&](ValueId v) { found = found || (v.defined() && draft_.root(v) == root); };
  each_operand(instruction, look);
  for (auto v : instruction.outputs) look(v);
  return found;
}

// The value is all of its memory, as a matrix, row by row.
bool ProductPairs::is_matrix(ValueId v) const {
  const auto& value = draft_.value(v);
  return value.type.shape.size() == 2 && is_contiguous(value.type.shape, value.strides) &&
         draft_.view_offset[v.index] == 0 &&
         value.type.numel() == draft_.value(draft_.root(v)).type.numel();
}

// What an addmm adds is the same for each row.
bool ProductPairs::adds_a_row(const Instruction& product) const {
  return product.op == "aten::mm" ||
         draft_.value(std::get<ValueId>(product.args[0].second)).type.shape.size() == 1;
}

std::optional<ProductPair> ProductPairs::summed(const Instructions& list, size_t collective) const {
  const auto& sums = list[collective].instruction;
  const ValueId operand = operand_of(sums), read = draft_.root(operand);
  ProductPair pair{.collective = collective, .matrix = read, .result = sums.outputs[0]};
  if (draft_.value(pair.result).view_of.defined()) return {};
  for (size_t i = collective; i-- > 0;) {
    const auto& at = list[i].instruction;
    if (at.kind == Instruction::Kind::collective) return {};
    if (!touches(at, pair.matrix)) continue;
    if (list[i].when != list[collective].when) return {};
    if (at.op == "perigee::copy_" && draft_.root(at.outputs[0]) == read) {
      const ValueId source = draft_.root(std::get<ValueId>(at.args[1].second));
      if (source == read || (!pair.copies.empty() && source != pair.matrix)) return {};
      pair.copies.push_back(i);
      pair.matrix = source;
      continue;
    }
    const auto copies = static_cast<int>(pair.copies.size());
    const bool alone =
        copies == 0 ? reads(read) == 1 : reads(read) == copies + 1 && reads(pair.matrix) == copies;
    if (at.op != "aten::mm" || at.outputs[0] != pair.matrix || !is_matrix(pair.matrix) || !alone ||
        draft_.value(operand).type.numel() != draft_.value(pair.matrix).type.numel()) {
      return {};
    }
    pair.product = pair.place = i;
    return pair;
  }
  return {};
}

std::optional<ProductPair> ProductPairs::gathered(const Instructions& list,
                                                  size_t collective) const {
  const ValueId result = list[collective].instruction.outputs[0];
  ProductPair pair{.collective = collective, .matrix = result, .result = result};
  if (draft_.value(result).view_of.defined()) return {};
  std::optional<size_t> first;  // that reads what is gathered
  for (size_t i = collective + 1; i < list.size(); ++i) {
    const auto& at = list[i].instruction;
    if (!touches(at, pair.matrix) && !touches(at, result)) continue;
    const bool always = list[i].when == list[collective].when;
    if (at.op == "perigee::copy_" && !first && always &&
        draft_.root(std::get<ValueId>(at.args[1].second)) == result) {
      const ValueId to = draft_.root(at.outputs[0]);
      if (!pair.copies.empty() && to != pair.matrix) return {};
      pair.copies.push_back(i);
      pair.matrix = to;
      continue;
    }
    if (!first) first = i;
    const auto rows = rows_of(at);
    if (!rows) return {};
    const auto given = std::get<ValueId>(at.args[*rows].second);
    const ValueId made = at.outputs[0];
    if (draft_.root(given) != pair.matrix || !is_matrix(given) || draft_.root(made) != made ||
        !is_matrix(made) || !adds_a_row(at) || !always) {
      continue;  // another product that reads it: a weight's gradient
    }
    const auto copies = static_cast<int>(pair.copies.size());
    if (copies > 0 && reads(result) != copies) return {};
    for (size_t before = *first; before < i; ++before) {
      for (auto v : list[before].instruction.outputs) {
        if (v.defined() && touches(at, draft_.root(v))) return {};
      }
    }
    pair.product = i;
    pair.place = *first;
    return pair;
  }
  return {};
}

}  // namespace perigee::compile
