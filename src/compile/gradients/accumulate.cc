#include "compile/gradients/accumulate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "compile/draft/instance.h"
#include "compile/draft/layout.h"

namespace perigee::compile {

namespace {

bool is_row_major(const Draft& draft, ValueId v) {
  const auto& value = draft.value(v);
  return is_contiguous(value.type.shape, value.strides);
}

// An instruction that adds a product's result, or a view of it, to a gradient, or sets a gradient.
struct Reader {
  size_t at = 0;
  ValueId gradient, term;
  bool adds = false;
};

// Returns nothing where the instruction does anything else with its operand, or scales it.
std::optional<Reader> reader_of(const Draft& draft, const DraftInstruction& part, size_t at) {
  const auto& [op, args, outputs] = std::tie(part.instruction.op, part.instruction.args,
                                             part.instruction.outputs);
  if (op == "perigee::accumulate_" || op == "perigee::copy_") {
    if (args.size() != 2) return {};
    return Reader{at, std::get<ValueId>(args[0].second), std::get<ValueId>(args[1].second),
                  op == "perigee::accumulate_"};
  }
  if (op != "perigee::cast" || !outputs[0].defined()) return {};
  const auto role = draft.value(outputs[0]).name.role;
  if (role != ValueRole::gradient && role != ValueRole::flat_gradients) return {};
  return Reader{at, outputs[0], std::get<ValueId>(args[0].second), false};
}

constexpr std::string_view kProduct = "aten::mm", kEmbedding = "aten::embedding_dense_backward";

// The ops of a section whose results are only added to gradients: those of embeddings, and products
// if `products` is set.
class SumsInPlace {
 public:
  SumsInPlace(Draft& draft, DraftSection& section, const std::vector<int>& reads, bool products,
              TraceSource& traces)
      : draft_(draft),
        list_(section.instructions),
        reads_(reads),
        products_(products),
        traces_(traces) {}

  void run() {
    find_readers();
    std::vector<DraftInstruction> out;
    for (size_t i = 0; i < list_.size(); ++i) {
      const auto readers = readers_of(i);
      if (readers.empty() && !gone_.contains(i)) out.push_back(list_[i]);
      for (const auto& reader : readers) {
        out.push_back(fused(list_[i], reader));
        gone_.insert(reader.at);
      }
    }
    list_ = std::move(out);
  }

 private:
  void find_readers() {
    for (size_t i = 0; i < list_.size(); ++i) {
      const auto& instruction = list_[i].instruction;
      each_read(instruction, [&](ValueId v) {
        const auto found = readers_.find(draft_.root(v).index);
        if (found != readers_.end()) found->second.push_back(i);
      });
      if (adds_in_place(instruction)) {
        readers_[draft_.root(instruction.outputs[0]).index];
      }
    }
  }

  // Returns whether there is an op that adds the instruction's result to a sum.
  bool adds_in_place(const Instruction& instruction) const {
    if (instruction.op != kEmbedding && (!products_ || instruction.op != kProduct)) return false;
    if (!instruction.outputs[0].defined()) return false;
    // A gradient that the indices' frequencies scale has a flag that is set.
    return std::ranges::none_of(instruction.args, [](const auto& argument) {
      const auto* flag = std::get_if<bool>(&argument.second);
      return flag && *flag;
    });
  }

  // Returns all readers of an op's result whose gradients the op can write itself, or nothing.
  std::vector<Reader> readers_of(size_t i) const {
    if (!adds_in_place(list_[i].instruction)) return {};
    const ValueId made = list_[i].instruction.outputs[0];
    const auto& places = readers_.at(draft_.root(made).index);
    if (draft_.value(made).view_of.defined() || !draft_.is_plain(made) ||
        static_cast<size_t>(reads_[made.index]) != places.size()) {
      return {};
    }
    std::vector<Reader> readers;
    uint8_t runs = 0;
    for (size_t at : places) {
      const auto reader = reader_of(draft_, list_[at], at);
      if (!reader || !is_writable(i, *reader) || (runs & list_[at].when) != 0) return {};
      runs |= list_[at].when;
      readers.push_back(*reader);
    }
    return runs == list_[i].when ? readers : std::vector<Reader>{};
  }

