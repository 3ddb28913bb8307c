// checkpoint: activation checkpointing, forward ops that are recomputed in the backward pass.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/fail.h"
#include "methods/field_table.h"
#include "methods/names.h"
#include "methods/texts.h"

namespace perigee::methods {
namespace {

struct CheckpointConfig {
  Names wrap_class;
  std::vector<std::string> kept;
  std::optional<int64_t> most;
  int64_t every = 1, group = 1;
  std::vector<std::string> ops, keep, full;
  std::optional<int64_t> full_every;
  int64_t kept_microbatches = plan::Recompute{}.kept_microbatches;
  Json memory;
};

// Returns the bytes of the forward pass's results in each of the scopes.
std::vector<double> bytes_in(const graph::Graph& graph, const std::vector<std::string>& scopes) {
  std::vector<double> bytes(scopes.size());
  for (const auto& node : graph.nodes) {
    if (node.phase != graph::Phase::forward) continue;
    for (size_t s = 0; s < scopes.size(); ++s) {
      if (!graph::contains_scope(scopes[s], node.scope)) continue;
      for (auto v : node.outputs) {
        if (v.defined()) bytes[s] += static_cast<double>(graph.type(v).bytes());
      }
      break;
    }
  }
  return bytes;
}

// Returns the regions of a model of n modules none of which repeats: sqrt(n) runs of modules with
// about equal bytes of results. One more run after them keeps its results (Chen et al. 2016; EPL's
// rule for such models).
std::vector<std::vector<std::string>> square_root_regions(const graph::Graph& graph) {
  const auto scopes = innermost_modules(graph);
  if (scopes.size() < 2) {
    fail("checkpoint",
         "auto needs a row of numbered modules (blocks.0, blocks.1, ...) or several modules in "
         "sequence, but the model has {}: name scopes",
         scopes.empty() ? "none" : "only " + scopes[0]);
  }
  const auto bytes = bytes_in(graph, scopes);
  double sum = 0;
  for (const double b : bytes) sum += b;
  const auto parts = static_cast<size_t>(std::sqrt(static_cast<double>(scopes.size()))) + 1;
  std::vector<std::vector<std::string>> regions(1);
  double before = 0;
  for (size_t s = 0; s < scopes.size(); ++s) {
    // Each of the remaining parts gets at least one module.
    const bool full = before >=
                      sum * static_cast<double>(regions.size()) / static_cast<double>(parts);
    const bool must = scopes.size() - s == parts - regions.size();
    if (!regions.back().empty() && regions.size() < parts && (full || must)) regions.emplace_back();
    regions.back().push_back(scopes[s]);
    before += bytes[s];
  }
  regions.pop_back();
  return regions;
}

// Returns the modules after which results may be kept: those of the longest row where `kept` names
// members of it, else all innermost modules, with each module of `kept` in place of those inside.
std::vector<std::string> modules_around(const graph::Graph& graph,
                                        const std::vector<std::string>& kept) {
  if (const auto row = longest_row(graph); !row.empty()) {
    auto scopes = matching_scopes(graph, {row}, "checkpoint");
    const bool known = std::all_of(kept.begin(), kept.end(), [&](const auto& scope) {
      return std::find(scopes.begin(), scopes.end(), scope) != scopes.end();
    });
    const bool any = std::any_of(graph.scopes.begin(), graph.scopes.end(), [&](const auto& scope) {
      return std::find(kept.begin(), kept.end(), scope.path) != kept.end();
    });
    if (known || !any) return scopes;
  }
  std::vector<std::string> scopes;
  for (const auto& scope : innermost_modules(graph)) {
    const auto outer = std::find_if(kept.begin(), kept.end(), [&](const auto& outer) {
      return graph::contains_scope(outer, scope);
    });
    const auto& unit = outer == kept.end() ? scope : *outer;
    if (std::find(scopes.begin(), scopes.end(), unit) == scopes.end()) scopes.push_back(unit);
  }
  return scopes;
}

// Returns the runs of scopes that end with a kept one.
std::vector<std::vector<std::string>> regions_between(const std::vector<std::string>& scopes,
                                                      const std::vector<std::string>& kept) {
  for (const auto& scope : kept) {
    if (std::find(scopes.begin(), scopes.end(), scope) == scopes.end()) {
      fail("checkpoint", "kept must name modules of the row {} to {}, but got \"{}\"{}",
           scopes.empty() ? "" : scopes.front(), scopes.empty() ? "" : scopes.back(), scope,
           did_you_mean(scope, scopes));
    }
  }
  std::vector<std::vector<std::string>> regions(1);
  for (const auto& scope : scopes) {
    regions.back().push_back(scope);
    if (std::find(kept.begin(), kept.end(), scope) != kept.end()) regions.emplace_back();
  }
  regions.pop_back();
  if (regions.empty()) fail("checkpoint", "kept must name at least one scope, but got none");
  return regions;
}

class Checkpoint : public MethodWith<CheckpointConfig> {
 public:
  std::string_view name() const override { return "checkpoint"; }
  std::string_view doc() const override {
    return "Activation checkpointing: recomputes the matched scopes in the backward pass instead "
           "of saving their results, which takes less memory and more compute. Dropout draws the "
           "same numbers.";
  }
  std::string_view items() const override {
    return "scope or module type, ..., or `auto`: all rows of numbered modules of one type; in a "
           "model of n modules without such rows, sqrt(n) runs of modules, the last modules "
           "excepted";
  }

