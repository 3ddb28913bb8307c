#include "compile/products/fuse_activations.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "compile/draft/instance.h"

namespace perigee::compile {
namespace {

using Instructions = std::vector<DraftInstruction>;

ValueId operand(const Instruction& instruction, std::string_view name) {
  for (const auto& [key, arg] : instruction.args) {
    const auto* value = std::get_if<ValueId>(&arg);
    if (key == name && value) return *value;
  }
  return {};
}

bool is_tanh(const Instruction& instruction) {
  return std::ranges::any_of(instruction.args, [](const auto& argument) {
    const auto* form = std::get_if<std::string>(&argument.second);
    return argument.first == "approximate" && form && *form == "tanh";
  });
}

// The products of one section.
class FuseActivations {
 public:
  FuseActivations(Draft& draft, const std::vector<int>& reads, TraceSource& traces,
                  Instructions& list)
      : draft_(draft), reads_(reads), traces_(traces), list_(list) {}

  void run() {
    find_users();
    std::vector<Instructions> made(list_.size());  // by the product that they replace
    std::vector<bool> gone(list_.size());
    for (size_t i = 0; i < list_.size(); ++i) {
      const auto readers = is_candidate(list_[i].instruction) ? readers_of(i)
                                                              : std::vector<size_t>{};
      for (size_t j : readers) {
        auto joined = fused(list_[i], list_[j]);
        if (!set_allocations(draft_, joined, traces_)) break;
        made[i].push_back(std::move(joined));
      }
      if (readers.empty() || made[i].size() < readers.size()) {
        made[i].clear();
        continue;
      }
      gone[i] = true;
      for (size_t j : readers) gone[j] = true;
    }
    Instructions out;
    for (size_t i = 0; i < list_.size(); ++i) {
      if (!gone[i]) out.push_back(std::move(list_[i]));
      for (auto& joined : made[i]) out.push_back(std::move(joined));
    }
    list_ = std::move(out);
  }

 private:
  void find_users() {
    for (size_t i = 0; i < list_.size(); ++i) {
      const auto& instruction = list_[i].instruction;
      each_operand(instruction, [&](ValueId v) { users_[draft_.root(v).index].push_back(i); });
      for (auto v : instruction.outputs) {
        if (v.defined()) writers_[draft_.root(v).index].push_back(i);
      }
    }
  }

  // Returns whether the value has memory of its own, all of which it covers.
  bool is_own(ValueId v) const {
    return v.defined() && !draft_.value(v).view_of.defined() && draft_.is_plain(v);
  }

  bool is_aligned(ValueId v) const { return draft_.bytes_of(v).first % kPieceBytes == 0; }

  // Returns whether rows, or columns where these are contiguous, are whole pieces of 16 bytes.
  bool has_whole_rows(ValueId v) const {
    const auto& size = draft_.value(v).type.shape;
    const auto& stride = draft_.value(v).strides;
    const bool by_rows = stride[1] == 1 && stride[0] >= size[1],
               by_columns = stride[0] == 1 && stride[1] >= size[0];
    return (by_rows || by_columns) && size[by_rows ? 1 : 0] % kPiece == 0 &&
           stride[by_rows ? 0 : 1] % kPiece == 0 && is_aligned(v);
  }

  bool is_candidate(const Instruction& product) const {
    const bool adds = product.op == "aten::addmm";
    if ((!adds && product.op != "aten::mm") || product.in_place || !is_own(product.outputs[0]))
      return false;
    const auto& type = draft_.value(product.outputs[0]).type;
    if (!graph::is_half(type.dtype) || type.numel() == 0 || product.args.size() != (adds ? 3 : 2)) {
      return false;
    }
    const auto left = operand(product, adds ? "mat1" : "self"), right = operand(product, "mat2"),
               bias = adds ? operand(product, "self") : ValueId{};
    const bool whole = has_whole_rows(product.outputs[0]) && has_whole_rows(left) &&
                       has_whole_rows(right);
    return whole && (!adds || (is_aligned(bias) && draft_.value(bias).strides.back() == 1 &&
                               draft_.value(bias).type ==
                                   graph::TensorType{type.dtype, {type.shape.back()}}));
  }

