// checkpoint: forward ops that run again in the backward pass.
#include <algorithm>

#include "base/error.h"
#include "base/match.h"
#include "methods/method.h"
#include "methods/texts.h"

namespace perigee::methods {
namespace {

int64_t count_of(const Config& config, const char* field) {
  const auto found = config.fields.find(field);
  if (found == config.fields.end()) return 1;
  const auto count = found->get<int64_t>();
  if (count < 1) fail("checkpoint", "{} must be at least 1, but got {}", field, count);
  return count;
}

// Returns the outermost scopes that a pattern matches, by path or by the module's type, in the
// graph's order.
std::vector<std::string> matching(const graph::Graph& graph,
                                  const std::vector<std::string>& patterns) {
  std::vector<std::string> known;
  for (const auto& scope : graph.scopes) {
    known.push_back(scope.path);
    if (std::find(known.begin(), known.end(), scope.type) == known.end()) {
      known.push_back(scope.type);
    }
  }
  std::vector<std::string> found;
  for (const auto& pattern : patterns) {
    bool any = false;
    for (const auto& scope : graph.scopes) {
      if (!matches(pattern, scope.path) && pattern != scope.type) continue;
      any = true;
      found.push_back(scope.path);
    }
    if (!any) {
      fail("checkpoint", "a scope or module type must be one of the model's, but got \"{}\"{}",
           pattern, did_you_mean(pattern, known));
    }
  }
  std::vector<std::string> outermost;
  for (const auto& scope : graph.scopes) {
    const auto is_found = [&](const std::string& path) {
      return std::find(found.begin(), found.end(), path) != found.end();
    };
    if (!is_found(scope.path)) continue;
    const bool inside = std::any_of(outermost.begin(), outermost.end(), [&](const auto& outer) {
      return graph::contains_scope(outer, scope.path);
    });
    if (!inside) outermost.push_back(scope.path);
  }
  return outermost;
}

std::vector<std::string> ops_of(const Config& config, const char* field,
                                const graph::Graph& graph) {
  if (!config.fields.contains(field)) return {};
  std::vector<std::string> known;
  for (const auto& node : graph.nodes) {
    if (node.phase != graph::Phase::forward) continue;
    const auto full = node.op;
    for (const auto& name : {full, full.substr(full.find(':') + 2)}) {
      if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
    }
  }
  std::vector<std::string> ops;
  for (const auto& name : texts(config.fields[field], "checkpoint", field)) {
    const auto before = ops.size();
    for (const auto& node : graph.nodes) {
      // "attention" is perigee::attention, "mm" aten::mm, "add" aten::add.Tensor too.
      const auto bare = node.op.substr(node.op.find(':') + 2);
      const bool same = node.op == name || bare == name || bare.substr(0, bare.find('.')) == name;
      if (same && node.phase == graph::Phase::forward &&
          std::find(ops.begin(), ops.end(), node.op) == ops.end()) {
        ops.push_back(node.op);
      }
    }
    if (ops.size() == before) {
      fail("checkpoint", "{} must name ops of the forward pass, but got \"{}\"{}", field, name,
           did_you_mean(name, known));
    }
  }
  return ops;
}

std::string join(const std::vector<std::string>& list) {
  std::string text;
  for (const auto& item : list) text += (text.empty() ? "" : ", ") + item;
  return text;
}

class Checkpoint : public Method {
 public:
  std::string_view name() const override { return "checkpoint"; }
  std::string_view doc() const override {
    return "Computes the matched scopes again in the backward pass instead of keeping their "
           "results: less memory for more work. Dropout draws the same numbers again.";
  }
  std::string_view items() const override { return "scope or module type, ..."; }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"wrap_class", "any",
         "the same as the list: scopes (`blocks.*`) or module types (`Block`)"},
        {"every", "integer", "only each n-th of the matched scopes; default 1"},
        {"group", "integer",
         "so many matched scopes in a row keep one input among them; default 1"},
        {"ops", "list", "only these ops run again (`attention`); default all"},
        {"keep", "list", "all but these ops run again (`mm`, `attention`)"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    auto patterns = texts(config.items, "checkpoint", "scopes");
    if (config.fields.contains("wrap_class")) {
      for (auto& name : texts(config.fields["wrap_class"], "checkpoint", "wrap_class")) {
        patterns.push_back(std::move(name));
      }
    }
    const auto& graph = *request.graph;
    if (patterns.empty()) {
      fail("checkpoint",
           "scopes must be named, as in checkpoint {{ \"blocks.*\" }}: `perigee graph` lists those "
           "of the model, but got none");
    }
    plan::Recompute recompute;
    recompute.only = ops_of(config, "ops", graph);
    recompute.keep = ops_of(config, "keep", graph);
    if (!recompute.only.empty() && !recompute.keep.empty()) {
      fail("checkpoint", "either ops or keep says what runs again, but got both");
    }
    const auto scopes = matching(graph, patterns);
    const auto every = count_of(config, "every"), group = count_of(config, "group");
    std::vector<std::string> taken;
    for (size_t i = 0; i < scopes.size(); i += static_cast<size_t>(every)) {
      if (taken.size() % static_cast<size_t>(group) == 0) recompute.regions.emplace_back();
      recompute.regions.back().push_back(scopes[i]);
      taken.push_back(scopes[i]);
    }
    auto sentence =
        fmt::format("{} scope{} ({}{}) run{} again in the backward pass", taken.size(),
                    taken.size() == 1 ? "" : "s", taken.front(),
                    taken.size() == 1 ? "" : (taken.size() == 2 ? ", " : " to ") + taken.back(),
                    taken.size() == 1 ? "s" : "");
    if (!recompute.only.empty()) sentence += ", of them the ops " + join(recompute.only);
    if (!recompute.keep.empty()) sentence += ", but for the ops " + join(recompute.keep);
    if (group > 1) sentence += fmt::format("; {} together keep one input", group);
    plan.recompute = std::move(recompute);
    plan.decisions.push_back({"checkpoint", std::move(sentence)});
  }
};

}  // namespace

std::shared_ptr<const Method> checkpoint() { return std::make_shared<Checkpoint>(); }

}  // namespace perigee::methods
