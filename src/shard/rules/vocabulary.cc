// Sharded vocabularies (Megatron-LM, Shoeybi et al. 2019): an embedding with sharded rows looks up
// the rows that it holds and gives a Partial sum with zeros for the others; a cross entropy with
// sharded classes needs a maximum and sums over the ranks.
#include <algorithm>

#include "shard/rules/emitter.h"
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

using graph::DType;
using graph::TensorType;
using graph::ValueId;
using Values = std::vector<ValueId>;

// The rule of the text, with a dim of one operand (or result) that must be cut in one piece.
Rule positioned(const char* op, const char* text, bool of_result, std::string_view tensor, int dim,
                Role role, std::function<Values(RuleLowering&)> lower) {
  const auto written = parse_rule(op, text);
  return {[=, name = std::string(tensor)](const Call& call) {
            auto pattern = written.pattern(call);
            if (!pattern) return pattern;
            const int at = of_result ? 0 : call.find(name);
            const int letter = (of_result ? pattern->results : pattern->operands)[at][dim];
            if (letter < 0) return pattern;
            pattern->dims[letter].one_piece = true;
            pattern->dims[letter].role = role;
            return pattern;
          },
          std::move(lower)};
}

Values lower_embedding(RuleLowering& lowering) {
  const auto& call = lowering.call;
  const int weight = call.find("weight"), indices = call.find("indices");
  auto args = lowering.local_args();
  if (lowering.axes_of(weight, 0).empty()) return lowering.emit(std::move(args));
  Emitter emit(lowering);
  const auto local = emit.local_index(lowering.operands[indices], lowering.operand_range(weight, 0),
                                      call.shape(weight)[0]);
  for (auto& [name, arg] : args) {
    if (name == "indices") arg = local.index;
    if (name == "padding_idx") arg = int64_t{-1};  // it only affects the gradient
  }
  const auto rows = lowering.emit(std::move(args))[0];
  return {emit.keep(emit.column(local.inside), rows)};
}

bool result_is_sharded(const RuleLowering& lowering, int dim) {
  const auto& placements = lowering.result_placements[0];
  return std::any_of(placements.begin(), placements.end(),
                     [&](const auto& p) { return p.is_shard() && p.dim == dim; });
}

Values lower_embedding_backward(RuleLowering& lowering) {
  const auto& call = lowering.call;
  auto args = lowering.local_args();
  if (!result_is_sharded(lowering, 0)) return lowering.emit(std::move(args));
  Emitter emit(lowering);
  const auto range = lowering.result_range(0, 0);
  const auto index = lowering.operands[call.find("indices")];
  auto local = emit.local_index(index, range);
  const auto padding = call.node().get<int64_t>("padding_idx", -1);
  if (padding >= 0) {
    local.inside = lowering.emit(
        "aten::logical_and",
        {{"self", local.inside}, {"other", emit.compare("aten::ne.Scalar", index, padding)}},
        emit.type(local.inside));
  }
  const auto grad = emit.keep(emit.column(local.inside),
                              lowering.operands[call.find("grad_output")]);
  for (auto& [name, arg] : args) {
    if (name == "grad_output") arg = grad;
    if (name == "indices") arg = local.index;
    if (name == "num_weights") arg = range.length;
    if (name == "padding_idx") arg = int64_t{-1};
  }
  return lowering.emit(std::move(args));
}

// Common parts of both directions of a cross entropy over sharded classes. Tensors are [n], weights
// [c] of all classes, all in the logsumexp's dtype.
class Classes {
 public:
  Classes(RuleLowering& lowering, DType dtype)
      : emit(lowering),
        lowering_(lowering),
        dtype_(dtype),
        range_(lowering.operand_range(lowering.call.find("logits"), 1)) {
    const auto& node = lowering.call.node();
    smoothing = node.get<double>("label_smoothing", 0.0);
    logits = operand("logits");
    target_ = lowering.operands[lowering.call.find("target")];
    kept = emit.compare("aten::ne.Scalar", target_, node.get<int64_t>("ignore_index", -100));
    const auto size = lowering.call.shape(lowering.call.find("logits"))[1];
    label = emit.local_index(emit.keep(kept, target_), range_, size);
    weight_ = lowering.call.find("weight") < 0 ? ValueId{} : operand("weight");
  }

