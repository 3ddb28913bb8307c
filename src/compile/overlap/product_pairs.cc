#include "compile/overlap/product_pairs.h"

#include <algorithm>

#include "compile/draft/layout.h"

namespace perigee::compile {

bool is_plain_product(std::string_view op) { return op == "aten::mm" || op == "aten::_scaled_mm"; }

namespace {

// Returns whether a product of eight-bit factors adds a bias.
bool adds_bias(const Instruction& product) {
  return std::ranges::any_of(product.args, [](const auto& arg) { return arg.first == "bias"; });
}

}  // namespace

std::optional<size_t> rows_of(const Instruction& product) {
  const bool adds = product.op == "aten::addmm";
  if (!adds && !is_plain_product(product.op)) return {};
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

// Returns whether the value covers all of its memory, in row-major order.
bool ProductPairs::is_whole(ValueId v) const {
  const auto& value = draft_.value(v);
  return is_contiguous(value.type.shape, value.strides) && draft_.view_offset[v.index] == 0 &&
         value.type.numel() == draft_.value(draft_.root(v)).type.numel();
}

// Returns whether the value is whole, as above, and a matrix.
bool ProductPairs::is_matrix(ValueId v) const {
  return draft_.value(v).type.shape.size() == 2 && is_whole(v);
}

// Finds the products before `end` whose sum is `root`. Fails where anything else reads a summand.
bool ProductPairs::find_terms(const Instructions& list, size_t end, ValueId root,
                              ProductPair& pair) const {
  for (size_t i = end; i-- > 0;) {
    const auto& at = list[i].instruction;
    const bool makes = std::any_of(at.outputs.begin(), at.outputs.end(), [&](ValueId v) {
      return v.defined() && draft_.root(v) == root;
    });
    if (!makes) continue;
    if (list[i].when != list[pair.collective].when || at.outputs[0] != root) return false;
    if (is_plain_product(at.op) && !adds_bias(at)) {
      pair.products.push_back(i);
      const auto& first = list[pair.products[0]].instruction;
      return is_matrix(root) && draft_.value(root).type == draft_.value(first.outputs[0]).type;
    }
    if (at.op != "aten::add.Tensor" || at.args.size() != 2 || !is_whole(root)) return false;
    pair.additions.push_back(i);
    return std::all_of(at.args.begin(), at.args.end(), [&](const auto& arg) {
      const auto* v = std::get_if<ValueId>(&arg.second);
      return v && is_whole(*v) && reads(draft_.root(*v)) == 1 &&
             draft_.value(*v).type.dtype == draft_.value(root).type.dtype &&
             draft_.value(*v).type.numel() == draft_.value(root).type.numel() &&
             find_terms(list, i, draft_.root(*v), pair);
    });
  }
  return false;
}

// Returns whether the products can be delayed to the pair's place: nothing before it writes
// their operands.
bool ProductPairs::can_wait(const Instructions& list, const ProductPair& pair) const {
  for (size_t product : pair.products) {
    for (size_t i = product + 1; i < pair.place; ++i) {
      for (auto v : list[i].instruction.outputs) {
        bool needed = false;
        if (!v.defined()) continue;
        each_operand(list[product].instruction,
                     [&](ValueId read) { needed = needed || draft_.root(read) == draft_.root(v); });
        if (needed) return false;
      }
    }
  }
  return true;
}

// Returns whether an addmm adds the same row to every row of its result.
bool ProductPairs::adds_a_row(const Instruction& product) const {
  return is_plain_product(product.op) ||
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
    const bool alone = copies == 0 ? reads(read) == 1
                                   : reads(read) == copies + 1 && reads(pair.matrix) == copies;
    if (!alone || draft_.value(operand).type.numel() != draft_.value(pair.matrix).type.numel() ||
        !find_terms(list, i + 1, pair.matrix, pair)) {
      return {};
    }
    pair.place = i;
    if (!can_wait(list, pair)) return {};
    return pair;
  }
  return {};
}

std::optional<ProductPair> ProductPairs::gathered(const Instructions& list,
                                                  size_t collective) const {
  const ValueId result = list[collective].instruction.outputs[0];
  ProductPair pair{.collective = collective, .matrix = result, .result = result};
  if (draft_.value(result).view_of.defined()) return {};
  std::optional<size_t> first;  // reader of the gathered operand
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
      continue;  // a weight gradient, which can run later
    }
    const auto copies = static_cast<int>(pair.copies.size());
    if (copies > 0 && reads(result) != copies) return {};
    for (size_t before = *first; before < i; ++before) {
      for (auto v : list[before].instruction.outputs) {
        if (v.defined() && touches(at, draft_.root(v))) return {};
      }
    }
    pair.products = {i};
    pair.place = *first;
    return pair;
  }
  return {};
}

}  // namespace perigee::compile
