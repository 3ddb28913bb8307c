#include "compile/products/product_ways.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "compile/draft/instance.h"
#include "plan/plan.h"

namespace perigee::compile {

std::optional<MatrixProduct> product_of(const Program& program, const Instruction& instruction) {
  const auto& op = instruction.op;
  const bool adds_bias = op == "aten::addmm";
  constexpr std::string_view others[] = {"aten::mm", "perigee::mm_", "perigee::addmm_",
                                         "perigee::mm_gelu", "perigee::mm_gelu_backward"};
  if (!adds_bias && std::ranges::find(others, op) == std::end(others)) return {};
  const graph::TensorType *left = nullptr, *right = nullptr;
  bool bias = adds_bias;
  for (const auto& [name, arg] : instruction.args) {
    const auto* v = std::get_if<ValueId>(&arg);
    if (!v || !v->defined()) continue;
    const auto& type = program.values[v->index].type;
    if (name == (adds_bias ? "mat1" : "self")) left = &type;
    if (name == "mat2") right = &type;
    bias = bias || name == "bias";
  }
  if (!left || !right || left->shape.size() != 2 || right->shape.size() != 2) return {};
  return MatrixProduct{left->dtype, left->shape[0], left->shape[1], right->shape[1], bias};
}

void set_product_ways(Draft& draft, const std::map<std::string, std::string>& ways,
                      TraceSource& traces) {
  if (ways.empty()) return;
  for (auto& section : draft.sections) {
    for (auto& part : section.instructions) {
      const auto product = product_of(draft.program, part.instruction);
      if (!product) continue;
      const auto [factors, m, k, n, bias] = *product;
      const auto found = ways.find(plan::product_name(factors, m, k, n, bias));
      if (found == ways.end()) continue;
      part.instruction.args.emplace_back("way", found->second);
      set_allocations(draft, part, traces);
    }
  }
}

}  // namespace perigee::compile
