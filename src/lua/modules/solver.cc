// perigee.solver: the exact solvers on problems of one's own, and the search for a job's plan.
#include "base/fail.h"
#include "lua/api.h"
#include "lua/convert.h"
#include "lua/planner.h"
#include "lua/state.h"
#include "solve/solve.h"

namespace perigee::lua {
namespace {

using nlohmann::json;

// Returns nil and why for an expected failure.
int push_failure(lua_State* L, const std::string& why) {
  lua_pushnil(L);
  lua_pushlstring(L, why.data(), why.size());
  return 2;
}

// Runs f() -> json; a proof that there is no solution becomes nil and why.
template <class F>
int or_why(lua_State* L, F f) {
  State::HostTime host(State::of(L));
  State::of(L).infeasible.clear();
  try {
    push_json(L, f());
    return 1;
  } catch (const Error& error) {
    if (error.status() != Status::infeasible) throw;
    State::of(L).infeasible = error.what();
    return push_failure(L, error.what());
  }
}

// Lua's lists hold no nil: `false` stands for it in the times of edges.
void allow_false(json& problem) {
  const auto edges = problem.find("edges");
  if (edges == problem.end() || !edges->is_array()) return;
  for (auto& edge : *edges) {
    if (!edge.is_object() || !edge.contains("time")) continue;
    for (auto& row : edge["time"]) {
      if (!row.is_array()) continue;
      for (auto& time : row) {
        if (time == false) time = nullptr;
      }
    }
  }
}

int solve_kind(lua_State* L, const char* kind) {
  auto problem = to_json(L, 1, "problem");
  if (!problem.is_object()) fail("solve", "a problem is a table with fields, but got a list");
  allow_false(problem);
  problem["format"] = "perigee.problem/1";
  problem["kind"] = kind;
  solve::Options options;
  if (lua_istable(L, 2)) {
    const auto given = to_json(L, 2, "options");
    const std::vector<std::string> known = {"solver", "time_limit"};
    for (const auto& [key, value] : given.items()) {
      if (key == "solver" && value.is_string()) {
        options.solver = value;
      } else if (key == "time_limit" && value.is_number()) {
        options.time_limit = value;
      } else {
        fail("solve", "options are solver (a name) and time_limit (seconds), but got {} = {}{}",
             key, value.dump(), did_you_mean(key, known));
      }
    }
  }
  State::HostTime host(State::of(L));
  const auto result = solve::solve(solve::parse_problem(problem.dump()), options);
  auto answer = json::parse(solve::to_json(result));
  answer.erase("seconds");  // scripts see nothing that differs from run to run
  if (answer.contains("choice")) {
    for (auto& index : answer["choice"]) index = index.get<int64_t>() + 1;
  }
  push_json(L, answer);
  return 1;
}

int assign(lua_State* L, const Function&) { return solve_kind(L, "assign"); }
int stages(lua_State* L, const Function&) { return solve_kind(L, "stages"); }

Planner& planner_of(lua_State* L, const char* function) {
  auto* planner = State::of(L).planner;
  if (!planner) {
    fail(
        "solve",
        "{} needs the job's model: call it in a strategy function (return function(job, graph) ... "
        "end)",
        function);
  }
  return *planner;
}

json pins_of(lua_State* L, int index) {
  return lua_isnoneornil(L, index) ? json::object() : to_json(L, index, "pins");
}

// Returns two values: the strategy, and the other fields of the planner's answer.
int plan(lua_State* L, const Function&) {
  const int count = or_why(
      L, [&] { return planner_of(L, "solver.plan").plan(pins_of(L, 1), State::of(L).methods); });
  if (count != 1) return count;
  lua_getfield(L, -1, "strategy");
  lua_insert(L, -2);
  lua_pushnil(L);
  lua_setfield(L, -2, "strategy");
  return 2;
}

int candidates(lua_State* L, const Function&) {
  const auto most = lua_isnoneornil(L, 2) ? 10 : static_cast<int64_t>(lua_tointeger(L, 2));
  if (most < 1) fail("solve", "candidates must be asked for at least 1, but got {}", most);
  return or_why(L, [&] {
    return planner_of(L, "solver.candidates").candidates(pins_of(L, 1), most, State::of(L).methods);
  });
}

int search(lua_State* L, const Function&) {
  auto given = to_json(L, 2, "options");
  return or_why(L, [&] {
    auto found = planner_of(L, "solver.search").search(pins_of(L, 1), given, State::of(L).methods);
    for (auto& trial : found["trials"]) {
      for (auto& index : trial["options"]) index = index.get<int64_t>() + 1;
    }
    return found;
  });
}

int stage_table(lua_State* L, const Function&) {
  auto given = to_json(L, 1, "options");
  return or_why(L, [&] {
    auto found = planner_of(L, "solver.stage_table").stage_table(given, State::of(L).methods);
    found.erase("chosen");  // `stages`, which counts from 1
    for (auto& row : found["stages"]) row = row.get<int64_t>() + 1;
    for (auto& judged : found["judged"]) {
      for (auto& row : judged["stages"]) row = row.get<int64_t>() + 1;
    }
    return found;
  });
}

}  // namespace

Module solver_module() {
  const Parameter pins{
      "pins", "table?",
      "the fixed choices; the others are searched: tensor, expert, context, data, pipe "
      "(sizes of axes), submeshes (false: all stages are homogeneous; `all`, `power_of_two` or "
      "`small_power_of_two`: the numbers of ranks that a stage may have; or a list with the axes "
      "of each stage, as in parallel_mode), starts (the blocks at which the parts of a pipeline "
      "after the first begin; where stages have several, also the first block and the module "
      "after the last), balance (the least arithmetic of a stage's forward pass as a share of the "
      "largest stage's, 0 to 1), attention (of context ranks: `all_gather`, `ring` or "
      "`all_to_all`), micro (samples of a microbatch), schedule, chunks, sequence, "
      "offload (booleans; offload: the optimizer's state is in host memory), checkpoint (a "
      "boolean, or `full`: all ops of a block are recomputed, or `selective`: all but its products "
      "with weights and attention), every (one of this number of blocks is recomputed, the "
      "others not, or in part with `selective`), zero (0 to 3), "
      "memory (bytes of a rank, where its device has more), reserve (the "
      "factor of its two largest buffers that stays free), optimizer_resident and "
      "optimizer_transient (bytes that the optimizer keeps, and allocates during a "
      "step, for each byte of weights; they replace its own numbers), smallest "
      "(weights of fewer bytes are not split over tensor), solver (`labels` or `ilp`: it chooses "
      "which blocks of a stage are recomputed, and where stages begin), time_limit (seconds of "
      "the whole search, which then returns the best plan so far), estimated (true: measured "
      "times are ignored), threads (that search; default one for each core), "
      "host_devices (how many of each host of a described cluster a plan uses: with 2 of hosts of "
      "8, ranks 0 and 1 are on the first host; default all), "
      "forbid (parallel_mode's), precision (a list of candidates of `none`, `amp_native` "
      "and `half`, in bf16; default none), methods (a list that every plan has; the fields of "
      "tensor_parallel, expert_parallel, context_parallel and pipeline_parallel apply where their "
      "axis has several ranks: `column` and `row` pin weights, `starts` pins cuts, which the "
      "simulation of a plan times)"};
  const Parameter options{"options", "table?",
                          "solver (`auto`, `labels` or `ilp`) and time_limit in seconds"};
  return {
      "perigee.solver",
      "The exact solvers, and the search for a plan. Indices of `choice` count from 1.",
      {{"assign",
        {{"problem", "table", "ops, edges, memory_limit, ...: as in `perigee solve`"}, options},
        "table",
        "Chooses one option per op. Ops in `follows`, `edges` and `moments` count from 0, as in a "
        "file; `false` in an edge's `time` forbids a pair. Returns status, time, lower_bound, "
        "memory, choice; without a solution status and reason.",
        assign},
       {"stages",
        {{"problem", "table", "layers, devices, microbatches, submeshes, candidates"}, options},
        "table",
        "Cuts layers into pipeline stages. Layers and `submesh` count from 0, as in a file. "
        "Returns status, time, lower_bound, choice; without a solution status and reason.",
        stages},
       {"stage_table",
        {{"options", "table",
          "layers (their number, or the first scopes of the layers after the first; without it at "
          "most 16, as many as blocks), tolerance (no layer has more than 1 + tolerance times its "
          "share of the work; default 0.5), stage_layers (how many layers each stage has: the "
          "stages are given, each with the same number of devices, and only their axes and "
          "shardings are chosen), microbatches, submeshes (`all`, `power_of_two`, "
          "`small_power_of_two`: the numbers of whole hosts, beside parts of one; or a list of "
          "{hosts, devices}), views (`same_as_physical`, `data_parallel_only`, "
          "`model_parallel_only`, `single_node_model_parallel` or `all`), choose "
          "(auto_sharding's; default storage and recompute, unless `methods` make these choices), "
          "schedule, methods (a list that every plan has), profile "
          "(`composition`, or `individual`: stages cost the sum of their layers), imbalance (no "
          "stage has more than 1 + imbalance times the work that its share of the devices has), "
          "forbid (parallel_mode's), estimated (true: measured times are ignored), file (the table "
          "is read from it, or written to it if it does not exist; it is never replaced; "
          "formats/stages.md) and most (sequences that are simulated; default 6; of the fastest "
          "three "
          "also plans with zero2, fsdp or tensor_parallel in place of the solver's choices)"}},
        "table?, string?",
        "Finds stages for the job's model: clusters its ops into layers, has the exact solver "
        "shard "
        "each range of layers on each submesh, and simulates the best sequences of stages. Returns "
        "submesh_choices, layers, submeshes (hosts, devices, data, tensor), rows (first and last "
        "layer from 0, submesh from 0, cost in seconds of a microbatch, and bytes: peak, in, out, "
        "temporary, available; max_successors), text (the rows as a table), stages (the rows of "
        "the best sequence), with (methods in place of the solver's decisions, where they are "
        "faster), strategy, seconds (simulated), lower_bound (by the table) and judged (the "
        "simulated plans); or nil and why none fits.",
        stage_table},
       {"plan",
        {pins},
        "table?, table|string",
        "Searches the job's best plan, as the strategy `auto` does. Returns the strategy, a list "
        "of methods to add to or to return, and a table of seconds (of a step, by the search's "
        "model), lower_bound (of the seconds of all plans) and stopped (by time_limit); or nil and "
        "the reason why no plan fits.",
        plan},
       {"candidates",
        {pins, {"most", "integer?", "how many; default 10"}},
        "table?, string?",
        "Returns the best combinations by the model, best first, each with strategy, seconds, "
        "bytes, text and its numbers; or nil and the reason why no plan fits.",
        candidates},
       {"search",
        {pins,
         {"options", "table",
          "variables (a list; each a list of options, tables of pins, of which a combination has "
          "one), algorithm (`bo`: Bayesian optimisation, `combination`: all of them, `random`), "
          "trials (at most; default 30), patience (`bo` ends after this number of trials "
          "without an improvement; default 8), time_limit and measure in seconds (how long each "
          "plan's ops may be "
          "measured; default 0: no measurement), seed"}},
        "table?, string?",
        "Searches by trials: for each combination the best plan under its pins is made and judged. "
        "Returns strategy, seconds, bytes, ended (`all`, `trials`, `patience`, `time`), "
        "combinations and trials; or nil and the reason why no plan fits. Options count from 1.",
        search}}};
}

}  // namespace perigee::lua
