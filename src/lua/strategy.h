// Strategy scripts: from a file to methods::Strategy.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "graph/graph.h"
#include "lua/state.h"
#include "methods/method.h"

namespace perigee::lua {

// A script that has run. A strategy that is a function of (job, graph) is called by `resolve`.
class StrategyScript {
 public:
  // Runs the file. Throws Error with the script's line.
  StrategyScript(const std::string& path, Options options = {});

  // Returns the job that the script names, relative to the script's folder; nothing for functions.
  const std::optional<std::string>& job() const { return job_; }
  bool is_function() const { return function_; }

  // Returns the strategy for this job (resolved, as JSON) and graph. Its methods call into this
  // script, which must outlive it. A strategy function may ask the planner.
  methods::Strategy resolve(const nlohmann::json& job, const graph::Graph& graph,
                            Planner* planner = nullptr);

 private:
  methods::Strategy read(int index);
  // Runs the shipped strategies that define what the list names and no one has defined.
  void define_shipped(const nlohmann::json& value);

  std::string path_;
  State state_;
  std::optional<std::string> job_;
  bool function_ = false;
};

// Returns what strategy functions see of a graph: {scopes, parameters, ops} with shapes, dtypes,
// bytes and FLOPs.
nlohmann::json describe_graph(const graph::Graph& graph);

}  // namespace perigee::lua
