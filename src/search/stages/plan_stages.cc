#include "search/stages/plan_stages.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/file.h"
#include "base/text/bytes.h"
#include "methods/parallel/layer_cuts.h"
#include "methods/parallel/open_choices.h"
#include "search/stages/make_stage_table.h"
#include "search/stages/stage_variants.h"

namespace perigee::search {
namespace {

using nlohmann::json;

constexpr size_t kMostJudged = 6;
constexpr size_t kVaried = 3;  // sequences whose variants are simulated

struct Options {
  json layers = json();                    // a number or scopes; null: chosen
  std::vector<int64_t> stage_layers = {};  // of each given stage; empty: stages are chosen
  double tolerance = 0.5;
  int64_t microbatches = 1;
  json submeshes = "power_of_two";
  std::string views = "single_node_model_parallel";
  std::optional<std::vector<std::string>> choose = {};
  std::string schedule = {};
  json methods = json::array();
  std::string file = {};
  size_t most = kMostJudged;
  StageRules rules = {};
};

Options read_options(const json& given) {
  Options options;
  const std::vector<std::string> known = {"layers",    "tolerance", "microbatches", "submeshes",
                                          "views",     "choose",    "schedule",     "methods",
                                          "file",      "most",      "profile",      "imbalance",
                                          "estimated", "forbid",    "stage_layers"};
  for (const auto& [key, value] : given.items()) {
    try {
      if (key == "layers") {
        options.layers = value;
      } else if (key == "stage_layers") {
        for (const auto& each : value) options.stage_layers.push_back(each.get<int64_t>());
      } else if (key == "tolerance") {
        options.tolerance = value.get<double>();
      } else if (key == "microbatches") {
        options.microbatches = value.get<int64_t>();
      } else if (key == "submeshes") {
        options.submeshes = value;
      } else if (key == "views") {
        options.views = value.get<std::string>();
      } else if (key == "choose") {
        options.choose.emplace();  // an empty list may come as an object
        for (const auto& each : value) options.choose->push_back(each.get<std::string>());
      } else if (key == "schedule") {
        options.schedule = value.get<std::string>();
      } else if (key == "methods") {
        for (const auto& each : value) options.methods.push_back(each);
      } else if (key == "file") {
        options.file = value.get<std::string>();
      } else if (key == "most") {
        options.most = value.get<size_t>();
      } else if (key == "profile") {
        const auto profile = value.get<std::string>();
        if (profile != "composition" && profile != "individual") {
          fail("stages", "profile must be composition or individual, but got \"{}\"", profile);
        }
        options.rules.individual = profile == "individual";
      } else if (key == "imbalance") {
        options.rules.imbalance = value.get<double>();
      } else if (key == "forbid") {
        for (const auto& each : value) options.rules.forbid.push_back(each.get<std::string>());
      } else if (key == "estimated") {
        value.get<bool>();  // StagesRequest::seconds reads it
      } else {
        fail("stages", "options are {}, but got \"{}\"{}", fmt::join(known, ", "), key,
             did_you_mean(key, known));
      }
    } catch (const json::exception&) {
      fail("stages", "{} has another type: {}", key, value.dump());
    }
  }
  if (options.microbatches < 1 || options.most < 1 || options.tolerance < 0) {
    fail("stages",
         "microbatches and most must be at least 1 and tolerance at least 0, but got {}, {} and {}",
         options.microbatches, options.most, options.tolerance);
  }
  if (options.rules.imbalance.value_or(0) < 0) {
    fail("stages", "imbalance must be at least 0, but got {}", *options.rules.imbalance);
  }
  if (!options.stage_layers.empty() && given.contains("submeshes")) {
    fail("stages",
         "stage_layers gives each stage the same number of devices, and submeshes lets it be "
         "chosen: leave one of them out");
  }
  return options;
}

// Returns the number of modules in the longest row of numbered ones ("blocks.0", "blocks.1", ...).
int64_t longest_row(const graph::Graph& graph) {
  std::map<std::string, int64_t> rows;
  for (const auto& scope : graph.scopes) {
    const auto dot = scope.path.rfind('.');
    if (dot == std::string::npos || dot + 1 == scope.path.size()) continue;
    const auto number = scope.path.substr(dot + 1);
    if (number.find_first_not_of("0123456789") == std::string::npos) {
      ++rows[scope.path.substr(0, dot)];
    }
  }
  int64_t longest = 1;
  for (const auto& [row, count] : rows) longest = std::max(longest, count);
  return longest;
}

std::vector<std::string> layers_of(const graph::Graph& graph, const Options& options,
                                   const StagesRequest& request) {
  if (options.layers.is_array() || (options.layers.is_object() && options.layers.empty())) {
    std::vector<std::string> scopes;
    for (const auto& scope : options.layers) scopes.push_back(scope.get<std::string>());
    return scopes;
  }
  if (options.layers.is_number_integer()) {
    return methods::cluster_layers(
        graph, {.layers = options.layers.get<int64_t>(), .tolerance = options.tolerance});
  }
  // Twice as many layers as devices leave stages of unequal sizes possible.
  auto count = std::min(longest_row(graph), 2 * request.hosts * request.devices_per_host);
  constexpr int64_t kMostLayers = 16;
  count = std::min(count, kMostLayers);
  // Modules that cannot be cut may leave no cut of so many layers within the tolerance.
  for (;; --count) {
    try {
      return methods::cluster_layers(graph, {.layers = count, .tolerance = options.tolerance});
    } catch (const Error&) {
      if (count <= 1) throw;
    }
  }
}

// Returns the first scopes of the given stages after the first.
std::vector<std::string> starts_of(const std::vector<std::string>& layers,
                                   const std::vector<int64_t>& stage_layers) {
  const auto count = std::ssize(layers) + 1;
  int64_t sum = 0;
  for (const int64_t own : stage_layers) sum = own < 1 ? count + 1 : sum + own;
  if (sum != count) {
    fail("stages", "stage_layers must list numbers above 0 with the sum {} of layers, but got [{}]",
         count, fmt::join(stage_layers, ", "));
  }
  std::vector<std::string> starts;
  for (int64_t stage = 0, next = 0; stage + 1 < std::ssize(stage_layers); ++stage) {
    next += stage_layers[stage];
    starts.push_back(layers[next - 1]);
  }
  return starts;
}

// Returns the submesh of each of so many stages that share the devices equally.
json equal_submesh(const StagesRequest& request, int64_t stages) {
  const int64_t devices = request.hosts * request.devices_per_host;
  const int64_t own = devices / stages;
  const auto tiles = [&] {
    const auto on_host = request.devices_per_host;
    return own < on_host ? on_host % own == 0 : own % on_host == 0;
  };
  if (devices % stages != 0 || !tiles()) {
    fail("stages",
         "{} stages must have equal parts of a host or whole hosts, but {} hosts have {} devices "
         "each",
         stages, request.hosts, request.devices_per_host);
  }
  const int64_t hosts = std::max<int64_t>(1, own / request.devices_per_host);
  return json::array({hosts, own / hosts});
}

SubmeshSpace space_of(const Options& options, const StagesRequest& request, int64_t samples) {
  SubmeshSpace space{.hosts = request.hosts,
                     .devices = request.devices_per_host,
                     .manual = {},
                     .logical = options.views,
                     .samples = samples};
  if (options.submeshes.is_string()) {
    space.physical = options.submeshes.get<std::string>();
    if (space.physical == "manual")
      fail("stages", "manual submeshes are a list of hosts and devices");
    return space;
  }
  space.physical = "manual";
  for (const auto& shape : options.submeshes) {
    if (!shape.is_array() || shape.size() != 2) {
      fail("stages", "a submesh is {{hosts, devices}}, but got {}", shape.dump());
    }
    space.manual.push_back({shape[0].get<int64_t>(), shape[1].get<int64_t>()});
  }
  return space;
}

// Sets the rules that follow from the methods of every plan, and the choices of auto_sharding that
// they leave open where none are given. They follow from the plan that these methods make on two
// stages of the view that splits the batch most.
void add_methods(StageTableOptions& wanted, const Options& options, methods::PlanRequest request,
                 const StagesRequest& asked) {
  plan::Plan plan;
  if (!options.methods.empty()) {
    const auto& view = *std::ranges::max_element(wanted.views, {}, &SubmeshView::data);
    const int64_t stages = wanted.layers.empty() ? 1 : 2;
    request.world = view.ranks() * stages;
    request.global_batch = asked.global_batch;
    auto strategy = json::array(
        {json::array({"gradient_accumulation", {{"microbatches", options.microbatches}}})});
    auto axes = json::array(
        {json::array({"tensor", view.tensor}), json::array({"data", view.data})});
    if (stages > 1) {
      axes.push_back(json::array({"pipe", stages}));
      strategy.push_back(json::array({"pipeline_parallel", {{"starts", {wanted.layers.front()}}}}));
    }
    strategy.push_back(json::array({"parallel_mode", std::move(axes)}));
    for (const auto& method : options.methods) strategy.push_back(method);
    plan = methods::make_plan(methods::from_json(strategy, "solver.stage_table", asked.defined),
                              request);
  }
  for (const auto& unit : plan.units) {
    wanted.rules.storage = std::max<int64_t>(wanted.rules.storage, unit.level);
  }
  wanted.rules.recomputed = !plan.recompute.regions.empty();
  wanted.precision = plan.precision;
  if (plan.precision.dtype) wanted.rules.dtype = graph::name_of(*plan.precision.dtype);
  if (options.choose) {
    wanted.choose = *options.choose;
    return;
  }
  for (const char* choice : {"storage", "recompute"}) {
    if (!methods::is_chosen(plan, choice)) wanted.choose.push_back(choice);
  }
}

// Throws Error if the table in the file was made for another model, cluster or space.
void check_same(const StageTable& table, const methods::PlanRequest& request,
                const StageTableOptions& options, const std::string& file) {
  std::vector<std::string> differ;
  const auto compare = [&](const char* what, bool same) {
    if (!same) differ.push_back(what);
  };
  compare("the model", table.graph_hash == graph::structural_hash(*request.graph));
  compare("the cluster", table.cluster == options.cluster && table.devices == request.world);
  compare("the number of microbatches", table.microbatches == options.microbatches);
  compare("the layers", table.layers == options.layers);
  compare("the submeshes", table.views == options.views);
  compare("the choices", table.choose == options.choose);
  compare("measured times", table.measured == options.measured);
  compare(
      "the profile, imbalance, forbidden collectives, or methods of storage, "
      "recomputation and precision",
      table.rules == options.rules);
  if (differ.empty()) return;
  fail("stages",
       "{} was made for another plan ({}): name another file, or remove this one to make it anew",
       file, fmt::join(differ, ", "));
}

// Returns the table of the file if there is one, else a new one.
StageTable table_of(const methods::PlanRequest& request, const StageTableOptions& options,
                    const std::string& file) {
  if (file.empty() || !std::filesystem::exists(file)) return make_stage_table(request, options);
  auto table = parse_table(read_file(file, "stages"), file);
  check_same(table, request, options, file);
  return table;
}

// Returns the best sequence of the table and those of a single view, by predicted seconds.
std::vector<StageSequence> sequences_of(const StageTable& table, size_t most) {
  std::vector<StageSequence> sequences;
  const auto add = [&](std::optional<StageSequence> sequence) {
    if (!sequence) return;
    const bool known = std::ranges::any_of(
        sequences, [&](const auto& other) { return other.rows == sequence->rows; });
    if (!known) sequences.push_back(std::move(*sequence));
  };
  add(best_sequence(table));
  for (int view = 0; view < std::ssize(table.views); ++view) add(best_sequence(table, view));
  std::ranges::stable_sort(sequences, {}, &StageSequence::seconds);
  if (sequences.size() > most) sequences.resize(most);
  return sequences;
}

// Simulates strategies of stages, the fastest of which is chosen.
class Judge {
 public:
  struct One {
    StageSequence sequence;
    json strategy;
    double seconds = 0;
    std::string variant = "";  // StageVariant::methods
  };

