// lora: trained low-rank adapters beside frozen linear layers (Hu et al. 2022).
#include <algorithm>
#include <set>

#include "base/fail.h"
#include "base/text/match.h"
#include "graph/adapters/adapters.h"
#include "methods/field_table.h"
#include "methods/names.h"

namespace perigee::methods {
namespace {

struct LoraConfig {
  Names match, trained;
  int64_t rank = 8;
  std::optional<double> alpha;
  double dropout = 0;
  bool rslora = false;
};

// "blocks.0.attn.q" of "blocks.0.attn.q.weight".
std::string module_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

// Returns whether a pattern means a module: its path, or the end of its path ("q", "attn.q").
bool names_module(const std::string& pattern, const std::string& module) {
  return matches(pattern, module) || module.ends_with("." + pattern);
}

std::vector<const graph::Input*> parameters_of(const graph::Graph& graph) {
  std::vector<const graph::Input*> list;
  for (const auto& input : graph.inputs) {
    if (input.kind != graph::Input::Kind::parameter) continue;
    if (!graph::is_adapter(graph, input.name)) list.push_back(&input);
  }
  return list;
}

class Lora : public MethodWith<LoraConfig> {
 public:
  std::string_view name() const override { return "lora"; }
  std::string_view doc() const override {
    return "Trains low-rank adapters (LoRA) beside linear layers: y = x W' + scale dropout(x) A' "
           "B', with A [rank, in] random and B [out, rank] zero at first. W and all other "
           "parameters keep their values and have no gradients and no optimizer state.";
  }

 protected:
  const FieldTable<LoraConfig>& table() const override {
    using C = LoraConfig;
    static const FieldTable<C> table(
        {{.name = "match",
          .member = &C::match,
          .required = true,
          .doc = "the linear layers: patterns of paths (`blocks.*.attn.q`), or ends of paths (`q`, "
                 "`attn.q`); a pattern of several modules takes their linear layers"},
         {.name = "rank", .member = &C::rank, .at_least = 1, .doc = "rows of A, columns of B"},
         {.name = "alpha",
          .member = &C::alpha,
          .otherwise = "the rank",
          .above = 0,
          .doc = "scale = alpha / rank"},
         {.name = "dropout",
          .member = &C::dropout,
          .at_least = 0,
          .below = 1,
          .doc = "of the adapters' inputs"},
         {.name = "rslora",
          .member = &C::rslora,
          .doc = "scale = alpha / sqrt(rank) (Kalajdzievski 2023)"},
         {.name = "trained",
          .member = &C::trained,
          .doc = "patterns of parameters of the model that are trained, too (`head.**`); "
                 "PEFT's modules_to_save"}});
    return table;
  }

  void edit(plan::Plan& plan, const LoraConfig& given, const Config&,
            const PlanRequest& request) const override {
    if (plan.adapters) fail(name(), "a strategy has one lora, but this one has two: join them");
    const auto& graph = *request.graph;
    graph::Adapters adapters{.rank = given.rank,
                             .alpha = given.alpha.value_or(static_cast<double>(given.rank)),
                             .dropout = given.dropout,
                             .rslora = given.rslora};
    adapters.weights = adapted(graph, given.match.list);
    adapters.trained = trained(graph, given.trained.list, adapters.weights);
    const auto edited = graph::adapt(graph, adapters);
    check_frozen(edited, request.frozen);
    plan.decisions.push_back({"lora", sentence(edited, adapters)});
    plan.adapters = std::move(adapters);
    plan.graph_hash = graph::structural_hash(edited);
  }