  // Returns whether the op can write the reader's gradient.
  bool is_writable(size_t i, const Reader& reader) const {
    const auto from = draft_.value(list_[i].instruction.outputs[0]).type;
    const auto& to = draft_.value(reader.gradient).type;
    const bool embedding = list_[i].instruction.op == kEmbedding;
    // A sum of 16 bits would be rounded by each row.
    if (embedding && (!reader.adds || graph::is_half(to.dtype))) return false;
    const bool widens = to.dtype == graph::DType::float32 &&
                        (from.dtype == graph::DType::bfloat16 ||
                         from.dtype == graph::DType::float16);
    if (!(widens || (reader.adds && to.dtype == from.dtype)) || to.numel() != from.numel() ||
        !draft_.is_plain(reader.term) || !is_row_major(draft_, reader.gradient)) {
      return false;
    }
    for (size_t at = i + 1; at < reader.at; ++at) {
      if ((list_[at].when & list_[reader.at].when) != 0 && uses(list_[at], reader.gradient)) {
        return false;
      }
    }
    return true;
  }

  bool uses(const DraftInstruction& part, ValueId gradient) const {
    const auto [begin, end] = draft_.bytes_of(gradient);
    bool found = false;
    const auto check = [&, first = begin, last = end](ValueId v) {
      if (!v.defined() || draft_.root(v) != draft_.root(gradient)) return;
      const auto [from, to] = draft_.bytes_of(v);
      found = found || (from < last && first < to);
    };
    each_operand(part.instruction, check);
    for (auto v : part.instruction.outputs) check(v);
    return found;
  }

  DraftInstruction fused(const DraftInstruction& added, const Reader& reader) {
    const ProgramValue to = draft_.value(reader.gradient);
    const graph::TensorType type{to.type.dtype,
                                 draft_.value(added.instruction.outputs[0]).type.shape};
    const ValueId target = draft_.add_view(reader.gradient, 0, type, contiguous_strides(type.shape),
                                           to.name);
    auto args = added.instruction.args;
    args.insert(args.begin(), {"sum", target});
    auto made = in_place(added.instruction.op == kEmbedding ? "perigee::embedding_backward_"
                         : reader.adds                      ? "perigee::addmm_"
                                                            : "perigee::mm_",
                         std::move(args), {target});
    made.when = list_[reader.at].when;
    made.instruction.scope = added.instruction.scope;
    made.instruction.phase = added.instruction.phase;
    set_allocations(draft_, made, traces_);
    return made;
  }

  Draft& draft_;
  std::vector<DraftInstruction>& list_;
  const std::vector<int>& reads_;
  const bool products_;
  TraceSource& traces_;
  std::map<int32_t, std::vector<size_t>> readers_;  // of the ops' results, by root
  std::set<size_t> gone_;
};

}  // namespace

void accumulate_in_place(Draft& draft, bool products, TraceSource& traces) {
  const auto reads = count_reads(draft);
  for (auto& section : draft.sections) SumsInPlace(draft, section, reads, products, traces).run();
}

void accumulate_casts(Draft& draft) {
  const auto reads = count_reads(draft);
  for (auto& section : draft.sections) {
    auto& list = section.instructions;
    std::vector<int32_t> maker(draft.program.values.size(), -1);  // by root: a cast
    std::vector<bool> fused_away(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      auto& instruction = list[i].instruction;
      if (instruction.op == "perigee::cast" && !instruction.in_place &&
          instruction.outputs[0].defined()) {
        maker[draft.root(instruction.outputs[0]).index] = static_cast<int32_t>(i);
      }
      if (instruction.op != "perigee::accumulate_") continue;
      auto& term = std::get<ValueId>(instruction.args[1].second);
      const auto root = draft.root(term).index;
      if (static_cast<size_t>(root) >= maker.size() || maker[root] < 0 || reads[root] != 1) {
        continue;
      }
      const auto& cast = list[maker[root]];
      const auto low = std::get<ValueId>(cast.instruction.args[0].second);
      const auto& wide = draft.value(term);
      if (cast.when != list[i].when || cast.instruction.outputs[0].index != root ||
          draft.view_offset[term.index] != 0 ||
          wide.type.numel() != draft.value(low).type.numel() || !is_row_major(draft, term) ||
          !is_row_major(draft, {root}) || !is_row_major(draft, low)) {
        continue;
      }
      const ProgramValue from = draft.value(low);
      const graph::TensorType type{from.type.dtype, wide.type.shape};
      term = type == from.type
                 ? low
                 : draft.add_view(low, 0, type, contiguous_strides(type.shape), from.name);
      fused_away[maker[root]] = true;
      maker[root] = -1;
    }
    std::vector<DraftInstruction> out;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!fused_away[i]) out.push_back(std::move(list[i]));
    }
    list = std::move(out);
  }
}

}  // namespace perigee::compile
