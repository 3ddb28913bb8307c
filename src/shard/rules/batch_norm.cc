// Batch norm couples samples: with the batch sharded its statistics are all-reduced sums, with a
// two-pass variance; its backward needs two sums.
#include "base/error.h"
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

using graph::DType;
using graph::TensorType;
using graph::ValueId;

// Dim 1 is the channel. Other dims of the input are `role`; vectors over channels have the
// channel's letter.
Pattern channels(const Call& call, Role role) {
  auto pattern = whole_pattern(call);
  const int input = call.find("input");
  const auto& shape = call.shape(input);
  std::vector<int> dims(shape.size(), -1);
  dims[1] = pattern.add();
  dims[0] = pattern.add(role);
  const auto letters = [&](const std::vector<int64_t>& own) {
    if (own == shape && own.size() > 1) return dims;
    return own.size() == 1 && own[0] == shape[1] ? std::vector<int>{dims[1]}
                                                 : std::vector<int>(own.size(), -1);
  };
  for (int i = 0; i < call.operand_count(); ++i) pattern.operands[i] = letters(call.shape(i));
  for (int r = 0; r < call.result_count(); ++r) {
    if (call.has_result(r)) pattern.results[r] = letters(call.result_shape(r));
  }
  return pattern;
}

bool trains(const Call& call) {
  const auto& op = call.node().op;
  if (op.ends_with("_no_training")) return false;
  return call.node().get<bool>(op.ends_with("_backward") ? "train" : "training", true);
}

std::optional<Pattern> forward(const Call& call) {
  if (call.find("input") < 0 || call.rank(call.find("input")) < 2) return {};
  return channels(call, trains(call) ? Role::agreed : Role::free);
}

// native_batch_norm in evaluation mode; in training mode it mutates its operands.
std::optional<Pattern> evaluation(const Call& call) {
  return trains(call) ? std::nullopt : forward(call);
}

std::optional<Pattern> backward(const Call& call) {
  if (call.find("input") < 0 || call.rank(call.find("input")) < 2) return {};
  auto pattern = channels(call, Role::sum);
  // In training the input's gradient needs sums over the batch, which the lowering reduces; it is
  // still linear in the output's gradient.
  pattern.linear = {{call.find("grad_out")}};
  return pattern;
}

// Element-wise arithmetic on [N, C, *] and per-channel vectors, in the statistics' dtype.
class Channelwise {
 public:
  Channelwise(RuleLowering& lowering, DType dtype) : lowering_(lowering), dtype_(dtype) {
    const int input = lowering.call.find("input");
    axes_ = lowering.axes_of(input, 0);
    shape_ = lowering.type(lowering.operands[input]).shape;
    const auto& global = lowering.call.shape(input);
    count_ = 1;
    for (size_t d = 0; d < global.size(); ++d) {
      if (d == 1) continue;
      count_ *= static_cast<double>(global[d]);
      dims_.push_back(static_cast<int64_t>(d));
    }
  }

  double count() const { return count_; }
  ValueId operand(std::string_view name) {
    const int i = lowering_.call.find(name);
    return i < 0 ? ValueId{} : cast(lowering_.operands[i], dtype_);
  }
  ValueId cast(ValueId v, DType dtype) {
    const auto& type = lowering_.type(v);
    if (type.dtype == dtype) return v;
    return lowering_.emit("perigee::cast", {{"self", v}}, {dtype, type.shape});
  }
  // Sums over all dims but the channel, on this rank.
  ValueId sum(ValueId v) {
    return lowering_.emit("aten::sum.dim_IntList", {{"self", v}, {"dim", dims_}},
                          {dtype_, {shape_[1]}});
  }
  ValueId reduce(ValueId v) {
    if (axes_.empty()) return v;
    return lowering_.emit("comm::all_reduce",
                          {{"self", v}, {"axis", axes_}, {"op", std::string("sum")}},
                          lowering_.type(v));
  }
  // A vector over channels as [1, C, 1, ...].
  ValueId spread(ValueId v) {
    std::vector<int64_t> shape(shape_.size(), 1);
    shape[1] = shape_[1];
    return lowering_.emit("perigee::reshape", {{"self", v}}, {dtype_, shape});
  }
  ValueId binary(const char* op, ValueId a, ValueId b) {
    const auto& left = lowering_.type(a).shape;
    const auto& right = lowering_.type(b).shape;
    const bool wide = left.size() == shape_.size() && left != shape_ ? false : true;
    TensorType type{dtype_, wide ? left : right};
    return lowering_.emit(op, {{"self", a}, {"other", b}}, std::move(type));
  }
  ValueId scalar(const char* op, ValueId v, double s) {
    return lowering_.emit(op, {{"self", v}, {"other", s}}, lowering_.type(v));
  }
  ValueId unary(const char* op, ValueId v) {
    return lowering_.emit(op, {{"self", v}}, lowering_.type(v));
  }

