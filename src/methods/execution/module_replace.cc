// module_replace: layers written out in primitive ops become one op each, by rewriting the graph.
#include <algorithm>

#include "base/fail.h"
#include "graph/rewrite/fusions.h"
#include "methods/field_table.h"
#include "methods/names.h"
#include "plan/rewrites.h"

namespace perigee::methods {
namespace {

struct NoFields {};

class ModuleReplace : public MethodWith<NoFields> {
 public:
  std::string_view name() const override { return "module_replace"; }
  std::string_view doc() const override {
    return "Layers that the model writes out in primitive ops become one op forward and one "
           "backward, which save less for the backward pass and read memory once: attention, "
           "cross_entropy, layer_norm, rms_norm, rotary, swiglu, and pairs of your own. A layer "
           "with an inner value that other ops read stays as it is.";
  }
  std::string_view items() const override {
    return "names of built-in pairs (default: all) and pairs of your own, {name, pattern, "
           "replacement}: graphs in text form (runtime/methods/module_replace.md)";
  }
  void check_items(const std::vector<Json>& items) const override {
    plan::apply(read_all(items), {});  // reads the pairs' graphs and checks their ops
  }

 protected:
  const FieldTable<NoFields>& table() const override {
    static const FieldTable<NoFields> table(std::vector<FieldRow<NoFields>>{});
    return table;
  }

  void edit(plan::Plan& plan, const NoFields&, const Config& config,
            const PlanRequest& request) const override {
    auto rewrites = read_all(config.items);
    if (config.items.empty()) {
      for (const auto& name : graph::fusion_names()) rewrites.push_back({.name = name});
    }
    std::vector<graph::Rewritten> done;
    plan::apply(rewrites, *request.graph, &done);
    for (size_t r = 0; r < rewrites.size(); ++r) {
      const auto& rewrite = rewrites[r];
      if (done[r].count == 0 && !rewrite.pattern.empty()) {
        fail("module_replace", "the pattern of {} must match the graph, but {}", rewrite.name,
             done[r].refused.empty() ? "matches nowhere" : "got " + done[r].refused.front());
      }
      if (config.items.empty() && done[r].count == 0 && done[r].refused.empty()) continue;
      plan.decisions.push_back({"module_replace", sentence(rewrite, done[r])});
      if (done[r].count > 0) plan.rewrites.push_back(rewrite);
    }
    if (plan.rewrites.empty()) {
      plan.decisions.push_back({"module_replace",
                                "no layer of the model is written out in a known "
                                "form"});
    }
  }

 private:
  static std::vector<plan::Rewrite> read_all(const std::vector<Json>& items) {
    std::vector<plan::Rewrite> rewrites;
    for (const auto& item : items) rewrites.push_back(read(item));
    return rewrites;
  }

  static plan::Rewrite read(const Json& item) {
    if (item.is_string()) {
      const auto known = graph::fusion_names();
      const auto name = item.get<std::string>();
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        fail("module_replace", "names must be among {}, but got \"{}\"{}", join(known), name,
             did_you_mean(name, known));
      }
      return {.name = name};
    }
    const auto text = [&](const char* key) {
      if (!item.is_object() || !item.contains(key) || !item[key].is_string()) {
        fail("module_replace",
             "a pair of your own is a table {{name, pattern, replacement}} of strings, but got {}",
             item.dump().substr(0, 80));
      }
      return item[key].get<std::string>();
    };
    plan::Rewrite rewrite{text("name"), text("pattern"), text("replacement")};
    if (item.size() != 3 || rewrite.pattern.empty() || rewrite.replacement.empty()) {
      fail("module_replace", "a pair of your own has name, pattern and replacement, but got {}",
           item.dump().substr(0, 80));
    }
    return rewrite;
  }

  static std::string sentence(const plan::Rewrite& rewrite, const graph::Rewritten& done) {
    auto text = done.count == 0 ? fmt::format("{} matches nowhere", rewrite.name)
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
