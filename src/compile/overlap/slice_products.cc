// Matrix products in slices of rows, overlapped with the collective that sums their results or
// gathers their rows.
#include "compile/overlap/slice_products.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "compile/draft/collective.h"
#include "compile/draft/copy_parts.h"
#include "compile/draft/instance.h"
#include "compile/draft/layout.h"
#include "compile/overlap/product_pairs.h"
#include "compile/overlap/slice_rows.h"

namespace perigee::compile {

namespace {

class Slices {
 public:
  Slices(Draft& draft, const mesh::Mesh& mesh, const plan::Overlap& overlap, TraceSource& traces)
      : draft_(draft),
        mesh_(mesh),
        overlap_(overlap),
        slices_(overlap.slices),
        traces_(traces),
        pairs_(draft) {}

  void run() {
    bool any = false;
    for (auto& section : draft_.sections) {
      auto& list = section.instructions;
      for (size_t i = 0, n = list.size(); i < n; ++i) any = cut(list, i) || any;
      Instructions out;
      for (size_t i = 0; i < list.size(); ++i) {
        if (const auto made = inserted_.find(i); made != inserted_.end()) {
          for (auto& piece : made->second) out.push_back(std::move(piece));
        }
        if (!replaced_.contains(i)) out.push_back(std::move(list[i]));
      }
      list = std::move(out);
      inserted_.clear();
      replaced_.clear();
    }
    if (!any) {
      fail("overlap",
           "slices cut matrix products whose sums are reduced over ranks or whose rows are "
           "gathered, but the step has none that may be cut: also use tensor_parallel, name fewer "
           "scopes in whole and more products in sliced, or leave slices out");
    }
  }

 private:
  bool cut(const Instructions& list, size_t i) {
    const auto& instruction = list[i].instruction;
    std::optional<ProductPair> pair;
    const bool reduces = instruction.op == "comm::all_reduce" && !instruction.in_place,
               scatters = instruction.op == "comm::reduce_scatter",
               gathers = instruction.op == "comm::all_gather";
    if (reduces || scatters) pair = pairs_.summed(list, i);
    if (gathers) pair = pairs_.gathered(list, i);
    const auto is_replaced = [&](size_t at) { return replaced_.contains(at); };
    if (!pair || std::any_of(pair->products.begin(), pair->products.end(), is_replaced))
      return false;
    const auto& product = list[pair->products.back()].instruction;
    const bool backward = product.phase == graph::Phase::backward;
    if (!has(overlap_.sliced, gathers    ? "gathers"
                              : backward ? "gradient_sums"
                                         : "sums") ||
        std::any_of(overlap_.whole.begin(), overlap_.whole.end(), [&](const auto& scope) {
          return graph::contains_scope(scope, product.scope);
        })) {
      return false;
    }
    return reduces    ? cut_reduced(list, *pair)
           : scatters ? cut_scattered(list, *pair)
                      : cut_gathered(list, *pair);
  }

  // Returns rows of a value that covers all of its memory, as a matrix.
  ValueId rows(ValueId v, int64_t columns, const mesh::Range& range) {
    const ProgramValue whole = draft_.value(v);
    const auto bytes = static_cast<int64_t>(graph::size_of(whole.type.dtype));
    return draft_.add_view(v, range.begin * columns * bytes,
                           {whole.type.dtype, {range.length, columns}}, {columns, 1}, whole.name);
  }

  // Returns rows of a matrix.
  ValueId rows(ValueId v, const mesh::Range& range) {
    const ProgramValue whole = draft_.value(v);
    auto type = whole.type;
    type.shape[0] = range.length;
    const auto offset = range.begin * whole.strides[0] *
                        static_cast<int64_t>(graph::size_of(type.dtype));
    return draft_.add_view(v, offset, std::move(type), whole.strides, whole.name);
  }

