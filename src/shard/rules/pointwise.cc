// Element-wise ops: every dim is free; operands broadcast, aligned at the right.
#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "graph/ops.h"
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

using Names = std::vector<std::string_view>;

// Sets of operands in which an op is linear: they may be Partial together. All other ops force
// the reduction.
const std::unordered_map<std::string_view, std::vector<Names>>& linear_operands() {
  static const std::unordered_map<std::string_view, std::vector<Names>> table = {
      {"aten::add.Tensor", {{"self", "other"}}},
      {"aten::sub.Tensor", {{"self", "other"}}},
      {"aten::rsub.Tensor", {{"self", "other"}}},
      {"aten::mul.Tensor", {{"self"}, {"other"}}},
      {"aten::mul.Scalar", {{"self"}}},
      {"aten::div.Tensor", {{"self"}}},
      {"aten::div.Scalar", {{"self"}}},
      {"aten::neg", {{"self"}}},
      {"aten::positive", {{"self"}}},
      {"aten::clone", {{"self"}}},
      {"aten::_conj_physical", {{"self"}}},
      {"aten::alias", {{"self"}}},
      {"aten::detach", {{"self"}}},
      {"aten::where.self", {{"self", "other"}}},
      {"aten::threshold_backward", {{"grad_output"}}},
      {"aten::gelu_backward", {{"grad_output"}}},
      {"aten::silu_backward", {{"grad_output"}}},
      {"aten::mish_backward", {{"grad_output"}}},
      {"aten::sigmoid_backward", {{"grad_output"}}},
      {"aten::tanh_backward", {{"grad_output"}}},
      {"aten::elu_backward", {{"grad_output"}}},
      {"aten::leaky_relu_backward", {{"grad_output"}}},
      {"aten::hardtanh_backward", {{"grad_output"}}},
      {"aten::hardswish_backward", {{"grad_output"}}},
      {"aten::hardsigmoid_backward", {{"grad_output"}}},
      {"aten::softplus_backward", {{"grad_output"}}},
      {"aten::_prelu_kernel_backward", {{"grad_output"}}},
      {"perigee::dropout", {{"self"}}},
      {"perigee::swiglu", {{"up"}}},
      {"perigee::swiglu_backward", {{"grad"}}},
  };
  return table;
}

bool listed(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A cast of a Partial tensor is exact only if nothing is rounded.
bool cast_is_exact(const Call& call) {
  const auto from = call.operand_type(0).dtype;
  const auto to = call.result_type(0).dtype;
  using graph::DType;
  return from == to || (to == DType::float64 && graph::is_floating(from)) ||
         (to == DType::float32 && graph::is_half(from));
}

}  // namespace

std::optional<Pattern> pointwise_pattern(const Call& call) {
  Pattern pattern;
  const std::vector<int64_t>* shape = nullptr;
  for (int r = 0; r < call.result_count(); ++r) {
    if (!call.has_result(r)) continue;
    if (shape && *shape != call.result_shape(r)) return {};
    shape = &call.result_shape(r);
  }
  if (!shape) return {};
  const int rank = static_cast<int>(shape->size());
  std::vector<int> dims;
  for (int d = 0; d < rank; ++d) dims.push_back(pattern.add());
  for (int r = 0; r < call.result_count(); ++r) {
    pattern.results.push_back(call.has_result(r) ? dims : std::vector<int>());
  }
  for (int i = 0; i < call.operand_count(); ++i) {
    const auto& own = call.shape(i);
    if (call.rank(i) > rank) return {};
    std::vector<int> letters;
    for (int d = 0; d < call.rank(i); ++d) {
      const int at = rank - call.rank(i) + d;
      const bool broadcast = own[d] == 1 && (*shape)[at] != 1;
      if (!broadcast && own[d] != (*shape)[at]) return {};
      letters.push_back(broadcast ? -1 : dims[at]);
    }
    pattern.operands.push_back(std::move(letters));
  }
  const auto& op = call.node().op;
  if (op == "perigee::cast") {
    if (cast_is_exact(call)) pattern.linear.push_back({0});
    return pattern;
  }
  const auto found = linear_operands().find(op);
  if (found == linear_operands().end()) return pattern;
  for (const auto& names : found->second) {
    std::vector<int> group;
    for (int i = 0; i < call.operand_count(); ++i) {
      if (listed(names, call.argument_of(i))) group.push_back(i);
    }
    // A sum with a scalar in place of a tensor is not linear.
    if (group.size() == names.size()) pattern.linear.push_back(std::move(group));
  }
  return pattern;
}

