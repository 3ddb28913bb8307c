// Strategy scripts: from a file to methods::StrategySpec.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "graph/graph.h"
#include "job/assignment.h"
#include "job/job.h"
#include "lua/state.h"
#include "methods/method.h"

namespace perigee::lua {

// A script that has run. A strategy that is a function of (job, graph), or has one as its methods,
// is called by `resolve`.
class StrategyScript {
 public:
  // Runs the file. Throws Error with the script's line.
  StrategyScript(const std::string& path, Options options = {});
  // Runs a dialect's module on its table of a job. Throws Error with the place in the job's file.
  StrategyScript(const job::Dialect& dialect, Options options);

  // Returns the job that the script names, relative to the script's folder; nothing for functions.
  const std::optional<std::string>& job() const { return job_; }
  bool is_function() const { return function_; }
  // Returns the keys of the job that the script sets (methods::StrategySpec::set), with their
  // places in the user's files; none for functions.
  const std::vector<job::Assignment>& set() const { return set_; }

  // Returns whether the strategy has a function for this event of training: "step", which gets a
  // report of each step, or "loss_scale", which returns the loss scale of a step.
  bool observes(const std::string& event) const;
  // Calls the event's function with a report. Throws Error with the script's line.
  void notify(const std::string& event, const nlohmann::json& report);
  // Calls the event's function with a step's number and returns its answer. Throws Error where
  // there is none, or the answer is not a number.
  double ask(const std::string& event, int64_t step);

  // Returns the strategy for this job (resolved, as JSON) and graph. Its methods call into this
  // script, which must outlive it. A strategy function may ask the planner.
  methods::StrategySpec resolve(const nlohmann::json& job, const graph::Graph& graph,
                                Planner* planner = nullptr);

 private:
  void check_result();
  // Returns where errors are that have no line of their own: "FILE:LINE: ", or "FILE: ".
  std::string place() const;
  // Throws Error where the result at `index`, or its methods, are one method instead of a list.
  void require_list(int index);
  // Keeps the functions of the table at `index`, {events = {step = function}}, and takes them out
  // of it.
  void take_events(int index);
  // Takes {around = {loss = function, prepare = function}} out of the table at `index`: the job's
  // model.around becomes this script, which is run again where the model is captured.
  void take_around(int index);
  // Returns the strategy of a script's result, with what `rest_` has; `places`: of its methods.
  methods::StrategySpec read(nlohmann::json value, const std::vector<std::string>& places = {});
  // Returns where the methods of the result at `index`, a list or {methods = list}, were written.
  std::vector<std::string> places_of(int index);

  std::string path_;
  State state_;
  std::string result_place_;  // of methods of which nothing else is known
  std::optional<std::string> job_;
  std::vector<job::Assignment> set_;
  bool function_ = false;
  nlohmann::json rest_;                // of {set, ..., methods = function}: all but methods
  std::string around_;                 // "model.around=...", or ""
  std::map<std::string, int> events_;  // functions, in the state's registry
};

// Returns the shipped strategies below `folder` by their bare names: NAME.lua in any subfolder but
// published/, which holds what others published of one model each.
std::map<std::string, std::string> scripts_in(const std::string& folder);

// Runs the shipped strategies that define methods that `strategy` names and that are not
// defined yet.
void define_shipped(State& state, const nlohmann::json& strategy);

}  // namespace perigee::lua