 private:
  // Returns the weights of the linear layers that the patterns match, in the graph's order.
  std::vector<std::string> adapted(const graph::Graph& graph,
                                   const std::vector<std::string>& patterns) const {
    if (patterns.empty()) fail(name(), "match must name linear layers, but is an empty list");
    std::set<std::string> found;
    const auto parameters = parameters_of(graph);
    for (const auto& pattern : patterns) {
      bool any = false;
      std::string refused;
      for (const auto* input : parameters) {
        const auto module = module_of(input->name);
        if (pattern != input->name && !names_module(pattern, module)) continue;
        // Biases, norms.
        const auto dims = graph.type(input->value).shape.size();
        if (dims < 2 && (any || !refused.empty())) continue;
        const auto reason = graph::refusal(graph, input->name);
        if (reason.empty()) {
          found.insert(input->name);
          any = true;
        } else if (dims >= 2) {
          fail(name(), "match must name linear layers, but \"{}\" matches {}, which {}", pattern,
               input->name, reason);
        } else {
          refused = fmt::format("{}, which {}", input->name, reason);
        }
      }
      if (any) continue;
      if (!refused.empty()) {
        fail(name(), "match must name linear layers, but \"{}\" matches {}", pattern, refused);
      }
      for (const auto& scope : graph.scopes) {
        if (!names_module(pattern, scope.path)) continue;
        fail(name(),
             "match must name linear layers, but \"{}\" matches {} ({}), which has no weight of "
             "its own, or one that is tied to another module's",
             pattern, scope.path, scope.type);
      }
      fail(name(), "match must name linear layers, but \"{}\" matches no module{}", pattern,
           did_you_mean_pattern(pattern, modules(graph)));
    }
    std::vector<std::string> list;
    for (const auto* input : parameters) {
      if (found.contains(input->name)) list.push_back(input->name);
    }
    return list;
  }

  // Returns paths of linear layers and their last components, which `match` may name.
  static std::vector<std::string> modules(const graph::Graph& graph) {
    std::vector<std::string> names;
    for (const auto* input : parameters_of(graph)) {
      if (graph.type(input->value).shape.size() != 2) continue;
      const auto module = module_of(input->name);
      names.push_back(module);
      names.push_back(module.substr(module.rfind('.') + 1));
    }
    return names;
  }

  std::vector<std::string> trained(const graph::Graph& graph,
                                   const std::vector<std::string>& patterns,
                                   const std::vector<std::string>& weights) const {
    std::vector<std::string> list, known;
    for (const auto* input : parameters_of(graph)) known.push_back(input->name);
    for (const auto& pattern : patterns) {
      bool any = false;
      for (const auto& parameter : known) {
        if (!matches(pattern, parameter)) continue;
        any = true;
        if (std::ranges::find(weights, parameter) != weights.end()) {
          fail(name(), "a parameter is adapted or trained, but {} is matched by match and trained",
               parameter);
        }
        if (std::ranges::find(list, parameter) == list.end()) list.push_back(parameter);
      }
      if (any) continue;
      fail(name(), "trained must match parameters of the model, but \"{}\" matches none{}", pattern,
           did_you_mean_pattern(pattern, known));
    }
    return list;
  }

  void check_frozen(const graph::Graph& edited, const std::vector<std::string>& frozen) const {
    for (const auto& input : edited.inputs) {
      if (input.kind != graph::Input::Kind::parameter || !input.trainable) continue;
      if (!matches_any(frozen, input.name)) continue;
      fail(name(),
           "adapters are trained, but model.frozen matches {}: leave model.frozen out, since lora "
           "freezes the model's own parameters",
           input.name);
    }
  }

  static std::string sentence(const graph::Graph& edited, const graph::Adapters& adapters) {
    int64_t all = 0, trains = 0;
    for (const auto& input : edited.inputs) {
      if (input.kind != graph::Input::Kind::parameter) continue;
      const auto elements = edited.type(input.value).numel();
      all += elements;
      if (input.trainable) trains += elements;
    }
    auto text = fmt::format("{} weight{} ({}{}) {} of rank {} with scale {:.4g}",
                            adapters.weights.size(), adapters.weights.size() == 1 ? "" : "s",
                            adapters.weights.front(), adapters.weights.size() > 1 ? ", ..." : "",
                            adapters.weights.size() == 1 ? "has an adapter" : "have adapters",
                            adapters.rank, adapters.scale());
    if (adapters.dropout > 0) text += fmt::format(" and dropout {:.4g}", adapters.dropout);
    if (!adapters.trained.empty()) {
      text += fmt::format("; also trained: {}", join(adapters.trained));
    }
    return text + fmt::format("; {} of {} parameters are trained ({:.3g}%)", trains, all,
                              100.0 * static_cast<double>(trains) / static_cast<double>(all));
  }
};

}  // namespace

std::shared_ptr<const Method> lora() { return std::make_shared<Lora>(); }

}  // namespace perigee::methods
