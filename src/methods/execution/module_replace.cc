// module_replace: layers written out in primitive ops become one op each, by rewriting the graph.
#include <algorithm>

#include "base/fail.h"
#include "graph/rewrite/fusions.h"
#include "methods/field_table.h"
#include "methods/names.h"
#include "plan/rewrites.h"

namespace perigee::methods {
namespace {

struct ReplaceConfig {
  bool enabled = true;
};

class ModuleReplace : public MethodWith<ReplaceConfig> {
 public:
  std::string_view name() const override { return "module_replace"; }
  std::string_view doc() const override {
    return "Layers that the model writes out in primitive ops become one op forward and one "
           "backward, which save less for the backward pass and read memory once: attention, "
           "cross_entropy, layer_norm, rms_norm, rotary, swiglu, and pairs of your own. A layer "
           "with an inner value that other ops read stays as it is. A strategy without this method "
           "replaces all of these layers.";
  }
  std::string_view items() const override {
    return "names of built-in pairs (default: all) and pairs of your own, {name, pattern, "
           "replacement}: graphs in text form (runtime/methods/module_replace.md). A pair with "
           "`within`, a list of scopes or module types, is replaced there only; one with `dtypes` "
           "only where the model computes in one of them";
  }
  void check_items(const std::vector<Json>& items) const override {
    for (const auto& pair : read_all(items)) plan::apply({pair.rewrite}, {});
  }

 protected:
  const FieldTable<ReplaceConfig>& table() const override {
    static const FieldTable<ReplaceConfig> table(
        {{.name = "enabled",
          .member = &ReplaceConfig::enabled,
          .doc = "false: all layers stay as the model writes them"}});
    return table;
  }

  void edit(plan::Plan& plan, const ReplaceConfig& given, const Config& config,
            const PlanRequest& request) const override {
    if (!given.enabled) {
      if (!config.items.empty()) {
        fail("module_replace",
             "enabled = false replaces no layer, but pairs are listed: remove one");
      }
      plan.decisions.push_back({"module_replace", "all layers stay as the model writes them"});
      return;
    }
    auto pairs = read_all(config.items);
    if (config.items.empty()) {
      for (const auto& name : graph::fusion_names()) pairs.push_back({.rewrite = {.name = name}});
    }
    const auto computed = computed_dtype(plan, *request.graph);
    std::vector<plan::Rewrite> rewrites;
    for (auto& [rewrite, dtypes] : pairs) {
      if (!dtypes.empty() && std::find(dtypes.begin(), dtypes.end(), computed) == dtypes.end()) {
        plan.decisions.push_back(
            {"module_replace", fmt::format("{} is for {}, but the model computes in {}",
                                           rewrite.name, join(dtypes), computed)});
        continue;
      }
      if (!rewrite.within.empty()) {
        rewrite.within = matching_scopes(*request.graph, rewrite.within, "module_replace");
      }
      rewrites.push_back(std::move(rewrite));
    }
    std::vector<graph::Rewritten> done;
    plan::apply(rewrites, *request.graph, &done);
    for (size_t r = 0; r < rewrites.size(); ++r) {
      const auto& rewrite = rewrites[r];
      if (done[r].count == 0 && !rewrite.pattern.empty()) {
        fail("module_replace", "the pattern of {} must match the graph{}, but {}", rewrite.name,
             rewrite.within.empty() ? "" : " within " + join(rewrite.within),
             done[r].refused.empty() ? "matches nowhere" : "got " + done[r].refused.front());
      }
      if (config.items.empty() && done[r].count == 0 && done[r].refused.empty()) continue;
      if (config.implied && done[r].count == 0) continue;
      plan.decisions.push_back({"module_replace", sentence(rewrite, done[r])});
      if (done[r].count > 0) plan.rewrites.push_back(rewrite);
    }
    if (plan.rewrites.empty() && !rewrites.empty() && !config.implied) {
      plan.decisions.push_back({"module_replace",
                                "no layer of the model is written out in a known "
                                "form"});
    }
  }