  // Returns the instructions that the product computes: the first reader of its result, if it is
  // GELU, or all readers, if they are GELU's gradient, one for each run. Otherwise nothing.
  std::vector<size_t> readers_of(size_t i) const {
    const auto made = list_[i].instruction.outputs[0];
    const auto found = users_.find(made.index);
    if (found == users_.end()) return {};
    const auto& users = found->second;
    const auto& first = list_[users[0]];
    if (first.instruction.op == "aten::gelu") {
      return first.when == list_[i].when && takes(first.instruction, "self", made)
                 ? std::vector{users[0]}
                 : std::vector<size_t>{};
    }
    if (list_[i].instruction.op != "aten::mm" || is_bound(made) ||
        std::ssize(users) != reads_[made.index]) {
      return {};
    }
    uint8_t runs = 0;
    for (size_t j : users) {
      const auto& reader = list_[j];
      const auto& op = reader.instruction.op;
      if ((op != "aten::gelu_backward" && op != "perigee::gelu_backward_sum") ||
          (runs & reader.when) != 0 || !takes(reader.instruction, "grad_output", made)) {
        return {};
      }
      const auto pre = operand(reader.instruction, "self");
      if (draft_.value(pre).type.dtype != draft_.value(made).type.dtype || !draft_.is_plain(pre) ||
          is_written_between(i, j, draft_.root(pre))) {
        return {};
      }
      runs |= reader.when;
    }
    return runs == list_[i].when ? users : std::vector<size_t>{};
  }

  // Returns whether the activation is of all elements of the product `made`, in their type.
  bool takes(const Instruction& activation, std::string_view name, ValueId made) const {
    const auto given = operand(activation, name);
    if (!is_tanh(activation) || draft_.root(given) != made || !draft_.is_plain(given) ||
        !is_own(activation.outputs[0]) || std::ranges::any_of(activation.outputs, [&](ValueId v) {
          return v.defined() && !is_aligned(v);
        })) {
      return false;
    }
    const auto &type = draft_.value(made).type, &result = draft_.value(activation.outputs[0]).type;
    return result.dtype == type.dtype && result.shape.back() == type.shape.back();
  }

  bool is_written_between(size_t i, size_t j, ValueId root) const {
    const auto found = writers_.find(root.index);
    return found != writers_.end() &&
           std::ranges::any_of(found->second, [&](size_t at) { return i < at && at < j; });
  }

  // Returns whether the host reads the value after the step.
  bool is_bound(ValueId root) const {
    return std::ranges::any_of(draft_.program.bindings, [&](const Binding& binding) {
      return binding.value.defined() && draft_.root(binding.value) == root;
    });
  }

  DraftInstruction fused(const DraftInstruction& product, const DraftInstruction& activation) {
    DraftInstruction joined;
    joined.when = activation.when;
    joined.instruction.scope = product.instruction.scope;
    joined.instruction.phase = product.instruction.phase;
    const auto& given = product.instruction;
    const auto made = given.outputs[0];
    auto& op = joined.instruction.op;
    auto& args = joined.instruction.args;
    auto& outputs = joined.instruction.outputs;
    outputs = activation.instruction.outputs;
    if (activation.instruction.op == "aten::gelu") {
      op = "perigee::mm_gelu";
      const bool adds = given.op == "aten::addmm";
      args = {{"self", operand(given, adds ? "mat1" : "self")}, {"mat2", operand(given, "mat2")}};
      if (adds) args.emplace_back("bias", operand(given, "self"));
      const bool read = reads_[made.index] > 1 || is_bound(made);
      outputs.push_back(read ? made : ValueId{});
    } else {
      op = "perigee::mm_gelu_backward";
      args = given.args;
      args.emplace_back("pre", operand(activation.instruction, "self"));
    }
    return joined;
  }

  static constexpr int64_t kPiece = 8, kPieceBytes = 16;  // elements of 16 bits

  Draft& draft_;
  const std::vector<int>& reads_;
  TraceSource& traces_;
  Instructions& list_;
  std::map<int32_t, std::vector<size_t>> users_, writers_;  // by root
};

}  // namespace

void fuse_activations(Draft& draft, TraceSource& traces) {
  const auto reads = count_reads(draft);
  for (auto& section : draft.sections) {
    FuseActivations(draft, reads, traces, section.instructions).run();
  }
}

}  // namespace perigee::compile
