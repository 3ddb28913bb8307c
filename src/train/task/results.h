// Results of commands. Torch-free.
#pragma once

#include <string>

#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::train {

struct PlanResult {
  graph::Graph graph;
  plan::Plan plan;
  std::string report;  // the plan as a page (search/explain/page.h), where Task::report is set
};

struct GradientReport {
  std::string text;  // one line for each parameter
  bool passed = false;
};

struct SimulateResult {
  std::string text;   // for people
  std::string json;   // "perigee.simulation/1"
  std::string trace;  // Chrome trace events, where Task::simulate_trace is set
};

}  // namespace perigee::train
