// A plan as one page for people: HTML that needs nothing beside itself, no script and no network.
#pragma once

#include <string>

#include "compile/compile.h"
#include "graph/graph.h"
#include "plan/plan.h"
#include "search/search.h"
#include "simulate/simulate.h"

namespace perigee::search {

struct PageContent {
  std::string title;          // the job's name
  const graph::Graph& graph;  // captured, at the plan's global microbatch
  const plan::Plan& plan;
  const compile::Programs& programs;
  const simulate::Simulation& simulation;  // with runs
  simulate::OpCosts& costs;
  const Found* found = nullptr;  // of the strategy "auto"; nullptr: nothing was searched
  // A result of plan_stages, whose stages the plan has; nullptr: none.
  const nlohmann::json* stages = nullptr;
};

// Returns the page: the mesh, stages, memory by kind, the time line of the schedule, placements per
// layer, costs by op, the plan's decisions, the table of stages, and other candidates. All names are
// escaped; the same content gives the same bytes.
std::string to_html(const PageContent& content);

}  // namespace perigee::search