  // Returns `count` elements from `begin` on, flat.
  ValueId flat(ValueId v, int64_t begin, int64_t count) {
    const ProgramValue whole = draft_.value(v);
    const auto offset = begin * static_cast<int64_t>(graph::size_of(whole.type.dtype));
    return draft_.add_view(v, offset, {whole.type.dtype, {count}}, {1}, whole.name);
  }

  // Returns a view [pieces' outer, rows, columns] of the matrix's memory.
  ValueId outer(ValueId v, const RowParts& parts, const RowPiece& piece) {
    const ProgramValue whole = draft_.value(v);
    const int64_t each = parts.rows() / parts.outer, first = piece.rows[0].begin;
    const std::vector<int64_t> shape = {piece.count() / each, each, parts.columns};
    const auto offset = first * parts.columns *
                        static_cast<int64_t>(graph::size_of(whole.type.dtype));
    return draft_.add_view(v, offset, {whole.type.dtype, shape}, contiguous_strides(shape),
                           whole.name);
  }

  // Appends the product for some rows, which are in `from`. Returns false where LibTorch's kernel
  // does not return one contiguous result.
  bool add_product_slice(const DraftInstruction& product, const mesh::Range& range, ValueId from,
                         ValueId to, Instructions& out) {
    if (draft_.value(to).type.numel() == 0) return true;
    auto piece = product;
    piece.instruction.args[*rows_of(product.instruction)].second = from;
    for (auto& [name, arg] : piece.instruction.args) {  // scales of rows
      if (name != "scale_a") continue;
      const auto scale = std::get<ValueId>(arg);
      if (!draft_.value(scale).type.shape.empty()) arg = rows(scale, range);
    }
    piece.instruction.outputs = {to};
    if (!set_allocations(draft_, piece, traces_)) return false;
    out.push_back(std::move(piece));
    return true;
  }

  // Appends the pair's products for some rows, each added to those before it.
  bool add_sliced_products(const Instructions& list, const ProductPair& pair,
                           const mesh::Range& range, ValueId to, Instructions& out) {
    for (size_t p : pair.products) {
      const auto& product = list[p];
      const auto given = rows(std::get<ValueId>(product.instruction.args[0].second), range);
      const bool first = p == pair.products[0];
      if (first ? !add_product_slice(product, range, given, to, out)
                : !add_product(product, range, given, to, out)) {
        return false;
      }
    }
    return true;
  }

  bool add_product(const DraftInstruction& product, const mesh::Range& range, ValueId from,
                   ValueId to, Instructions& out) {
    const auto type = draft_.value(to).type;
    if (type.numel() == 0) return true;
    auto args = product.instruction.args;
    args[0].second = from;
    const auto append = [&](DraftInstruction added) {
      added.when = product.when;
      added.instruction.scope = product.instruction.scope;
      added.instruction.phase = product.instruction.phase;
      if (!set_allocations(draft_, added, traces_)) return false;
      out.push_back(std::move(added));
      return true;
    };
    if (product.instruction.op == "aten::mm") {
      args.insert(args.begin(), {"sum", to});
      return append(in_place("perigee::addmm_", std::move(args), {to}));
    }
    const auto term = draft_.add(type, draft_.value(to).name + " term");
    return add_product_slice(product, range, from, term, out) &&
           append(in_place("perigee::accumulate_", {{"self", to}, {"other", term}}, {to}));
  }

  // Returns the columns of the products' result.
  int64_t columns_of(const Instructions& list, const ProductPair& pair) const {
    return draft_.value(list[pair.products[0]].instruction.outputs[0]).type.shape[1];
  }

  // Returns the collective for a piece; the first one keeps its event.
  DraftInstruction piece_of(const DraftInstruction& collective, bool first, ValueId from,
                            ValueId to, const std::vector<int64_t>& counts) {
    auto piece = collective;
    for (auto& [name, arg] : piece.instruction.args) {
      if (std::holds_alternative<ValueId>(arg)) arg = from;
      if (name == "counts") arg = counts;
    }
    auto& outputs = piece.instruction.outputs;
    outputs[0] = to;
    if (outputs.size() > 1) {
      const ProgramValue whole = draft_.value(outputs[1]);
      auto home = draft_.home(outputs[1]);
      const auto elements = workspace_elements(piece.instruction.op, counts);
      outputs[1] = draft_.add({whole.type.dtype, {elements}}, whole.name, home);
    }
    if (!first) piece.instruction.event = draft_.program.events++;
    return piece;
  }