 private:
  RuleLowering& lowering_;
  DType dtype_;
  std::string axes_;
  std::vector<int64_t> shape_, dims_;
  double count_ = 1;
};

std::vector<ValueId> lower_forward(RuleLowering& lowering) {
  const auto& call = lowering.call;
  const auto types = lowering.local_types();
  const int input = call.find("input");
  if (!trains(call) || lowering.axes_of(input, 0).empty()) {
    return lowering.emit(lowering.local_args());
  }
  const DType dtype = call.has_result(1) ? types[1].dtype : call.operand_type(input).dtype;
  Channelwise on(lowering, dtype);
  const auto& node = call.node();
  const auto x = on.operand("input");
  const auto mean = on.scalar("aten::div.Scalar", on.reduce(on.sum(x)), on.count());
  const auto centred = on.binary("aten::sub.Tensor", x, on.spread(mean));
  const auto squares = on.reduce(on.sum(on.binary("aten::mul.Tensor", centred, centred)));
  const auto variance = on.scalar("aten::div.Scalar", squares, on.count());
  const auto rstd = on.unary(
      "aten::rsqrt", on.scalar("aten::add.Scalar", variance, node.get<double>("eps", 1e-5)));
  auto y = on.binary("aten::mul.Tensor", centred, on.spread(rstd));
  if (const auto weight = on.operand("weight"); weight.defined()) {
    y = on.binary("aten::mul.Tensor", y, on.spread(weight));
  }
  if (const auto bias = on.operand("bias"); bias.defined()) {
    y = on.binary("aten::add.Tensor", y, on.spread(bias));
  }
  std::vector<ValueId> results = {on.cast(y, types[0].dtype), mean, rstd};
  // New running statistics; the variance is the unbiased one.
  const double momentum = node.get<double>("momentum", 0.1);
  const auto moved = [&](const char* name, ValueId now) {
    const auto old = on.scalar("aten::mul.Scalar", on.operand(name), 1 - momentum);
    return on.binary("aten::add.Tensor", old, on.scalar("aten::mul.Scalar", now, momentum));
  };
  for (int r = 3; r < call.result_count(); ++r) {
    if (!call.has_result(r)) {
      results.push_back({});
      continue;
    }
    const bool is_mean = r == 3;
    const auto now = is_mean ? mean : on.scalar("aten::div.Scalar", squares, on.count() - 1);
    results.push_back(
        on.cast(moved(is_mean ? "running_mean" : "running_var", now), types[r].dtype));
  }
  return results;
}

std::vector<ValueId> lower_backward(RuleLowering& lowering) {
  const auto& call = lowering.call;
  const int input = call.find("input");
  if (!trains(call) || lowering.axes_of(input, 0).empty()) {
    return lowering.emit(lowering.local_args());
  }
  const auto types = lowering.local_types();
  const int saved = call.find("save_mean");
  Channelwise on(lowering, call.operand_type(saved >= 0 ? saved : input).dtype);
  const auto grad = on.operand("grad_out");
  const auto rstd = on.operand("save_invstd");
  const auto centred = on.binary("aten::sub.Tensor", on.operand("input"),
                                 on.spread(on.operand("save_mean")));
  const auto sum = on.sum(grad);
  const auto product = on.sum(on.binary("aten::mul.Tensor", grad, centred));
  std::vector<ValueId> results(call.result_count());
  if (call.has_result(0)) {
    const auto mean_grad = on.scalar("aten::div.Scalar", on.reduce(sum), on.count());
    const auto slope = on.binary("aten::mul.Tensor",
                                 on.scalar("aten::div.Scalar", on.reduce(product), on.count()),
                                 on.binary("aten::mul.Tensor", rstd, rstd));
    auto x = on.binary("aten::sub.Tensor", grad, on.spread(mean_grad));
    x = on.binary("aten::sub.Tensor", x, on.binary("aten::mul.Tensor", centred, on.spread(slope)));
    x = on.binary("aten::mul.Tensor", x, on.spread(rstd));
    if (const auto weight = on.operand("weight"); weight.defined()) {
      x = on.binary("aten::mul.Tensor", x, on.spread(weight));
    }
    results[0] = on.cast(x, types[0].dtype);
  }
  if (call.has_result(1)) {
    results[1] = on.cast(on.binary("aten::mul.Tensor", product, rstd), types[1].dtype);
  }
  if (call.has_result(2)) results[2] = on.cast(sum, types[2].dtype);
  return results;
}

}  // namespace

void add_batch_norm_rules(Rules& rules) {
  for (const char* op :
       {"aten::_native_batch_norm_legit.no_stats", "aten::_native_batch_norm_legit_functional",
        "aten::_native_batch_norm_legit_no_training"}) {
    rules.add(op, {forward, lower_forward});
  }
  rules.add("aten::native_batch_norm", {evaluation, lower_forward});
  rules.add("aten::native_batch_norm_backward", {backward, lower_backward});
}

}  // namespace perigee::shard
