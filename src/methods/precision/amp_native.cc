// amp_native: ops that gain from a low precision compute in it, the others in float32.
#include <algorithm>
#include <map>

#include "base/fail.h"
#include "methods/names.h"
#include "methods/precision/low_precision.h"

namespace perigee::methods {
namespace {

using Parameters = plan::Precision::Parameters;

struct AmpConfig : LossScaleConfig {
  std::string dtype = "fp16";
  Names match;
  std::vector<std::string> allow, deny, promote;
  bool keep_weights = false, log = false;
};

class AmpNative : public MethodWith<AmpConfig> {
 public:
  std::string_view name() const override { return "amp_native"; }
  std::string_view doc() const override {
    return "Mixed precision as in LibTorch's autocast: matrix products, convolutions and attention "
           "compute in fp16 or bf16, softmax, norms and losses in float32 (its lists for CUDA, on "
           "every device), all other ops in the widest type of their operands. Parameters, their "
           "gradients and the optimizer state keep their types; float64 is not changed.";
  }
  std::string_view items() const override { return "dtype"; }

 protected:
  const FieldTable<AmpConfig>& table() const override {
    using C = AmpConfig;
    static const FieldTable<C> table(
        std::vector<FieldRow<C>>{
            {.name = "dtype",
             .member = &C::dtype,
             .allowed = low_dtype_names(),
             .doc = "the low precision"},
            {.name = "match",
             .member = &C::match,
             .otherwise = "all",
             .doc = "scopes (`blocks.*`) or module types; ops outside of them compute in float32"},
            {.name = "allow",
             .member = &C::allow,
             .doc = "further ops that compute in dtype (`add`)"},
            {.name = "deny", .member = &C::deny, .doc = "ops that compute in float32 (`mm`)"},
            {.name = "promote",
             .member = &C::promote,
             .doc = "ops that compute in the widest type of their operands"},
            {.name = "keep_weights",
             .member = &C::keep_weights,
             .doc =
                 "keep weights in dtype beside the float32 ones; the optimizer writes both, and no "
                 "microbatch casts them"},
            {.name = "log",
             .member = &C::log,
             .doc = "note in the plan how each kind of op computes, and why"}},
        loss_scale_fields());
    return table;
  }

  void edit(plan::Plan& plan, const AmpConfig& given, const Config& config,
            const PlanRequest& request) const override {
    const auto dtype = low_dtype(config, given.dtype, name());
    if (plan.precision.dtype && plan.precision.parameters != Parameters::as_captured) {
      if (*plan.precision.dtype != dtype) {
        fail("strategy",
             "half and amp_native must name one type, but half has {} and amp_native {}: all ops "
             "of a half model compute in its own",
             graph::name_of(*plan.precision.dtype), graph::name_of(dtype));
      }
      plan.decisions.push_back({"amp_native", "has no effect besides half"});
      return;
    }
    const auto& graph = *request.graph;
    plan::Precision precision;
    precision.dtype = dtype;
    precision.allow = named_ops(graph, given.allow, "allow", name());
    precision.deny = named_ops(graph, given.deny, "deny", name());
    precision.promote = named_ops(graph, given.promote, "promote", name());
    if (config.has("match")) precision.scopes = matching_scopes(graph, given.match.list, name());
    precision.keep_weights = given.keep_weights;
    set_loss_scale(precision, given, config, name());
    verify(precision, graph);
    plan.decisions.push_back({"amp_native", sentence(precision, graph)});
    if (given.log) log_ops(plan, precision, graph);
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
                         : std::string("has no effect: no op of the model is float32");
    if (castable) text += " (LibTorch's autocast lists of CUDA";
    const std::pair<const char*, const std::vector<std::string>&> lists[] = {
        {"allow ", precision.allow}, {"deny ", precision.deny}, {"promote ", precision.promote}};
    for (const auto& [name, list] : lists) {
      if (castable && !list.empty()) text += std::string(", ") + name + join(list);
    }
    if (castable && !precision.scopes.empty()) text += "; within " + join(precision.scopes);
    if (castable) text += ")";
    return text + kept_weights_sentence(precision) + loss_scale_sentence(precision);
  }

  // Records the number of ops of each kind and compute type as a decision.
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