  int64_t index_in_group(const Instruction& collective) const {
    const auto& stream = draft_.program.streams[collective.stream];
    const auto group = ranks_of(mesh_, stream, draft_.program.rank);
    return std::find(group.begin(), group.end(), draft_.program.rank) - group.begin();
  }

  static bool has(const std::vector<std::string>& list, std::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  }

  static std::vector<int64_t> times(std::vector<int64_t> lengths, int64_t columns) {
    for (auto& length : lengths) length *= columns;
    return lengths;
  }

  bool cut_reduced(const Instructions& list, const ProductPair& pair) {
    if (!pair.copies.empty()) return false;
    const auto columns = columns_of(list, pair);
    if (columns == 0) return false;
    const auto all = draft_.value(pair.matrix).type.numel() / columns;
    const auto ranges = ranges_of(part_lengths(all, std::min(slices_, all)));
    if (ranges.size() < 2) return false;
    Instructions out;
    for (const auto& range : ranges) {
      const auto part = rows(pair.matrix, columns, range);
      if (!add_sliced_products(list, pair, range, part, out)) return false;
      auto reduce = piece_of(list[pair.collective], range.begin == 0, part, part, {});
      reduce.instruction.in_place = true;
      reduce.move = Move::none;
      out.push_back(std::move(reduce));
    }
    // Readers of the result read the sums in the products' memory.
    for (auto& value : draft_.program.values) {
      if (value.view_of == pair.result) value.view_of = pair.matrix;
    }
    draft_.value(pair.result).view_of = pair.matrix;
    replace(pair, std::move(out));
    return true;
  }

  bool cut_scattered(const Instructions& list, const ProductPair& pair) {
    const auto& collective = list[pair.collective];
    const auto parts = RowParts::of(collective.instruction, draft_.value(pair.result).type.shape);
    const bool packed = !pair.copies.empty();
    const auto pieces = cut_rows(parts, slices_, index_in_group(collective.instruction));
    if (pieces.size() < 2 || columns_of(list, pair) != parts.columns ||
        draft_.value(pair.matrix).type.numel() != parts.rows() * parts.columns ||
        packed != (parts.outer > 1)) {
      return false;
    }
    const ValueId image = draft_.root(operand_of(collective.instruction));
    const int64_t columns = parts.columns;
    Instructions out;
    for (const auto& piece : pieces) {
      // Without packing, the product writes its pieces where the collective reads them.
      int64_t at = piece.in_image;
      for (const auto& range : piece.rows) {
        const auto to = rows(pair.matrix, columns, {packed ? range.begin : at, range.length});
        if (!add_sliced_products(list, pair, range, to, out)) return false;
        at += range.length;
      }
      const auto from = flat(image, piece.in_image * columns, piece.count() * columns);
      if (packed) {
        copy_parts(draft_, outer(pair.matrix, parts, piece), 1, ranges_of(parts.lengths), from,
                   /*to_flat=*/true, collective.instruction, out);
      }
      const auto own = piece.lengths[index_in_group(collective.instruction)];
      auto scatter = piece_of(collective, piece.in_image == 0, from,
                              flat(pair.result, piece.in_part * columns, own * columns),
                              times(piece.lengths, columns));
      scatter.move = Move::none;
      out.push_back(std::move(scatter));
    }
    replace(pair, std::move(out));
    return true;
  }

