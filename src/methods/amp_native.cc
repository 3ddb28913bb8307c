// amp_native: ops that gain from a low precision compute in it, the others as before.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "methods/low_precision.h"
#include "methods/names.h"
#include "methods/texts.h"

namespace perigee::methods {
namespace {

using Parameters = plan::Precision::Parameters;

class AmpNative : public Method {
 public:
  std::string_view name() const override { return "amp_native"; }
  std::string_view doc() const override {
    return "Mixed precision as LibTorch's autocast has it: matrix products, convolutions and "
           "attention compute in fp16 or bf16, softmax, norms and losses in float32 (its lists of "
           "CUDA, on every device), all else in the widest of its operands. Parameters, their "
           "gradients and the optimizer's state stay as they are; float64 is left alone.";
  }
  std::string_view items() const override { return "dtype"; }
  const std::vector<Field>& fields() const override {
    static const auto fields = with_loss_scale(
        {{"dtype", "string", "`fp16` or `bf16`; default fp16"},
         {"match", "any",
          "scopes (`blocks.*`) or module types, outside of which all stays float32"},
         {"allow", "list", "these ops compute in dtype, too (`add`)"},
         {"deny", "list", "these in float32 (`mm`)"},
         {"promote", "list", "these in the widest of their operands"},
         {"log", "boolean", "tell in the plan how each kind of op computes, and why"}});
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    const auto dtype = low_dtype(config, name());
    if (plan.precision.dtype && plan.precision.parameters != Parameters::as_captured) {
      if (*plan.precision.dtype != dtype) {
        fail("strategy",
             "half and amp_native must name one type, but half has {} and amp_native {}: all ops "
             "of a half model compute in its own",
             graph::name_of(*plan.precision.dtype), graph::name_of(dtype));
      }
      plan.decisions.push_back({"amp_native", "has nothing to do beside half"});
      return;
    }
    const auto& graph = *request.graph;
    plan::Precision precision;
    precision.dtype = dtype;
    precision.allow = named_ops(graph, config, "allow", name());
    precision.deny = named_ops(graph, config, "deny", name());
    precision.promote = named_ops(graph, config, "promote", name());
    if (config.fields.contains("match")) {
      precision.scopes =
          matching_scopes(graph, texts(config.fields["match"], name(), "match"), name());
    }
    set_loss_scale(precision, config, name());
    verify(precision, graph);
    plan.decisions.push_back({"amp_native", sentence(precision, graph)});
    if (config.fields.value("log", false)) log_ops(plan, precision, graph);
    plan.precision = std::move(precision);
  }

 private:
  static std::string sentence(const plan::Precision& precision, const graph::Graph& graph) {
    int64_t low = 0;
    bool castable = false;
    for (const auto& node : graph.nodes) {
      if (node.phase != graph::Phase::forward) continue;
      bool full = false;
      node.each_operand(
          [&](graph::ValueId v) { full |= graph.type(v).dtype == graph::DType::float32; });
      castable |= full;
      low += full && rounds_low(precision, node);
    }
    auto text = castable ? fmt::format("{} op{} of the forward pass compute{} in {}", low,
                                       low == 1 ? "" : "s", low == 1 ? "s" : "",
                                       graph::name_of(*precision.dtype))
                         : std::string("no op of the model is float32, and all compute as before");
    if (castable) text += " (LibTorch's autocast lists of CUDA";
    const std::pair<const char*, const std::vector<std::string>&> lists[] = {
        {"allow ", precision.allow}, {"deny ", precision.deny}, {"promote ", precision.promote}};
    for (const auto& [what, list] : lists) {
      if (castable && !list.empty()) text += std::string(", ") + what + join(list);
    }
    if (castable && !precision.scopes.empty()) text += "; within " + join(precision.scopes);
    if (castable) text += ")";
    return text + loss_scale_sentence(precision);
  }

  // One decision for each kind of op and way in which it computes, with how many there are.
  static void log_ops(plan::Plan& plan, const plan::Precision& precision,
                      const graph::Graph& graph) {
    std::map<std::string, int64_t> counts;
    for (const auto& node : graph.nodes) {
      if (node.phase != graph::Phase::forward) continue;
      bool full = false;
      node.each_operand(
          [&](graph::ValueId v) { full |= graph.type(v).dtype == graph::DType::float32; });
      if (full) ++counts[node.op + how(precision, node)];
    }
    for (const auto& [text, count] : counts) {
      plan.decisions.push_back(
          {"amp_native", fmt::format("{} ({} of the forward pass)", text, count)});
    }
  }

  static std::string how(const plan::Precision& precision, const graph::Node& node) {
    const auto in = [&](const std::vector<std::string>& list) {
      return std::find(list.begin(), list.end(), node.op) != list.end();
    };
    if (rounds_low(precision, node)) {
      return fmt::format(" computes in {}, by {}", graph::name_of(*precision.dtype),
                         in(precision.allow) ? "the list allow" : "LibTorch's list of such ops");
    }
    if (in(precision.deny)) return " computes in float32, by the list deny";
    const auto built_in = plan::built_in_rounding(node.op, precision.parameters);
    if (!in(precision.promote) && built_in == plan::Rounding::full) {
      return " computes in float32, by LibTorch's list of such ops";
    }
    return " computes in the widest of its operands";
  }

  static bool rounds_low(const plan::Precision& precision, const graph::Node& node) {
    const auto has = [](const auto& list, std::string_view item) {
      return std::find(list.begin(), list.end(), item) != list.end();
    };
    const auto holds = [&](const auto& scope) { return graph::contains_scope(scope, node.scope); };
    if (!precision.scopes.empty() &&
        std::none_of(precision.scopes.begin(), precision.scopes.end(), holds)) {
      return false;
    }
    if (has(precision.allow, node.op)) return true;
    if (has(precision.deny, node.op) || has(precision.promote, node.op)) return false;
    return plan::built_in_rounding(node.op, precision.parameters) == plan::Rounding::low;
  }
};

}  // namespace

std::shared_ptr<const Method> amp_native() { return std::make_shared<AmpNative>(); }

}  // namespace perigee::methods