 private:
  // One item: a rewrite whose `within` are patterns of scopes or module types, and the dtypes that
  // the model must compute in; none: any.
  struct Pair {
    plan::Rewrite rewrite;
    std::vector<std::string> dtypes = {};
  };

  static std::vector<Pair> read_all(const std::vector<Json>& items) {
    std::vector<Pair> pairs;
    for (const auto& item : items) pairs.push_back(read(item));
    return pairs;
  }

  // Returns the low precision, else the dtype of the model's first floating parameter.
  static std::string computed_dtype(const plan::Plan& plan, const graph::Graph& graph) {
    if (plan.precision.dtype) return std::string(graph::name_of(*plan.precision.dtype));
    for (const auto& input : graph.inputs) {
      const auto dtype = graph.type(input.value).dtype;
      if (input.kind == graph::Input::Kind::parameter && graph::is_floating(dtype)) {
        return std::string(graph::name_of(dtype));
      }
    }
    return "float32";
  }

  static void check_built_in(const std::string& name) {
    const auto known = graph::fusion_names();
    if (std::find(known.begin(), known.end(), name) != known.end()) return;
    fail("module_replace", "names must be among {}, but got \"{}\"{}", join(known), name,
         did_you_mean(name, known));
  }

  static Pair read(const Json& item) {
    if (item.is_string()) {
      check_built_in(item.get<std::string>());
      return {{.name = item.get<std::string>()}};
    }
    const auto wrong = [&] {
      fail("module_replace",
           "a pair is a table {{name, pattern, replacement}} of strings, or {{name}} of a built-in "
           "pair, either with within and dtypes, lists of strings, but got {}",
           item.dump().substr(0, 80));
    };
    const auto text = [&](const std::string& key) {
      if (!item.contains(key) || !item[key].is_string() || item[key].get<std::string>().empty()) {
        wrong();
      }
      return item[key].get<std::string>();
    };
    const auto texts = [&](const std::string& key) {
      std::vector<std::string> list;
      if (!item.contains(key)) return list;
      if (!item[key].is_array() || item[key].empty()) wrong();
      for (const auto& each : item[key]) {
        if (!each.is_string()) wrong();
        list.push_back(each.get<std::string>());
      }
      return list;
    };
    if (!item.is_object()) wrong();
    for (const auto& [key, value] : item.items()) {
      const std::vector<std::string> known = {"name", "pattern", "replacement", "within", "dtypes"};
      if (std::find(known.begin(), known.end(), key) == known.end()) wrong();
    }
    Pair pair{{.name = text("name"), .within = texts("within")}, texts("dtypes")};
    if (item.contains("pattern") || item.contains("replacement")) {
      pair.rewrite.pattern = text("pattern");
      pair.rewrite.replacement = text("replacement");
    } else {
      check_built_in(pair.rewrite.name);
    }
    for (const auto& dtype : pair.dtypes) {
      if (const auto known = graph::dtype_of(dtype); !known || !graph::is_floating(*known)) {
        fail("module_replace", "dtypes are floating types, but one is \"{}\"", dtype);
      }
    }
    return pair;
  }

  static std::string sentence(const plan::Rewrite& rewrite, const graph::Rewritten& done) {
    // A named pair without an effect: the user is warned of decisions that are left out.
    auto text = done.count == 0 ? fmt::format("left out: {} matches nowhere", rewrite.name)
                                : fmt::format("{} is one op, forward and backward, at {} place{}",
                                              rewrite.name, done.count, done.count == 1 ? "" : "s");
    if (!done.refused.empty()) {
      text += fmt::format("; {} stay{} written out ({})", done.refused.size(),
                          done.refused.size() == 1 ? "s" : "", done.refused.front());
    }
    return text;
  }
};

}  // namespace

std::shared_ptr<const Method> module_replace() { return std::make_shared<ModuleReplace>(); }

}  // namespace perigee::methods
