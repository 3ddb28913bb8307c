// Normalisation over dims that are not sharded; the weights' gradients are Partial over the others.
#include <algorithm>

#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

// The integers N, C and HxW of group norm repeat the operand's sizes; N shrinks with the batch.
template <bool backward>
std::optional<Pattern> group_norm(const Call& call) {
  auto pattern = whole_pattern(call);
  const int n = pattern.add(backward ? Role::sum : Role::free);
  const auto whole_batch = [&](const std::vector<int64_t>& shape) {
    return shape.size() > 1 && shape[0] == call.shape(0)[0];
  };
  for (int i = 0; i < call.operand_count(); ++i) {
    const auto& name = call.argument_of(i);
    if (name == "weight" || name == "bias") continue;
    if (!whole_batch(call.shape(i))) return {};
    pattern.operands[i][0] = n;
  }
  for (int r = 0; r < call.result_count(); ++r) {
    const bool of_weight = backward && r > 0;
    if (!call.has_result(r) || of_weight) continue;
    if (!whole_batch(call.result_shape(r))) return {};
    pattern.results[r][0] = n;
  }
  pattern.sizes = {{"N", false, 0, 0}};
  if (backward) pattern.linear = {{call.find("grad_out")}};
  return pattern;
}

// The length of layer norm's normalized_shape is the number of trailing dims that are not sharded.
// The gradient may be Partial together with what is added to it.
template <bool backward>
std::optional<Pattern> layer_norm(const Call& call) {
  const int input = call.find("input") < 0 ? call.find("self") : call.find("input");
  const auto normalized = static_cast<int>(
      call.node().get<std::vector<int64_t>>("normalized_shape", {}).size());
  if (input < 0 || normalized == 0) return {};
  const int batch = call.rank(input) - normalized;
  auto pattern = whole_pattern(call);
  std::vector<int> dims;
  for (int d = 0; d < batch; ++d) dims.push_back(pattern.add(backward ? Role::sum : Role::free));
  const auto mark = [&](std::vector<int>& letters) {
    std::copy(dims.begin(), dims.end(), letters.begin());
  };
  for (int i = 0; i < call.operand_count(); ++i) {
    const auto& name = call.argument_of(i);
    if (name != "weight" && name != "bias") mark(pattern.operands[i]);
  }
  for (int r = 0; r < call.result_count(); ++r) {
    const bool of_rows = !backward || r == 0 || r == 3;
    if (call.has_result(r) && of_rows) mark(pattern.results[r]);
  }
  if (backward) {
    pattern.linear = {{call.find("grad_out")}};
    if (const int other = call.find("other"); other >= 0) pattern.linear[0].push_back(other);
  }
  return pattern;
}

}  // namespace

void add_norm_rules(Rules& rules) {
  rules.add("aten::native_layer_norm", {layer_norm<false>});
  rules.add("aten::native_layer_norm_backward", {layer_norm<true>});
  rules.add("perigee::add_layer_norm", {layer_norm<false>});
  rules.add("perigee::layer_norm_backward_add", {layer_norm<true>});
  rules.add("aten::native_group_norm", {group_norm<false>});
  rules.add("aten::native_group_norm_backward", {group_norm<true>});
  add_text_rules(
      rules,
      {
          {"perigee::rotary", "self: b* s d^, cos: s d, sin: s d -> b* s d; linear(self)"},
          {"perigee::rotary_backward", "grad: b* s d^, cos: s d, sin: s d -> b* s d; linear(grad)"},
          {"perigee::rms_norm", "self: b* h^, weight?: h -> b* h, b* 1; eps"},
          {"perigee::rms_norm_backward",
           "grad: b+* h^, self: b* h, weight?: h, rstd: b* 1 -> b* h, h; linear(grad)"},
          {"perigee::add_rms_norm",
           "self: b* h^, other: b* h, weight?: h -> b* h, b* h, b* 1; eps"},
          {"perigee::rms_norm_backward_add",
           "grad: b+* h^, self: b* h, weight?: h, rstd: b* 1, other: b* h -> b* h, h, b* h, h; "
           "linear(grad other)"},
          {"perigee::gelu_backward_sum",
           "grad_output: b+* h, self: b* h -> b* h, h; approximate linear(grad_output)"},
      });
}

}  // namespace perigee::shard