  // Keeps table and request by reference. `methods`: that every plan has.
  Judge(const StageTable& table, const StagesRequest& request, json methods)
      : table_(table), request_(request), methods_(std::move(methods)) {}

  // `variant`: StageVariant::methods, "" for the solver's own decisions.
  void look(const StageSequence& sequence, json strategy, const std::string& variant) {
    // auto_sharding is applied last, whatever the order.
    auto whole = strategy;
    for (const auto& method : methods_) whole.push_back(method);
    json row = {{"stages", sequence.rows}, {"predicted", sequence.seconds}};
    if (!variant.empty()) row["with"] = variant;
    try {
      const auto cost = request_.cost(whole);
      const double available = table_.rows[sequence.rows.front()].available;
      if (cost.peak_bytes > available) {
        fail("stages", "a rank needs {}, but has {}", bytes_text(cost.peak_bytes),
             bytes_text(available));
      }
      row["seconds"] = cost.seconds;
      if (variant.empty()) simulated_.push_back({sequence, std::move(strategy), cost.seconds});
      if (!best_ || cost.seconds < best_->seconds) {
        best_ = {sequence, std::move(whole), cost.seconds, variant};
      }
    } catch (const Error& error) {
      row["refused"] = refused_ = error.what();
    }
    rows_.push_back(std::move(row));
  }

