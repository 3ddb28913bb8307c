// Optimisation methods: each edits the plan, checks its config and records its decisions. One
// file for each method; methods.cc lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "methods/field.h"
#include "plan/plan.h"

namespace perigee::methods {

// A method's config as the user gave it: `fields` (an object) and, for methods that take a list,
// `items` (an array).
struct Config {
  Json items = Json::array();
  Json fields = Json::object();
  std::string place = {};  // where the user wrote the method, "FILE:LINE: "; "": unknown
  // Where the user wrote fields and values that errors may name.
  std::map<std::string, std::string> places = {};
  bool implied = false;  // no strategy wrote the method: decisions say only what it changes

  bool has(std::string_view field) const { return fields.contains(field); }
};

// Rates of a plan's devices, at the share of their peaks that large ops reach.
struct DeviceRates {
  double flops = 0;                     // of matrix products, a second
  double bytes = 0;                     // to and from device memory, a second
  double host = 0;                      // bytes to and from the host's memory, a second
  std::map<std::string, double> links;  // by axis: bytes that each of its ranks sends in a second
};

// The caller's settings of a plan, and functions that methods may call while it is made.
struct PlanRequest {
  const graph::Graph* graph = nullptr;  // captured at some global microbatch
  int64_t global_batch = 1;             // samples per optimizer step
  int64_t micro_batch = 0;   // samples per microbatch on one data rank; 0: the plan decides
  bool round = false;        // a step may have fewer samples than global_batch: fitted_batch
  int64_t world = 1;         // number of ranks
  bool world_given = false;  // by a launcher, --nproc or the job; otherwise the plan's mesh decides
  bool eight_bits = false;   // the devices have eight-bit matrix products
  // Number of consecutive ranks that compute on the CPU of one host and can map each other's memory;
  // 1: none can, or unknown.
  int64_t sharing_ranks = 1;
  // Patterns of parameters that are not trained, besides those that the graph marks.
  std::vector<std::string> frozen;
  // Returns the bytes of memory of each of so many ranks; empty: unknown. Throws Error.
  std::function<double(int64_t ranks)> device_bytes = {};
  int64_t samples = 0;     // that the graph is captured at; 0: unknown
  double state_share = 2;  // bytes of optimizer state for a byte of a parameter
  // Returns the rates of a plan's devices; empty: unknown. Throws Error.
  std::function<DeviceRates(const graph::Graph& graph, const plan::Plan& plan)> rates = {};
  // Returns the graph with the types that its values have under the plan's precision; empty: the
  // types are those of the capture. Throws Error.
  std::function<graph::Graph(const graph::Graph& graph, const plan::Plan& plan)> as_computed = {};
  // Returns the peak bytes of the plan's rank with the highest peak, by its compiled programs;
  // empty: unknown. Throws Error.
  std::function<double(const graph::Graph& graph, const plan::Plan& plan)> peak_bytes = {};
  // Names of the strategy's methods and of those that they use, which a method that uses another
  // one extends; nullptr: unknown.
  std::vector<std::string>* applied = nullptr;
  // make_plan sets it for methods that see submeshes of unequal sizes as the rectangle of their
  // largest sizes: the mesh with the submeshes.
  std::optional<mesh::Mesh> submeshes = {};
};

// Returns the mesh whose size and groups are those of the run's ranks: the request's submeshes, or
// the plan's mesh where it has none.
const mesh::Mesh& mesh_of_ranks(const plan::Plan& plan, const PlanRequest& request);

// Predicted cost of a plan, by its compiled programs and the simulator. The cost of a method is a
// difference of two.
struct PlanCost {
  double seconds = 0;     // of a step
  double peak_bytes = 0;  // of the rank with the highest peak
};

class Method {
 public:
  virtual ~Method() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view doc() const = 0;
  virtual const std::vector<ConfigField>& fields() const = 0;
  // Returns the meaning of the config's list part, "" where the method takes none.
  virtual std::string_view items() const { return ""; }
  // Checks the list part as far as that needs no graph. Throws Error.
  virtual void check_items(const std::vector<Json>& /*items*/) const {}
  // Edits the plan and appends its decisions. Throws Error where the config or the graph does not
  // allow it.
  virtual void apply(plan::Plan& plan, const Config& config, const PlanRequest& request) const = 0;
  // Returns the method's own statement of its cost; nothing: its cost is the difference between
  // `with`, the plan's cost, and `without`, that of the plan without the method (nothing where
  // there is no such plan).
  virtual std::optional<PlanCost> cost(const plan::Plan& /*plan*/, const Config& /*config*/,
                                       const PlanRequest& /*request*/, const PlanCost& /*with*/,
                                       const std::optional<PlanCost>& /*without*/) const {
    return std::nullopt;
  }
};

// Returns every built-in method, in the order of the reference page.
const std::vector<std::shared_ptr<const Method>>& all();

// Returns the config split into its list part and its fields, unchecked.
Config split_config(const Json& config);

// Returns the config split into its parts. Throws Error for an unknown field (with the nearest
// name), a value that its field does not allow (check_value), a missing required field, or a list
// part that the method does not take.
Config check_config(const Method& method, const Json& config);

// A method in a strategy.
struct MethodUse {
  std::shared_ptr<const Method> method;
  Config config;
};

// Result of a script: methods in order, or a whole plan.
struct StrategySpec {
  std::string name;                // file or shipped name, for messages
  std::optional<std::string> job;  // the job it names, as written
  std::vector<std::string> set;    // keys of the job that it sets: "optimizer.lr=0.001" (Job::set)
  std::vector<std::string> warnings;     // for the user, once a run
  std::optional<plan::Decision> origin;  // the dialect it was written in, and its options
  std::vector<MethodUse> methods;
  std::optional<plan::Plan> plan;
  std::map<std::string, std::string> rules;  // sharding rules by op, for Plan::rules
};

// Returns "KEY=VALUE" as Job::set takes it.
std::string assignment(const std::string& key, const Json& value);

// Returns a strategy from plain data: a list of names and {name, config} pairs, or {job, set,
// warnings, origin, places, methods, plan}: `set` is a table of the job's keys, `origin` {dialect,
// options}, `places` the user's lines by method and by METHOD.WORD (Config::place and places), and
// `plan` is not read. Names are looked up among `more` (methods of scripts) and the built-in ones.
// `items`: the place of each item of the list, where it is known. Throws Error for an unknown
// method, naming the nearest, and as check_config does.
StrategySpec from_json(const Json& value, std::string_view name,
                       std::span<const std::shared_ptr<const Method>> more = {},
                       std::span<const std::string> items = {});

// Returns the plan: mesh, then every method in order, then the microbatches. The plan's hash is
// that of the request's graph, with the plan's adapters (graph::adapt; the request's graph may have
// them). Throws Error where batch, mesh and world do not fit together, also where the strategy is a
// plan; an error of a method, or one that it causes, has the method's place.
plan::Plan make_plan(const StrategySpec& strategy, const PlanRequest& request);

// Returns the axes over which nothing is sharded, so that their ranks repeat the same work.
std::vector<mesh::Axis> idle_axes(const plan::Plan& plan);
// "no method shards over axis tensor: its 2 ranks repeat the same work"
std::string idle_sentence(const mesh::Axis& axis);

// Fixes the plan's microbatches. Throws Error where a step's samples do not divide over them, or
// where the plan's schedule does not fit them.
void fit_batch(plan::Plan& plan, const PlanRequest& request);

// Returns how many microbatches of `micro` samples on each data rank a step of `global` samples has.
int64_t microbatches_of(const plan::Plan& plan, int64_t global, int64_t micro);

// Returns the samples of a step: `global`, or, where it does not divide over microbatches (of
// `micro` samples where that is above 0) and data ranks, the most that do, at least one microbatch.
int64_t fitted_batch(const plan::Plan& plan, int64_t global, int64_t micro);

// Returns the samples of one global microbatch, at which the plan's graph must be captured: the
// step's samples / plan.microbatches, of one copy where ranks train several copies. Where the
// request's graph was captured at another size, the caller captures at this size and repeats
// the plan.
int64_t graph_batch(const plan::Plan& plan, const PlanRequest& request);

}  // namespace perigee::methods
