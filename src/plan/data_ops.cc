#include "plan/data_ops.h"

#include <set>
#include <string>

#include "base/fail.h"

namespace perigee::plan {
namespace {

bool is_number(std::string_view text) { return text.starts_with('?') || text.starts_with("1/?"); }

// Overloads with `out` that are named otherwise ("aten::sort.values") are known by their schemas
// alone, which exec/ops reads.
bool writes_to_operand(const graph::Node& node) {
  const auto dot = node.op.find('.');
  if (dot != std::string::npos && node.op.ends_with("out")) return true;
  for (const auto& [name, arg] : node.args) {
    if (name == "out") return true;
  }
  return false;
}

}  // namespace

bool is_option(std::string_view argument) {
  static const std::set<std::string_view> options{
      "UPLO",     "activation", "algorithm",     "api_name",     "approximate", "driver",
      "equation", "indexing",   "interpolation", "mode",         "norm",        "ord",
      "p",        "pad_mode",   "padding",       "padding_side", "reduce",      "rounding_mode",
      "side"};
  return options.contains(argument);
}

void check_data_ops(const graph::Graph& replacement, std::string_view rewrite) {
  for (const auto& node : replacement.nodes) {
    if (node.op.starts_with("perigee::")) continue;  // no op of ours accesses a file
    for (const auto& [name, arg] : node.args) {
      const auto* text = std::get_if<std::string>(&arg);
      if (!text || is_number(*text) || is_option(name)) continue;
      fail("plan",
           "ops of a replacement compute from tensors, numbers and options, but {} in {} takes the "
           "text \"{}\": name an op without it",
           node.op, rewrite, name);
    }
    if (writes_to_operand(node)) {
      fail("plan",
           "ops of a replacement return their results, but {} in {} writes to an operand: name its "
           "overload without out",
           node.op, rewrite);
    }
  }
}

}  // namespace perigee::plan
