// checkpoint: forward ops that run again in the backward pass.
#include <algorithm>
#include <cmath>
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

// The bytes that the forward pass makes in each of the scopes.
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

// Where no modules repeat: the root of their number of runs of modules that make alike many bytes,
// and one more behind them, which keeps its results (Chen et al. 2016; EPL's rule for such models).
std::vector<std::vector<std::string>> regions_of_root(const graph::Graph& graph) {
  const auto scopes = innermost_modules(graph);
  if (scopes.size() < 2) {
    fail("checkpoint",
         "auto needs a row of numbered modules (blocks.0, blocks.1, ...) or several modules in a "
         "row, but the model has {}: name scopes",
         scopes.empty() ? "none" : "only " + scopes[0]);
  }
  const auto bytes = bytes_in(graph, scopes);
  double sum = 0;
  for (const double b : bytes) sum += b;
  const auto parts = static_cast<size_t>(std::sqrt(static_cast<double>(scopes.size()))) + 1;
  std::vector<std::vector<std::string>> regions(1);
  double before = 0;
  for (size_t s = 0; s < scopes.size(); ++s) {
    // Each of the parts that are left gets a module at least.
    const bool full =
        before >= sum * static_cast<double>(regions.size()) / static_cast<double>(parts);
    const bool must = scopes.size() - s == parts - regions.size();
    if (!regions.back().empty() && regions.size() < parts && (full || must)) regions.emplace_back();
    regions.back().push_back(scopes[s]);
    before += bytes[s];
  }
  regions.pop_back();
  return regions;
}

// The modules between which results may be kept: those of the longest row where they are of it,
// else all, of which those that are kept stand for what they hold.
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

