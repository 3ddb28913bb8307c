// perigee.profiler: time and memory of a strategy's plan.
#include "base/fail.h"
#include "lua/api.h"
#include "lua/convert.h"
#include "lua/planner.h"
#include "lua/state.h"
#include "lua/strategy.h"

namespace perigee::lua {
namespace {

Planner& planner_of(lua_State* L, const char* function) {
  auto* planner = State::of(L).planner;
  if (!planner) {
    fail(
        "profile",
        "{} needs the job's model: call it in a strategy function (return function(job, graph) ... "
        "end)",
        function);
  }
  return *planner;
}

// The strategy that is the first argument of a function.
struct Asked {
  Planner& planner;
  nlohmann::json strategy;
  Defined defined;

  Asked(lua_State* L, const char* function)
      : planner(planner_of(L, function)), strategy(to_json(L, 1, "the strategy")) {
    define_shipped(State::of(L), strategy);
    defined = State::of(L).methods;
  }
};

int estimate(lua_State* L, const Function&) {
  const Asked asked(L, "profiler.estimate");
  State::HostTime host(State::of(L));
  const auto pins = lua_isnoneornil(L, 2) ? nlohmann::json::object() : to_json(L, 2, "pins");
  push_json(L, asked.planner.estimate(asked.strategy, pins, asked.defined));
  return 1;
}

int plan(lua_State* L, const Function&) {
  const Asked asked(L, "profiler.plan");
  State::HostTime host(State::of(L));
  push_json(L, asked.planner.plan_of(asked.strategy, asked.defined));
  return 1;
}

int costs(lua_State* L, const Function&) {
  const std::string method = lua_isnoneornil(L, 2) ? "" : luaL_checkstring(L, 2);
  const Asked asked(L, "profiler.costs");
  State::HostTime host(State::of(L));
  push_json(L, asked.planner.costs(asked.strategy, method, asked.defined));
  return 1;
}

int op_times(lua_State* L, const Function&) {
  const Asked asked(L, "profiler.op_times");
  State::HostTime host(State::of(L));
  push_json(L, asked.planner.op_times(asked.strategy, asked.defined));
  return 1;
}

int measure(lua_State* L, const Function&) {
  const double seconds = lua_isnoneornil(L, 2) ? 30 : lua_tonumber(L, 2);
  if (!(seconds > 0)) fail("profile", "seconds must be above 0, but got {}", seconds);
  const Asked asked(L, "profiler.measure");
  State::HostTime host(State::of(L));
  push_json(L, asked.planner.measure(asked.strategy, seconds, asked.defined));
  return 1;
}

}  // namespace

Module profiler_module() {
  return {"perigee.profiler",
          "Time and memory of a plan: measured for this machine, estimated for others; each result "
          "has its source.",
          {{"estimate",
            {{"strategy", "table", "a list of methods"},
             {"pins", "table?",
              "as for perigee.solver.plan; only reserve, optimizer_resident and "
              "optimizer_transient have an effect, on peak_bytes"}},
            "table",
            "Returns seconds (of a step), bubble_ratio, measured_share (0: all is an estimate) and "
            "peak_bytes (of the rank with the highest peak), by the simulator. Measures nothing.",
            estimate},
           {"plan",
            {{"strategy", "table", "a list of methods"}},
            "table",
            "Returns the strategy's plan, in the form of plan.json.",
            plan},
           {"costs",
            {{"strategy", "table", "a list of methods"},
             {"method", "string?", "the cost of this one alone; default all"}},
            "table",
            "Returns the costs of the strategy's methods, a list of {method, seconds, bytes}: the "
            "differences in step time and in the largest peak memory between the plans with and "
            "without the method (below 0: it saves), by the simulator and the compiled programs. "
            "Where there is no plan without the method, `refused` is the reason. `own` is true "
            "where a defined method states its cost itself.",
            costs},
           {"op_times",
            {{"strategy", "table", "a list of methods"}},
            "perigee.OpTime[]",
            "Returns the times of the plan's ops in a step, by scope, pass and op, each of the "
            "rank on which it takes the longest. Measures nothing.",
            op_times},
           {"measure",
            {{"strategy", "table", "a list of methods"},
             {"seconds", "number?", "budget of the measurements; default 30"}},
            "table",
            "Measures the ops of the strategy's plan on this machine, keeps their times in the "
            "profile, and returns the fields of estimate, with ops (their number) and measured "
            "(the number of measured ones).",
            measure}}};
}

}  // namespace perigee::lua