 protected:
  const FieldTable<CheckpointConfig>& table() const override {
    using C = CheckpointConfig;
    static const FieldTable<C> table(
        {{.name = "wrap_class",
          .member = &C::wrap_class,
          .doc = "further scopes (`blocks.*`) or module types (`Block`), as in the list"},
         {.name = "kept",
          .member = &C::kept,
          .doc = "instead of a list: scopes whose results are saved, of the longest row of "
                 "numbered modules or of all modules; the scopes up to each are recomputed "
                 "together, those after the last are not recomputed"},
         {.name = "most",
          .member = &C::most,
          .otherwise = "all",
          .at_least = 1,
          .doc = "only this number of the matched scopes, from the first on"},
         {.name = "every",
          .member = &C::every,
          .at_least = 1,
          .doc = "only each n-th of the matched scopes"},
         {.name = "group",
          .member = &C::group,
          .at_least = 1,
          .doc = "number of consecutive matched scopes recomputed together, from one saved input"},
         {.name = "ops",
          .member = &C::ops,
          .otherwise = "all",
          .doc = "recompute only these ops (`attention`; with module_replace also `swiglu`)"},
         {.name = "keep",
          .member = &C::keep,
          .doc = "recompute all ops but these (`mm`, `attention`); where ranks reduce or exchange "
                 "such a result, the reduced result is saved"},
         {.name = "full",
          .member = &C::full,
          .doc = "with keep: scopes all of whose ops are recomputed; one scope of a group stands "
                 "for the group"},
         {.name = "full_every",
          .member = &C::full_every,
          .at_least = 2,
          .doc = "with keep: recompute all ops of each n-th group"},
         {.name = "kept_microbatches",
          .member = &C::kept_microbatches,
          .at_least = 0,
          .doc = "with pipeline_parallel: number of a stage's in-flight microbatches that save "
                 "all results; excludes offloaded activations and overlap's experts"},
         {.name = "memory",
          .member = &C::memory,
          .otherwise = "no limit: all are recomputed",
          .doc = "bytes that a rank may need (`40GB`, `512MiB`), or `device`: the memory of its "
                 "device; only as many scopes are recomputed as it takes, with the least "
                 "arithmetic"}});
    return table;
  }

  void edit(plan::Plan& plan, const CheckpointConfig& given, const Config& config,
            const PlanRequest& request) const override {
    const auto& graph = *request.graph;
    plan::Recompute recompute;
    recompute.regions = regions_of(given, config, graph);
    recompute.only = named_ops(plan, graph, given.ops, "ops", name());
    recompute.keep = named_ops(plan, graph, given.keep, "keep", name());
    if (!recompute.only.empty() && !recompute.keep.empty()) {
      fail("checkpoint", "either ops or keep selects the recomputed ops, but got both");
    }
    for (const auto& scope : full_of(recompute, given, config, graph))
      recompute.keep_in[scope] = {};
    if (config.has("memory")) {
      recompute.budget_bytes = memory_of(given.memory, plan, request, "checkpoint");
    }
    recompute.kept_microbatches = given.kept_microbatches;
    if (recompute.kept_microbatches > 0 && !plan.pipeline.cuts()) {
      fail("checkpoint",
           "kept_microbatches requires pipeline_parallel over an axis pipe of several ranks, but "
           "the plan has none");
    }
    plan.decisions.push_back({"checkpoint", sentence_of(recompute, given)});
    plan.recompute = std::move(recompute);
  }

 private:
  using Regions = std::vector<std::vector<std::string>>;