void add_pointwise_rules(Rules& rules) {
  for (const char* op :
       {"aten::_conj_physical", "aten::alias", "aten::detach", "aten::lift_fresh_copy",
        "aten::_prelu_kernel_backward", "aten::log_sigmoid_forward", "perigee::swiglu",
        "perigee::swiglu_backward"}) {
    rules.add(op, {pointwise_pattern});
  }
  // Cut in one piece on both sides, since messages are boxes.
  rules.add("perigee::cross", {[](const Call& call) {
              auto pattern = whole_pattern(call);
              for (int d = 0; d < call.rank(0); ++d) {
                const int dim = pattern.add();
                pattern.dims[dim].one_piece = true;
                pattern.operands[0][d] = pattern.results[0][d] = dim;
              }
              return std::optional(pattern);
            }});
  for (const char* op : {"perigee::fp8", "perigee::fp8_cast", "perigee::fp8_cast_amax"}) {
    rules.add(op, {[](const Call& call) {
                auto pattern = whole_pattern(call);
                const bool magnitude = call.has_result(1);  // of all dims
                for (int d = 0; d < call.rank(0); ++d) {
                  pattern.operands[0][d] = pattern.results[0][d] = pattern.add(
                      magnitude ? Role::max : Role::free);
                }
                if (call.rank(1) > 0) pattern.own_operands = {1};
                if (magnitude && call.result_rank(1) > 0) pattern.own_results = {1};
                return std::optional(pattern);
              }});
  }
  // Statistics of the whole tensor, or of each rank's shard.
  for (const char* op : {"perigee::fp8_scale", "perigee::fp8_history", "perigee::fp8_held"}) {
    rules.add(op, {[](const Call& call) {
                auto pattern = whole_pattern(call);
                const bool own = call.node().op == "perigee::fp8_scale" ? call.result_rank(0) > 0
                                                                        : call.rank(1) > 0;
                if (!own) return std::optional(pattern);
                for (int i = 0; i < call.operand_count(); ++i) pattern.own_operands.push_back(i);
                for (int r = 0; r < call.result_count(); ++r) pattern.own_results.push_back(r);
                return std::optional(pattern);
              }});
  }
  rules.add("perigee::fp8_rows", {pointwise_pattern});
  rules.add("perigee::fp8_cast_rows", {[](const Call& call) {
              auto pattern = whole_pattern(call);
              const int last = call.rank(0) - 1;
              for (int d = 0; d < last; ++d) {
                const int dim = pattern.add();
                for (auto& operand : pattern.operands) operand[d] = dim;
                for (auto& result : pattern.results) result[d] = dim;
              }
              // Given magnitudes are of whole rows, as are the scales.
              if (call.find("amax") >= 0) {
                pattern.operands[0][last] = pattern.results[0][last] = pattern.add(Role::agreed);
              }
              return std::optional(pattern);
            }});
  // Blocks are counted from the start of the dim, which is not sharded.
  rules.add("perigee::fp8_blocks", {[](const Call& call) {
              std::vector<bool> whole(call.rank(0));
              whole[call.node().get<int64_t>("dim", 0)] = true;
              return std::optional(same_shape_pattern(call, whole));
            }});
  rules.add("perigee::dropout", {pointwise_pattern, lower_random});
  add_text_rules(rules, {
                            {"aten::glu", "self: d* -> d*; dim^"},
                            {"aten::glu_backward",
                             "grad_output: d*, self: d* -> d*; dim^ linear(grad_output)"},
                        });
}

Pattern whole_pattern(const Call& call) {
  Pattern pattern;
  for (int i = 0; i < call.operand_count(); ++i) {
    pattern.operands.emplace_back(call.rank(i), -1);
  }
  for (int r = 0; r < call.result_count(); ++r) {
    pattern.results.emplace_back(call.has_result(r) ? call.result_rank(r) : 0, -1);
  }
  return pattern;
}

Pattern same_shape_pattern(const Call& call, const std::vector<bool>& whole) {
  auto pattern = whole_pattern(call);
  const auto shape = call.shape(0);
  std::vector<int> dims;
  for (size_t d = 0; d < shape.size(); ++d) dims.push_back(whole[d] ? -1 : pattern.add());
  for (int i = 0; i < call.operand_count(); ++i) {
    if (call.shape(i) == shape) pattern.operands[i] = dims;
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (call.has_result(r) && call.result_shape(r) == shape) pattern.results[r] = dims;
  }
  return pattern;
}

}  // namespace perigee::shard