  bool cut_gathered(const Instructions& list, const ProductPair& pair) {
    const auto& collective = list[pair.collective];
    const auto& product = list[pair.products[0]];
    const ValueId given = operand_of(collective.instruction);
    const auto parts = RowParts::of(collective.instruction, draft_.value(given).type.shape);
    const auto rows_at = *rows_of(product.instruction);
    const auto whole = std::get<ValueId>(product.instruction.args[rows_at].second);
    const bool packed = !pair.copies.empty();
    const auto pieces = cut_rows(parts, slices_, index_in_group(collective.instruction));
    if (pieces.size() < 2 ||
        draft_.value(whole).type.shape != std::vector{parts.rows(), parts.columns} ||
        packed != (parts.outer > 1)) {
      return false;
    }
    const int64_t columns = parts.columns;
    const ValueId result = product.instruction.outputs[0];
    // Pieces within parts are not in row order: other readers of the whole operand get a copy.
    const bool others = !packed && pairs_.reads(pair.matrix) > 1;
    ValueId image = pair.result;
    if (others) {
      const ProgramValue gathered = draft_.value(pair.result);
      image = draft_.add({gathered.type.dtype, {gathered.type.numel()}}, gathered.name + " pieces",
                         draft_.home(pair.result));
    }
    Instructions gathers, out;
    for (const auto& piece : pieces) {
      const auto own = piece.lengths[index_in_group(collective.instruction)];
      const auto from = flat(given, piece.in_part * columns, own * columns);
      const auto to = flat(image, piece.in_image * columns, piece.count() * columns);
      gathers.push_back(
          piece_of(collective, piece.in_image == 0, from, to, times(piece.lengths, columns)));
      if (packed) {
        copy_parts(draft_, outer(pair.matrix, parts, piece), 1, ranges_of(parts.lengths), to,
                   /*to_flat=*/false, collective.instruction, out);
      }
      int64_t at = piece.in_image;
      for (const auto& range : piece.rows) {
        auto type = draft_.value(whole).type;
        type.shape[0] = range.length;
        const auto bytes = static_cast<int64_t>(graph::size_of(type.dtype));
        const auto read = draft_.add_view(packed ? whole : image,
                                          (packed ? range.begin : at) * columns * bytes, type,
                                          contiguous_strides(type.shape), draft_.value(whole).name);
        if (!add_product_slice(product, range, read, rows(result, range), out)) return false;
        at += range.length;
      }
    }
    for (const auto& piece : pieces) {
      if (!others) break;
      auto matrix = draft_.add_view(pair.result, 0, draft_.value(whole).type,
                                    contiguous_strides(draft_.value(whole).type.shape),
                                    draft_.value(pair.result).name);
      copy_parts(draft_, matrix, 0, piece.rows,
                 flat(image, piece.in_image * columns, piece.count() * columns),
                 /*to_flat=*/false, collective.instruction, out);
    }
    replace(pair, std::move(out));
    put(pair.collective, std::move(gathers));
    return true;
  }

  void put(size_t before, Instructions list) {
    auto& all = inserted_[before];
    std::move(list.begin(), list.end(), std::back_inserter(all));
  }

  // Replaces the instructions of the pair.
  void replace(const ProductPair& pair, Instructions with) {
    put(pair.place, std::move(with));
    replaced_.insert(pair.collective);
    replaced_.insert(pair.products.begin(), pair.products.end());
    replaced_.insert(pair.additions.begin(), pair.additions.end());
    replaced_.insert(pair.copies.begin(), pair.copies.end());
  }

  Draft& draft_;
  const mesh::Mesh& mesh_;
  const plan::Overlap& overlap_;
  const int64_t slices_;
  TraceSource& traces_;
  const ProductPairs pairs_;
  std::map<size_t, Instructions> inserted_;  // by the instruction that they precede
  std::set<size_t> replaced_;
};

}  // namespace

void slice_products(Draft& draft, const mesh::Mesh& mesh, const plan::Overlap& overlap,
                    TraceSource& traces) {
  if (overlap.slices > 1) Slices(draft, mesh, overlap, traces).run();
}

}  // namespace perigee::compile