  bool weighted() const { return weight_.defined(); }
  double classes() const {
    return static_cast<double>(lowering_.call.shape(lowering_.call.find("logits"))[1]);
  }
  ValueId operand(std::string_view name) {
    return emit.cast(lowering_.operands[lowering_.call.find(name)], dtype_);
  }
  TensorType per_row() { return {dtype_, emit.type(target_).shape}; }
  // The weights of this rank's classes, [c].
  ValueId own_weights() {
    return lowering_.emit("aten::slice.Tensor",
                          {{"self", weight_},
                           {"dim", int64_t{0}},
                           {"start", range_.begin},
                           {"end", range_.begin + range_.length}},
                          {dtype_, {range_.length}});
  }
  // Returns v [n] times the weights of the labels.
  ValueId times_label_weight(ValueId v) {
    if (!weighted()) return v;
    const auto all = emit.local_index(target_, {0, emit.type(weight_).shape[0]});
    const auto of_label = lowering_.emit(
        "aten::index_select", {{"self", weight_}, {"dim", int64_t{0}}, {"index", all.index}},
        per_row());
    return emit.binary("aten::mul.Tensor", v, of_label);
  }
  // Returns v [n] times the sum of all weights.
  ValueId times_weights(ValueId v) {
    if (!weighted()) return emit.scalar("aten::mul.Scalar", v, classes());
    return emit.binary("aten::mul.Tensor", v, emit.reduce("aten::sum.dim_IntList", weight_, 0));
  }

  Emitter emit;
  double smoothing = 0;
  ValueId logits;  // [n, c of this rank]
  ValueId kept;    // boolean: the label is not ignored
  Emitter::Local label;

 private:
  RuleLowering& lowering_;
  DType dtype_;
  mesh::Range range_;
  ValueId target_, weight_;
};

// All-reduces a maximum, then in one sum for each row the exponentials, the label's logit and, with
// smoothing, the weighted logits.
Values lower_cross_entropy(RuleLowering& lowering) {
  const auto axes = lowering.axes_of(lowering.call.find("logits"), 1);
  if (axes.empty()) return lowering.emit(lowering.local_args());
  const auto types = lowering.local_types();
  const DType dtype = types[1].dtype;
  Classes on(lowering, dtype);
  auto& emit = on.emit;
  const auto rows = types[1].shape[0];
  const auto largest = emit.all_reduce(emit.reduce("aten::amax", on.logits, 1), axes, "max");
  const auto exponentials = emit.unary(
      "aten::exp", emit.binary("aten::sub.Tensor", on.logits, emit.column(largest)));
  const auto chosen = lowering.emit(
      "aten::gather",
      {{"self", on.logits}, {"dim", int64_t{1}}, {"index", emit.column(on.label.index)}},
      {dtype, {rows, 1}});
  Values sums = {emit.reduce("aten::sum.dim_IntList", exponentials, 1),
                 emit.keep(on.label.inside, emit.reshape(chosen, {rows}))};
  if (on.smoothing > 0) {
    const auto weighted = on.weighted()
                              ? emit.binary("aten::mul.Tensor", on.logits, on.own_weights())
                              : on.logits;
    sums.push_back(emit.reduce("aten::sum.dim_IntList", weighted, 1));
  }
  const auto count = static_cast<int64_t>(sums.size());
  const auto stacked = lowering.emit("aten::stack", {{"tensors", sums}, {"dim", int64_t{0}}},
                                     {dtype, {count, rows}});
  const auto totals = emit.all_reduce(stacked, axes, "sum");
  for (int64_t k = 0; k < count; ++k) {
    sums[k] = lowering.emit("aten::select.int",
                            {{"self", totals}, {"dim", int64_t{0}}, {"index", k}}, on.per_row());
  }
  const auto logsumexp = emit.binary("aten::add.Tensor", emit.unary("aten::log", sums[0]), largest);
  auto loss = on.times_label_weight(emit.binary("aten::sub.Tensor", logsumexp, sums[1]));
  if (on.smoothing > 0) {
    const auto spread = emit.binary("aten::sub.Tensor", on.times_weights(logsumexp), sums[2]);
    loss = emit.binary("aten::add.Tensor", emit.scalar("aten::mul.Scalar", loss, 1 - on.smoothing),
                       emit.scalar("aten::mul.Scalar", spread, on.smoothing / on.classes()));
  }
  return {emit.cast(emit.keep(on.kept, loss), types[0].dtype), logsumexp};
}

