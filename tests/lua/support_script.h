// Plans of scripts for the model of tests/lua/dialects/gpt.graph: four blocks, samples of 8 tokens.
#pragma once

#include <string>

#include "base/files/file.h"
#include "graph/graph.h"
#include "lua/method/request.h"
#include "lua/strategy.h"
#include "methods/method.h"
#include "plan/plan.h"
#include "tests/lua/support_dialect.h"

namespace perigee::test {

inline const graph::Graph& gpt_graph() {
  static const auto graph = graph::parse(read_file("tests/lua/dialects/gpt.graph", "test"));
  return graph;
}

// Returns the plan of a script, which it verifies. The script is s.lua of the folder; it begins
// with the line `local m = require "perigee.methods"`.
inline plan::Plan plan_of(const Folder& folder, const std::string& text) {
  const auto& graph = gpt_graph();
  lua::StrategyScript script(
      folder.write("s.lua", "local m = require \"perigee.methods\"\n" + text), options());
  const nlohmann::json job = {{"name", "test"}, {"optimizer", {{"lr", 0.5}}}};
  auto plan = methods::make_plan(script.resolve(job, graph), {.graph = &graph, .global_batch = 8});
  plan::verify(plan, graph);
  return plan;
}

}  // namespace perigee::test
