// checkpoint: forward ops that run again in the backward pass.
#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "methods/names.h"
#include "methods/texts.h"
#include "plan/rewrites.h"

namespace perigee::methods {
namespace {

int64_t count_of(const Config& config, const char* field, int64_t least = 1) {
  const auto found = config.fields.find(field);
  if (found == config.fields.end()) return least;
  const auto count = found->get<int64_t>();
  if (count < least) fail("checkpoint", "{} must be at least {}, but got {}", field, least, count);
  return count;
}

// Bytes: a number, a text with a unit ("40GB", "512 MiB"), or "device"; 0 where nobody knows what
// that has.
int64_t bytes_of(const Json& value, const plan::Plan& plan, const Request& request) {
  if (value == "device") {
    return request.device_bytes ? static_cast<int64_t>(request.device_bytes(plan.mesh.size())) : 0;
  }
  if (value.is_number_integer() && value.get<int64_t>() > 0) return value.get<int64_t>();
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    size_t used = 0;
    double number = 0;
    try {
      number = std::stod(text, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    const auto unit = text.substr(std::min(text.find_first_not_of(' ', used), text.size()));
    constexpr std::pair<std::string_view, double> kUnits[] = {
        {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},    {"TB", 1e12},
        {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    for (const auto& [name, factor] : kUnits) {
      const double bytes = number * factor;
      if (used > 0 && unit == name && bytes >= 1 && bytes < 1e18) {
        return static_cast<int64_t>(bytes);
      }
    }
  }
  fail("checkpoint",
       "memory is a number of bytes, a text such as \"40GB\" or \"512MiB\", or \"device\", but got "
       "{}",
       value.dump());
}

std::string row_of(const graph::Graph& graph) {
  const auto row = longest_row(graph);
  if (row.empty()) {
    fail("checkpoint",
         "the model must have a row of numbered modules (blocks.0, blocks.1, ...), "
         "but has none: name scopes");
  }
  return row;
}

// Cuts the scopes behind each of those that are kept.
std::vector<std::vector<std::string>> regions_between(const std::vector<std::string>& scopes,
                                                      const std::vector<std::string>& kept) {
  for (const auto& scope : kept) {
    if (std::find(scopes.begin(), scopes.end(), scope) == scopes.end()) {
      fail("checkpoint", "kept names modules of the row {} to {}, but got \"{}\"{}", scopes.front(),
           scopes.back(), scope, did_you_mean(scope, scopes));
    }
  }
  std::vector<std::vector<std::string>> regions(1);
  for (const auto& scope : scopes) {
    regions.back().push_back(scope);
    if (std::find(kept.begin(), kept.end(), scope) != kept.end()) regions.emplace_back();
  }
  regions.pop_back();
  if (regions.empty()) fail("checkpoint", "kept names at least one scope, but got none");
  return regions;
}

class Checkpoint : public Method {
 public:
  std::string_view name() const override { return "checkpoint"; }
  std::string_view doc() const override {
    return "Computes the matched scopes again in the backward pass instead of keeping their "
           "results: less memory for more work. Dropout draws the same numbers again.";
  }
  std::string_view items() const override {
    return "scope or module type, ..., or `auto`: all rows of numbered modules of one type";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"wrap_class", "any",
         "the same as the list: scopes (`blocks.*`) or module types (`Block`)"},
        {"kept", "list",
         "scopes of the longest row of numbered modules whose results are kept: those between run "
         "again, but for those behind the last; instead of scopes"},
        {"most", "integer", "only the first so many of the matched scopes; default all"},
        {"every", "integer", "only each n-th of the matched scopes; default 1"},
        {"group", "integer",
         "so many matched scopes in a row keep one input among them; default 1"},
        {"ops", "list",
         "only these ops run again (`attention`; behind module_replace also `swiglu`); default "
         "all"},
        {"keep", "list", "all but these ops run again (`mm`, `attention`)"},
        {"kept_microbatches", "integer",
         "with pipeline_parallel: of the microbatches in flight on a stage so many keep their "
         "results, and the others run the scopes again; without offloaded activations "
         "and overlap's experts; default 0"},
        {"memory", "any",
         "bytes that a rank may need (`40GB`, 512MiB), or `device`, what its device has: only "
         "those "
         "of the scopes run again that it takes, the least arithmetic; default all"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    auto patterns = texts(config.items, name(), "scopes");
    if (config.fields.contains("wrap_class")) {
      for (auto& scope : texts(config.fields["wrap_class"], name(), "wrap_class")) {
        patterns.push_back(std::move(scope));
      }
    }
    const auto& graph = *request.graph;
    if (patterns == std::vector<std::string>{"auto"}) {
      row_of(graph);  // or that there is none
      patterns = repeated_rows(graph);
    }
    const bool between = config.fields.contains("kept");
    if (between && (!patterns.empty() || config.fields.contains("every") ||
                    config.fields.contains("group") || config.fields.contains("most"))) {
      fail("checkpoint", "kept says what runs again, without scopes, most, every and group");
    }
    if (between) patterns = {row_of(graph)};
    if (patterns.empty()) {
      fail("checkpoint",
           "scopes must be named, as in checkpoint {{ \"blocks.*\" }}: `perigee graph` lists those "
           "of the model, but got none");
    }
    plan::Recompute recompute;
    // Those of the graph as it runs: behind module_replace.
    const bool rewritten =
        !plan.rewrites.empty() && (config.fields.contains("ops") || config.fields.contains("keep"));
    const auto runs = rewritten ? plan::apply(plan.rewrites, graph) : graph::Graph{};
    recompute.only = named_ops(rewritten ? runs : graph, config, "ops", name());
    recompute.keep = named_ops(rewritten ? runs : graph, config, "keep", name());
    if (!recompute.only.empty() && !recompute.keep.empty()) {
      fail("checkpoint", "either ops or keep says what runs again, but got both");
    }
    auto scopes = matching_scopes(graph, patterns, name());
    if (config.fields.contains("most")) {
      const auto most = static_cast<size_t>(count_of(config, "most"));
      scopes.resize(std::min(scopes.size(), most));
    }
    const auto every = count_of(config, "every"), group = count_of(config, "group");
    std::vector<std::string> taken;
    if (between) {
      recompute.regions = regions_between(scopes, texts(config.fields["kept"], name(), "kept"));
      for (const auto& region : recompute.regions) {
        taken.insert(taken.end(), region.begin(), region.end());
      }
      scopes.clear();
    }
    for (size_t i = 0; i < scopes.size(); i += static_cast<size_t>(every)) {
      if (taken.size() % static_cast<size_t>(group) == 0) recompute.regions.emplace_back();
      recompute.regions.back().push_back(scopes[i]);
      taken.push_back(scopes[i]);
    }
    if (config.fields.contains("memory")) {
      recompute.budget_bytes = bytes_of(config.fields["memory"], plan, request);
    }
    const bool budget = recompute.budget_bytes > 0;
    const auto named =
        fmt::format("{} scope{} ({}{})", taken.size(), taken.size() == 1 ? "" : "s", taken.front(),
                    taken.size() == 1 ? "" : (taken.size() == 2 ? ", " : " to ") + taken.back());
    auto sentence =
        fmt::format("{}{}{} {} again in the backward pass", budget ? "as few of " : "", named,
                    budget ? " as memory allows" : "", taken.size() == 1 ? "runs" : "run");
    if (!recompute.only.empty()) sentence += ", of them the ops " + join(recompute.only);
    if (!recompute.keep.empty()) sentence += ", but for the ops " + join(recompute.keep);
    if (between) {
      sentence += fmt::format("; what {} of them result in is kept", recompute.regions.size());
    }
    if (group > 1) sentence += fmt::format("; {} together keep one input", group);
    recompute.kept_microbatches = count_of(config, "kept_microbatches", 0);
    if (recompute.kept_microbatches > 0 && !plan.pipeline.cuts()) {
      fail(
          "checkpoint",
          "kept_microbatches are of those in flight on a stage: use pipeline_parallel over an axis "
          "pipe of several ranks beside it, but the plan has none");
    }
    if (recompute.kept_microbatches > 0) {
      sentence += fmt::format("; of the microbatches in flight on a stage {} keep their results",
                              recompute.kept_microbatches);
    }
    plan.recompute = std::move(recompute);
    plan.decisions.push_back({"checkpoint", std::move(sentence)});
  }
};

}  // namespace

std::shared_ptr<const Method> checkpoint() { return std::make_shared<Checkpoint>(); }

}  // namespace perigee::methods