// Needs no communication: the logsumexp is known.
Values lower_cross_entropy_backward(RuleLowering& lowering) {
  const auto& call = lowering.call;
  if (lowering.axes_of(call.find("logits"), 1).empty()) {
    return lowering.emit(lowering.local_args());
  }
  const auto type = lowering.local_types()[0];
  const DType dtype = call.operand_type(call.find("logsumexp")).dtype;
  Classes on(lowering, dtype);
  auto& emit = on.emit;
  const auto softmax = emit.unary("aten::exp", emit.binary("aten::sub.Tensor", on.logits,
                                                           emit.column(on.operand("logsumexp"))));
  const auto grad = emit.keep(on.kept, on.operand("grad"));
  const auto of_label = on.times_label_weight(
      emit.scalar("aten::mul.Scalar", grad, 1 - on.smoothing));
  const auto of_each = emit.scalar("aten::mul.Scalar", grad, on.smoothing / on.classes());
  auto slope = of_label;
  if (on.smoothing > 0) slope = emit.binary("aten::add.Tensor", slope, on.times_weights(of_each));
  const auto at_label = emit.unary("aten::neg", emit.keep(on.label.inside, of_label));
  auto result = lowering.emit(
      "aten::scatter_add",
      {{"self", emit.binary("aten::mul.Tensor", softmax, emit.column(slope))},
       {"dim", int64_t{1}},
       {"index", emit.column(on.label.index)},
       {"src", emit.column(at_label)}},
      {dtype, type.shape});
  if (on.smoothing > 0) {
    const auto each = emit.column(of_each);
    result = emit.binary(
        "aten::sub.Tensor", result,
        on.weighted() ? emit.binary("aten::mul.Tensor", each, on.own_weights()) : each);
  }
  return {emit.cast(result, type.dtype)};
}

}  // namespace

void add_vocabulary_rules(Rules& rules) {
  const auto add = [&](const char* op, const char* text, bool of_result, const char* tensor,
                       int dim, Role role, std::function<Values(RuleLowering&)> lower) {
    rules.add(op, positioned(op, text, of_result, tensor, dim, role, std::move(lower)));
  };
  add("aten::embedding",
      "weight: v+ e, indices: t* -> t* e; padding_idx scale_grad_by_freq sparse linear(weight)",
      false, "weight", 0, Role::sum, lower_embedding);
  // A gradient scaled by the indices' frequency depends on all of them.
  add("aten::embedding_dense_backward",
      "grad_output: t+* e, indices: t* -> v e; num_weights padding_idx scale_grad_by_freq=false "
      "linear(grad_output)",
      true, "", 0, Role::free, lower_embedding_backward);
  add("perigee::cross_entropy",
      "logits: n c+, target: n, weight?: w^ -> n, n; ignore_index label_smoothing", false, "logits",
      1, Role::agreed, lower_cross_entropy);
  add("perigee::cross_entropy_backward",
      "grad: n, logits: n c, target: n, logsumexp: n, weight?: w^ -> n c; ignore_index "
      "label_smoothing linear(grad)",
      false, "logits", 1, Role::free, lower_cross_entropy_backward);
}

}  // namespace perigee::shard
