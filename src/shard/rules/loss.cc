// Losses. Those over classes do not shard the class dim (cross entropy: vocabulary.cc).
// Element-wise losses that reduce become sums over the shard, divided by the global count.
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

enum Reduction : int64_t { none = 0, mean = 1, sum = 2 };

// self, target and weight have one shape; the result has it too, or is a scalar.
std::optional<Pattern> element_loss(const Call& call) {
  const auto reduction = call.node().get<int64_t>("reduction", mean);
  auto pattern = whole_pattern(call);
  for (int d = 0; d < call.rank(0); ++d) {
    pattern.operands[0][d] = pattern.add(reduction == none ? Role::free : Role::sum);
  }
  for (int i = 1; i < call.operand_count(); ++i) {
    if (call.shape(i) != call.shape(0)) return {};
    pattern.operands[i] = pattern.operands[0];
  }
  if (reduction == none) pattern.results[0] = pattern.operands[0];
  return pattern;
}

// grad_output is a scalar if the loss was reduced.
std::optional<Pattern> element_loss_backward(const Call& call) {
  const int self = call.find("self");
  const int grad = call.find("grad_output");
  if (self < 0 || grad < 0) return {};
  auto pattern = whole_pattern(call);
  for (auto& letter : pattern.operands[self]) letter = pattern.add();
  for (int i = 0; i < call.operand_count(); ++i) {
    if (call.shape(i) == call.shape(self)) {
      pattern.operands[i] = pattern.operands[self];
    } else if (i != grad || call.operand_type(i).numel() != 1) {
      return {};
    }
  }
  if (call.result_shape(0) != call.shape(self)) return {};
  pattern.results[0] = pattern.operands[self];
  pattern.linear = {{grad}};
  return pattern;
}

// Emits the op with reduction sum instead of mean and divides by the global count.
std::vector<graph::ValueId> lower_mean(RuleLowering& lowering) {
  const auto& call = lowering.call;
  auto args = lowering.local_args();
  const int self = call.find("self");
  bool sharded = false;
  for (int d = 0; d < call.rank(self); ++d) sharded |= !lowering.axes_of(self, d).empty();
  if (!sharded || call.node().get<int64_t>("reduction", mean) != mean) {
    return lowering.emit(std::move(args));
  }
  bool given = false;
  for (auto& [name, arg] : args) {
    if (name != "reduction") continue;
    arg = int64_t{sum};
    given = true;
  }
  if (!given) args.emplace_back("reduction", int64_t{sum});
  const auto total = lowering.emit(std::move(args))[0];
  const auto count = static_cast<double>(call.operand_type(self).numel());
  return {lowering.emit("aten::div.Scalar", {{"self", total}, {"other", count}},
                        lowering.local_types()[0])};
}

// Weights of elements and of classes broadcast.
std::optional<Pattern> logits_loss(const Call& call) {
  return call.node().get<int64_t>("reduction", mean) == none ? pointwise_pattern(call)
                                                             : element_loss(call);
}

}  // namespace

void add_loss_rules(Rules& rules) {
  add_text_rules(
      rules, {
                 {"perigee::nll", "self: n c^ s*, target: n s*, weight?: c -> n s*; ignore_index"},
                 {"perigee::nll_backward",
                  "grad: n s*, self: n c^ s*, target: n s*, weight?: c -> n c s*; ignore_index "
                  "linear(grad)"},
                 {"perigee::label_weight", "target: n+*, weight?: c^ -> ; ignore_index dtype"},
                 // It needs its value over the whole step, so it is not linear.
                 {"perigee::step_average", "self: -> ; total"},
                 {"perigee::step_share", "self: -> ; linear(self)"},
                 {"perigee::reduction", "self: -> ; kind proven ended linear(self)"},
             });
  for (const char* op : {"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss",
                         "aten::binary_cross_entropy", "aten::soft_margin_loss"}) {
    rules.add(op, {element_loss, lower_mean});
    rules.add(std::string(op) + "_backward", {element_loss_backward, lower_mean});
  }
  rules.add("aten::binary_cross_entropy_with_logits", {logits_loss, lower_mean});
}

}  // namespace perigee::shard
