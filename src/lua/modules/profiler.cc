// perigee.profiler: what a strategy's plan would take.
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

// What a function asks about: the strategy that is its first argument.
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
  return {
      "perigee.profiler",
      "Time and memory of a plan: measured for this machine, estimated for others; each result "
      "has its source.",
      {{"estimate",
        {{"strategy", "table", "a list of methods"},
         {"pins", "table?",
          "as perigee.solver.plan has them: reserve, optimizer_resident and optimizer_transient "
          "change peak_bytes, others nothing"}},
        "table",
        "Returns seconds (of a step), bubble_ratio, measured_share (0: all is an estimate) and "
        "peak_bytes (of the rank that takes the most), by the simulator. Times nothing.",
        estimate},
       {"plan",
        {{"strategy", "table", "a list of methods"}},
        "table",
        "Returns the plan that the strategy comes to, as plan.json has it.",
        plan},
       {"costs",
        {{"strategy", "table", "a list of methods"},
         {"method", "string?", "the cost of this one alone; default all"}},
        "table",
        "Returns what the strategy's methods cost, a list of {method, seconds, bytes}: how much "
        "more a step takes with it than without it, and the rank that takes the most memory "
        "(below 0: it saves so much), by the simulator and the compiled programs, both ways. "
        "Where there is no plan without it, `refused` says why. `own` is true where a method of "
        "yours has said so itself.",
        costs},
       {"op_times",
        {{"strategy", "table", "a list of methods"}},
        "perigee.OpTime[]",
        "Returns the times of the plan's ops in a step, by scope, pass and op: of each the rank on "
        "which it takes the longest. Times nothing.",
        op_times},
       {"measure",
        {{"strategy", "table", "a list of methods"},
         {"seconds", "number?", "budget of the measurements; default 30"}},
        "table",
        "Measures the ops of the strategy's plan on this machine, keeps them in the profile, "
        "and returns what estimate does, with ops and measured (how many of them).",
        measure}}};
}

}  // namespace perigee::lua