  static Regions regions_of(const CheckpointConfig& given, const Config& config,
                            const graph::Graph& graph) {
    auto patterns = texts(config.items, "checkpoint", "scopes");
    const auto& classes = given.wrap_class.list;
    patterns.insert(patterns.end(), classes.begin(), classes.end());
    const bool chosen = config.has("every") || config.has("group") || config.has("most");
    if (config.has("kept")) {
      if (!patterns.empty() || chosen) {
        fail("checkpoint",
             "kept selects the recomputed scopes itself, without scopes, most, every and group");
      }
      return regions_between(modules_around(graph, given.kept), given.kept);
    }
    std::vector<std::string> scopes;
    if (patterns == std::vector<std::string>{"auto"}) {
      patterns = repeated_rows(graph);
      if (patterns.empty()) {
        auto regions = square_root_regions(graph);
        if (!chosen) return regions;
        for (const auto& region : regions) {
          scopes.insert(scopes.end(), region.begin(), region.end());
        }
      }
    }
    if (patterns.empty() && scopes.empty()) {
      fail("checkpoint",
           "scopes must be named, as in checkpoint {{ \"blocks.*\" }}: `perigee graph` lists those "
           "of the model, but got none");
    }
    if (scopes.empty()) scopes = matching_scopes(graph, patterns, "checkpoint");
    return grouped(scopes, given);
  }

  static Regions grouped(std::vector<std::string> scopes, const CheckpointConfig& given) {
    if (given.most) scopes.resize(std::min(scopes.size(), static_cast<size_t>(*given.most)));
    const auto every = static_cast<size_t>(given.every), group = static_cast<size_t>(given.group);
    Regions regions;
    for (size_t i = 0; i < scopes.size(); i += every) {
      if (regions.empty() || regions.back().size() == group) regions.emplace_back();
      regions.back().push_back(scopes[i]);
    }
    return regions;
  }

  // Returns the first scopes of the regions all of whose ops are recomputed, despite `keep`.
  static std::vector<std::string> full_of(const plan::Recompute& recompute,
                                          const CheckpointConfig& given, const Config& config,
                                          const graph::Graph& graph) {
    const bool named = config.has("full"), counted = config.has("full_every");
    if (!named && !counted) return {};
    const auto* field = named ? "full" : "full_every";
    if (named && counted) {
      fail("checkpoint",
           "either full or full_every selects the scopes that are recomputed entirely, but got "
           "both");
    }
    if (recompute.keep.empty()) {
      fail("checkpoint",
           "{} requires ops that other scopes keep: name these by keep, or leave {} out, since "
           "without keep all scopes are recomputed entirely",
           field, field);
    }
    std::vector<std::string> full, scopes;
    if (counted) {
      const auto every = static_cast<size_t>(*given.full_every);
      for (size_t r = 0; r < recompute.regions.size(); r += every) {
        full.push_back(recompute.regions[r].front());
      }
      return full;
    }
    for (const auto& region : recompute.regions) {
      scopes.insert(scopes.end(), region.begin(), region.end());
    }
    for (const auto& scope : matching_scopes(graph, given.full, "checkpoint")) {
      const auto region = std::ranges::find_if(recompute.regions, [&](const auto& own) {
        return std::ranges::find(own, scope) != own.end();
      });
      if (region == recompute.regions.end()) {
        fail("checkpoint", "full must name recomputed scopes ({} to {}), but got \"{}\"{}",
             scopes.front(), scopes.back(), scope, did_you_mean(scope, scopes));
      }
      full.push_back(region->front());
    }
    return full;
  }

  // "blocks.0 to blocks.3"
  static std::string range_of(const std::vector<std::string>& scopes) {
    if (scopes.size() == 1) return scopes.front();
    return scopes.front() + (scopes.size() == 2 ? ", " : " to ") + scopes.back();
  }

  static std::string sentence_of(const plan::Recompute& recompute, const CheckpointConfig& given) {
    std::vector<std::string> scopes, full;
    for (const auto& region : recompute.regions) {
      scopes.insert(scopes.end(), region.begin(), region.end());
      const bool whole = recompute.keep_in.contains(region.front());
      if (whole) full.insert(full.end(), region.begin(), region.end());
    }
    const bool budget = recompute.budget_bytes > 0, one = scopes.size() == 1;
    const auto named = fmt::format("{} scope{} ({})", scopes.size(), one ? "" : "s",
                                   range_of(scopes));
    auto sentence = fmt::format("{}{}{} {} recomputed in the backward pass",
                                budget ? "as few of " : "", named,
                                budget ? " as memory allows" : "", one ? "is" : "are");
    if (!recompute.only.empty()) sentence += ", only the ops " + join(recompute.only);
    if (!recompute.keep.empty()) sentence += ", except the ops " + join(recompute.keep);
    if (!full.empty()) {
      sentence += fmt::format("; {} of them ({}) whole", full.size(), range_of(full));
    }
    if (!given.kept.empty()) {
      sentence += fmt::format("; the results of {} of them are saved", recompute.regions.size());
    }
    if (given.group > 1) sentence += fmt::format("; {} together save one input", given.group);
    if (recompute.kept_microbatches > 0) {
      sentence += fmt::format("; {} of a stage's in-flight microbatches save all results",
                              recompute.kept_microbatches);
    }
    return sentence;
  }
};

}  // namespace

std::shared_ptr<const Method> checkpoint() { return std::make_shared<Checkpoint>(); }

}  // namespace perigee::methods
