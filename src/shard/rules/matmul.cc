// Matrix products. A bias that is added inside one (addmm) is added once: Partial where k
// is sharded.
#include <utility>

#include "graph/ops.h"
#include "shard/rules/families.h"

namespace perigee::shard {
namespace {

// self (broadcast) + a @ b. The last dims of the result are m, n; baddbmm has a batch dim
// before them.
std::optional<Pattern> added_product(const Call& call) {
  const int self = call.find("self");
  const bool vector = call.node().op == "aten::addmv";
  const bool batched = call.node().op == "aten::baddbmm";
  if (self != 0 || call.operand_count() != 3) return {};
  Pattern pattern;
  const int k = pattern.add(Role::sum);
  const int m = pattern.add();
  std::vector<int> result = {m}, a = {m, k}, b = {k};
  if (!vector) {
    const int n = pattern.add();
    result.push_back(n);
    b.push_back(n);
  }
  if (batched) {
    const int batch = pattern.add();
    for (auto* letters : {&result, &a, &b}) letters->insert(letters->begin(), batch);
  }
  const auto& shape = call.result_shape(0);
  const auto& bias = call.shape(self);
  if (shape.size() != result.size() || bias.size() > shape.size()) return {};
  std::vector<int> bias_dims;
  for (size_t d = 0; d < bias.size(); ++d) {
    const size_t at = shape.size() - bias.size() + d;
    bias_dims.push_back(bias[d] == 1 && shape[at] != 1 ? -1 : result[at]);
  }
  pattern.operands = {bias_dims, a, b};
  pattern.results = {result};
  pattern.addends = {self};
  pattern.linear = {{0, 1}, {0, 2}};
  return pattern;
}

// If a device cannot multiply the local factors in eight bits, all ranks widen them.
std::vector<graph::ValueId> lower_scaled_product(RuleLowering& lowering) {
  const auto fits = [&](int factor) {
    int64_t multiple = graph::kEightBitMultiple;
    for (const auto& axis : mesh::AxisSet::parse(lowering.axes_of(factor, 1))) {
      multiple *= lowering.mesh.size_of(axis);
    }
    return lowering.call.shape(factor)[1] % multiple == 0;
  };
  if (fits(0) && fits(1)) return lowering.emit(lowering.local_args());
  const auto type = lowering.local_types()[0];
  const auto widened = [&](int factor) {
    const auto v = lowering.operands[factor];
    graph::TensorType wide{graph::DType::float32, lowering.type(v).shape};
    auto result = lowering.emit("perigee::cast", {{"self", v}}, wide);
    result = lowering.emit("aten::mul.Tensor",
                           {{"self", result}, {"other", lowering.operands[factor + 2]}}, wide);
    if (type.dtype == wide.dtype) return result;
    wide.dtype = type.dtype;
    return lowering.emit("perigee::cast", {{"self", result}}, wide);
  };
  const auto a = widened(0), b = widened(1);
  return {lowering.emit("aten::mm", {{"self", a}, {"mat2", b}}, type)};
}

}  // namespace

void add_matmul_rules(Rules& rules) {
  add_text_rules(rules, {
                            {"aten::mm", "m k+, k n -> m n; linear(0) linear(1)"},
                            {"aten::bmm", "b m k+, b k n -> b m n; linear(0) linear(1)"},
                            {"aten::mv", "m k+, k -> m; linear(0) linear(1)"},
                            {"aten::dot", "k+, k -> ; linear(0) linear(1)"},
                            {"aten::_cdist_forward", "b* m d^, b* n d -> b* m n; p compute_mode"},
                            {"aten::_cdist_backward",
                             "b* m n+, b* m d^, b* n d, b* m n -> b* m d; p linear(0)"},
                        });
  // Factors have one scale, or one for each row of the first and each column of the second.
  const auto scaled = parse_rule("aten::_scaled_mm",
                                 "m k+, k n, , -> m n; out_dtype use_fast_accum"),
             scaled_rows = parse_rule("aten::_scaled_mm",
                                      "m k+, k n, m 1, 1 n -> m n; out_dtype use_fast_accum");
  rules.add("aten::_scaled_mm", {[=](const Call& call) {
                                   return (call.rank(2) == 0 ? scaled : scaled_rows).pattern(call);
                                 },
                                 lower_scaled_product});
  for (const char* op : {"aten::addmm", "aten::baddbmm", "aten::addmv"}) {
    rules.add(op, {added_product});
  }
}

}  // namespace perigee::shard