// Cuts the scopes behind each of those that are kept.
std::vector<std::vector<std::string>> regions_between(const std::vector<std::string>& scopes,
                                                      const std::vector<std::string>& kept) {
  for (const auto& scope : kept) {
    if (std::find(scopes.begin(), scopes.end(), scope) == scopes.end()) {
      fail("checkpoint", "kept names modules of the row {} to {}, but got \"{}\"{}",
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
    return "scope or module type, ..., or `auto`: all rows of numbered modules of one type, or "
           "where no modules repeat, but for the last of them, runs of them, as many as the root "
           "of their number";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"wrap_class", "any",
         "the same as the list: scopes (`blocks.*`) or module types (`Block`)"},
        {"kept", "list",
         "scopes whose results are kept, of the longest row of numbered modules or of all: those "
         "between run again, but for those behind the last; instead of scopes"},
        {"most", "integer", "only the first so many of the matched scopes; default all"},
        {"every", "integer", "only each n-th of the matched scopes; default 1"},
        {"group", "integer",
         "so many matched scopes in a row keep one input among them; default 1"},
        {"ops", "list",
         "only these ops run again (`attention`; behind module_replace also `swiglu`); default "
         "all"},
        {"keep", "list",
         "all but these ops run again (`mm`, `attention`); where ranks add up or exchange such a "
         "result at once, what comes of it is kept"},
        {"full", "list",
         "beside keep: scopes of which all runs again; of what runs again together, one stands for "
         "all"},
        {"full_every", "integer", "beside keep: all of each n-th of what runs again does"},
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
    const auto& graph = *request.graph;
    plan::Recompute recompute;
    recompute.regions = regions_of(config, graph);
    // Those of the graph as it runs: behind module_replace.
    const bool rewritten =
        !plan.rewrites.empty() && (config.fields.contains("ops") || config.fields.contains("keep"));
    const auto runs = rewritten ? plan::apply(plan.rewrites, graph) : graph::Graph{};
    recompute.only = named_ops(rewritten ? runs : graph, config, "ops", name());
    recompute.keep = named_ops(rewritten ? runs : graph, config, "keep", name());
    if (!recompute.only.empty() && !recompute.keep.empty()) {
      fail("checkpoint", "either ops or keep says what runs again, but got both");
    }
    for (const auto& scope : full_of(recompute, config, graph)) recompute.keep_in[scope] = {};
    if (config.fields.contains("memory")) {
      recompute.budget_bytes = memory_of(config.fields["memory"], plan, request, "checkpoint");
    }
    recompute.kept_microbatches = count_of(config, "kept_microbatches", 0);
    if (recompute.kept_microbatches > 0 && !plan.pipeline.cuts()) {
      fail(
          "checkpoint",
          "kept_microbatches are of those in flight on a stage: use pipeline_parallel over an axis "
          "pipe of several ranks beside it, but the plan has none");
    }
    plan.decisions.push_back({"checkpoint", sentence_of(recompute, config)});
    plan.recompute = std::move(recompute);
  }

 private:
  using Regions = std::vector<std::vector<std::string>>;

  static Regions regions_of(const Config& config, const graph::Graph& graph) {
    auto patterns = texts(config.items, "checkpoint", "scopes");
    if (config.fields.contains("wrap_class")) {
      for (auto& scope : texts(config.fields["wrap_class"], "checkpoint", "wrap_class")) {
        patterns.push_back(std::move(scope));
      }
    }
    const auto& fields = config.fields;
    const bool chosen =
        fields.contains("every") || fields.contains("group") || fields.contains("most");
    if (fields.contains("kept")) {
      if (!patterns.empty() || chosen) {
        fail("checkpoint", "kept says what runs again, without scopes, most, every and group");
      }
      const auto kept = texts(fields["kept"], "checkpoint", "kept");
      return regions_between(modules_around(graph, kept), kept);
    }
    std::vector<std::string> scopes;
    if (patterns == std::vector<std::string>{"auto"}) {
      patterns = repeated_rows(graph);
      if (patterns.empty()) {
        auto regions = regions_of_root(graph);
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
    return grouped(scopes, config);
  }

  static Regions grouped(std::vector<std::string> scopes, const Config& config) {
    if (config.fields.contains("most")) {
      const auto most = static_cast<size_t>(count_of(config, "most"));
      scopes.resize(std::min(scopes.size(), most));
    }
    const auto every = static_cast<size_t>(count_of(config, "every"));
    const auto group = static_cast<size_t>(count_of(config, "group"));
    Regions regions;
    for (size_t i = 0; i < scopes.size(); i += every) {
      if (regions.empty() || regions.back().size() == group) regions.emplace_back();
      regions.back().push_back(scopes[i]);
    }
    return regions;
  }

  // Returns the first scopes of the regions of which all runs again, whatever others keep.
  static std::vector<std::string> full_of(const plan::Recompute& recompute, const Config& config,
                                          const graph::Graph& graph) {
    const auto& fields = config.fields;
    const bool named = fields.contains("full"), counted = fields.contains("full_every");
    if (!named && !counted) return {};
    const auto* field = named ? "full" : "full_every";
    if (named && counted) {
      fail("checkpoint", "either full or full_every says where all runs again, but got both");
    }
    if (recompute.keep.empty()) {
      fail("checkpoint",
           "{} says where all runs again although others keep ops: name these by keep, or leave {} "
           "out, since without keep all runs again everywhere",
           field, field);
    }
    std::vector<std::string> full, scopes;
    if (counted) {
      const auto every = static_cast<size_t>(count_of(config, field, 2));
      for (size_t r = 0; r < recompute.regions.size(); r += every) {
        full.push_back(recompute.regions[r].front());
      }
      return full;
    }
    for (const auto& region : recompute.regions) {
      scopes.insert(scopes.end(), region.begin(), region.end());
    }
    for (const auto& scope :
         matching_scopes(graph, texts(fields["full"], "checkpoint", field), "checkpoint")) {
      const auto region = std::ranges::find_if(recompute.regions, [&](const auto& own) {
        return std::ranges::find(own, scope) != own.end();
      });
      if (region == recompute.regions.end()) {
        fail("checkpoint", "full names scopes that run again ({} to {}), but got \"{}\"{}",
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

  static std::string sentence_of(const plan::Recompute& recompute, const Config& config) {
    std::vector<std::string> taken, full;
    for (const auto& region : recompute.regions) {
      taken.insert(taken.end(), region.begin(), region.end());
      const bool whole = recompute.keep_in.contains(region.front());
      if (whole) full.insert(full.end(), region.begin(), region.end());
    }
    const bool budget = recompute.budget_bytes > 0, one = taken.size() == 1;
    const auto named =
        fmt::format("{} scope{} ({})", taken.size(), one ? "" : "s", range_of(taken));
    auto sentence = fmt::format("{}{}{} {} again in the backward pass", budget ? "as few of " : "",
                                named, budget ? " as memory allows" : "", one ? "runs" : "run");
    if (!recompute.only.empty()) sentence += ", of them the ops " + join(recompute.only);
    if (!recompute.keep.empty()) sentence += ", but for the ops " + join(recompute.keep);
    if (!full.empty()) {
      sentence += fmt::format("; {} of them ({}) as a whole", full.size(), range_of(full));
    }
    if (config.fields.contains("kept")) {
      sentence += fmt::format("; what {} of them result in is kept", recompute.regions.size());
    }
    const auto group = count_of(config, "group");
    if (group > 1) sentence += fmt::format("; {} together keep one input", group);
    if (recompute.kept_microbatches > 0) {
      sentence += fmt::format("; of the microbatches in flight on a stage {} keep their results",
                              recompute.kept_microbatches);
    }
    return sentence;
  }
};

}  // namespace

std::shared_ptr<const Method> checkpoint() { return std::make_shared<Checkpoint>(); }

}  // namespace perigee::methods