  // Looks at the variants (variants_of) of the sequences that are simulated to be the fastest.
  void look_at_variants(bool own_cuts) {
    std::ranges::stable_sort(simulated_, {}, &One::seconds);
    if (simulated_.size() > kVaried) simulated_.resize(kVaried);
    for (const auto& one : simulated_) {
      for (auto& variant : variants_of(one.strategy, own_cuts)) {
        look(one.sequence, std::move(variant.strategy), variant.methods);
      }
    }
  }

  const std::optional<One>& best() const { return best_; }
  const std::string& refused() const { return refused_; }  // the last reason
  const json& rows() const { return rows_; }

 private:
  const StageTable& table_;
  const StagesRequest& request_;
  const json methods_;
  std::vector<One> simulated_;  // without `methods_`
  std::optional<One> best_;     // with them
  std::string refused_;
  json rows_ = json::array();
};

}  // namespace

json plan_stages(const json& given, const StagesRequest& request) {
  auto options = read_options(given);
  const bool given_stages = !options.stage_layers.empty();
  if (given_stages) {
    options.submeshes = json::array({equal_submesh(request, std::ssize(options.stage_layers))});
  }
  if (request.global_batch % options.microbatches != 0) {
    fail("stages", "the {} samples of a step must divide over {} microbatches",
         request.global_batch, options.microbatches);
  }
  const auto samples = request.global_batch / options.microbatches;
  const auto asked = request.request(samples);
  auto layers = layers_of(*asked.graph, options, request);
  if (given_stages) layers = starts_of(layers, options.stage_layers);
  StageTableOptions wanted{.cluster = request.cluster,
                           .microbatches = options.microbatches,
                           .layers = std::move(layers),
                           .choose = {},
                           .views = submesh_choices(space_of(options, request, samples)),
                           .measured = request.measured,
                           .one_layer = given_stages,
                           .rules = options.rules};
  add_methods(wanted, options, asked, request);
  auto table = table_of(asked, wanted, options.file);
  const auto sequences = sequences_of(table, options.most);
  if (sequences.empty()) {
    throw Error(
        Status::infeasible, "stages",
        fmt::format("no sequence of stages has all {} layers on exactly {} devices in their "
                    "memory: ask for more layers, or allow more submeshes",
                    table.layer_count(), table.devices));
  }
  Judge judge(table, request, options.methods);
  for (const auto& sequence : sequences) {
    judge.look(sequence, strategy_of(table, sequence, options.schedule, request.devices_per_host),
               "");
  }
  if (!given_stages) judge.look_at_variants(options.layers.is_null());
  if (!judge.best()) {
    throw Error(Status::infeasible, "stages",
                fmt::format("none of the {} best sequences of stages can be compiled; the last: {}",
                            sequences.size(), judge.refused()));
  }
  table.chosen = judge.best()->sequence.rows;
  json result = {{"strategy", judge.best()->strategy}, {"seconds", judge.best()->seconds}};
  if (!options.file.empty() && !std::filesystem::exists(options.file)) {
    write_durably(options.file, print(table));
  }
  result.update(json::parse(print(table)));
  result["stages"] = table.chosen;
  result["text"] = to_text(table);
  auto& shapes = result["submesh_choices"] = json::array();
  for (const auto& view : table.views) {
    const json shape = {view.hosts, view.devices};
    if (std::ranges::find(shapes, shape) == shapes.end()) shapes.push_back(shape);
  }
  if (!judge.best()->variant.empty()) result["with"] = judge.best()->variant;
  result["judged"] = judge.rows();
  result["lower_bound"] = sequences.front().lower_bound;
  return result;
}

}  // namespace perigee::search
