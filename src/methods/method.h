// Optimisation methods: each edits the plan, checks itself and says what it did. One file a method;
// methods.cc lists them.
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
#include "plan/plan.h"

namespace perigee::methods {

using Json = nlohmann::json;

// One key of a method's config. Types: boolean, integer, number, string, list, table, any.
struct Field {
  std::string name;
  std::string type;
  std::string doc;
  bool required = false;
};

// A method's config as the user gave it: `fields` (an object) and, for methods that take a list,
// `items` (an array).
struct Config {
  Json items = Json::array();
  Json fields = Json::object();
  std::string place = {};  // where the user wrote it, "FILE:LINE: "; "": nobody knows
  // The same of words in it, fields and values, which errors may name.
  std::map<std::string, std::string> places = {};
};

// What devices do in a second, at the share of their peaks that large ops reach.
struct Rates {
  double flops = 0;                     // of matrix products
  double bytes = 0;                     // to and from their memory
  double host = 0;                      // to and from the host's, bytes
  std::map<std::string, double> links;  // by axis: bytes that each of its ranks sends
};

// What a plan is made for.
struct Request {
  const graph::Graph* graph = nullptr;  // captured at some global microbatch
  int64_t global_batch = 1;             // samples per optimizer step
  int64_t micro_batch = 0;   // samples per microbatch on one data rank; 0: the plan decides
  bool round = false;        // a step may have fewer samples than global_batch: fitted_batch
  int64_t world = 1;         // number of ranks
  bool world_given = false;  // by a launcher, --nproc or the job; otherwise the plan's mesh decides
  bool eight_bits = false;   // the devices multiply eight-bit floats themselves
  std::vector<std::string> frozen;  // patterns of parameters that are not trained, beside those
                                    // that the graph says
  // Returns the bytes of memory that each of so many ranks has; empty: nobody knows. Throws Error.
  std::function<double(int64_t ranks)> device_bytes = {};
  int64_t samples = 0;     // that the graph is captured at; 0: nobody knows
  double state_share = 2;  // bytes of optimizer state for a byte of a parameter
  // Returns the rates of a plan's devices; empty: nobody knows. Throws Error.
  std::function<Rates(const graph::Graph& graph, const plan::Plan& plan)> rates = {};
  // Returns the graph with the types that its values have under the plan's precision; empty: as
  // they were captured. Throws Error.
  std::function<graph::Graph(const graph::Graph& graph, const plan::Plan& plan)> as_computed = {};
  // Returns the bytes that the rank of a plan that needs the most takes, by its compiled programs;
  // empty: nobody knows. Throws Error.
  std::function<double(const graph::Graph& graph, const plan::Plan& plan)> peak_bytes = {};
};

// What a plan takes, by its compiled programs and the simulator; a cost is a difference of two.
struct Taken {
  double seconds = 0;     // of a step
  double peak_bytes = 0;  // of the rank that takes the most
};

class Method {
 public:
  virtual ~Method() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view doc() const = 0;
  virtual const std::vector<Field>& fields() const = 0;
  // What the list part of the config holds, "" where the method takes none.
  virtual std::string_view items() const { return ""; }
  // Edits the plan and appends its decisions. Throws Error where the config or the graph does not
  // allow it.
  virtual void apply(plan::Plan& plan, const Config& config, const Request& request) const = 0;
  // Returns what the method says that it costs where the difference between `with`, what the plan
  // takes, and `without`, what one without the method does (nothing where there is none), is not
  // the answer; nothing: it is.
  virtual std::optional<Taken> cost(const plan::Plan& /*plan*/, const Config& /*config*/,
                                    const Request& /*request*/, const Taken& /*with*/,
                                    const std::optional<Taken>& /*without*/) const {
    return std::nullopt;
  }
};

// Returns every built-in method, in the order of the reference page.
const std::vector<std::shared_ptr<const Method>>& all();

// Throws Error naming the nearest field for an unknown one, a wrong type, a missing required field,
// or a list part that the method does not take. Returns the config split into its parts.
Config check_config(const Method& method, const Json& config);

// A method as a strategy uses it.
struct Use {
  std::shared_ptr<const Method> method;
  Config config;
};

// What a script returns: methods in order, or a whole plan.
struct Strategy {
  std::string name;                // file or shipped name, for messages
  std::optional<std::string> job;  // the job it names, as written
  std::vector<std::string> set;    // keys of the job that it sets: "optimizer.lr=0.001" (Job::set)
  std::vector<std::string> warnings;     // for the user, once a run
  std::optional<plan::Decision> origin;  // the dialect it was written in, and what was said there
  std::vector<Use> methods;
  std::optional<plan::Plan> plan;
  std::map<std::string, std::string> rules;  // sharding rules by op, for Plan::rules
};

// Returns "KEY=VALUE" as Job::set takes it.
std::string assignment(const std::string& key, const Json& value);

// Returns a strategy from plain data: a list of names and {name, config} pairs, or {job, set,
// warnings, origin, places, methods, plan}: `set` is a table of the job's keys, `origin` {dialect,
// options}, `places` says by method, and by METHOD.WORD, where the user wrote it (Config::place and
// places), and `plan` is not read. Names are looked up among `more` (methods the user defined) and
// the built-in ones. Throws Error for an unknown method, naming the nearest. `items`: the place of
// each item of the list, where it is known.
Strategy from_json(const Json& value, std::string_view name,
                   std::span<const std::shared_ptr<const Method>> more = {},
                   std::span<const std::string> items = {});

// Makes the plan: mesh, then every method in order, then what the request fixes (microbatches). The
// plan's hash is that of the request's graph. Throws Error where batch, mesh and world do not fit
// together; what a method throws, or brings about, stands at its place.
plan::Plan make_plan(const Strategy& strategy, const Request& request);

// Fixes the plan's microbatches. Throws Error where a step's samples do not divide over them.
void fit_batch(plan::Plan& plan, const Request& request);

// Returns the samples of a step: `global`, or, where it does not divide over microbatches (of
// `micro` samples where that is above 0) and data ranks, the most that do, at least one microbatch.
int64_t fitted_batch(const plan::Plan& plan, int64_t global, int64_t micro);

// Returns the samples of one global microbatch that the plan's graph must be captured at:
// request.global_batch (or what is fitted) / plan.microbatches, of one copy where ranks train
// several. When the request's graph was captured at another size, capture again and plan again.
int64_t graph_batch(const plan::Plan& plan, const Request& request);

}  // namespace perigee::methods
