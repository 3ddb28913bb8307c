#include "methods/parallel/planned_stages.h"

#include <algorithm>

#include "plan/pipeline.h"
#include "schedule/description.h"
#include "schedule/of_plan.h"

namespace perigee::methods {

std::vector<int> parts_of_nodes(const graph::Graph& graph, const plan::Pipeline& pipeline) {
  auto parts = plan::parts_of(graph, pipeline);
  const auto users = plan::first_users(graph, pipeline);
  for (size_t n = 0; n < parts.size(); ++n) {
    for (const auto v : graph.nodes[n].outputs) {
      if (parts[n] == plan::kEveryPart && v.defined()) parts[n] = users[v.index];
    }
    parts[n] = std::max(parts[n], 0);
  }
  return parts;
}

PlannedStages planned_stages(const graph::Graph& graph, const plan::Plan& plan) {
  if (!plan.pipeline.cuts()) return {};
  PlannedStages stages;
  const auto stage_of = stage_of_parts(plan);
  for (const int part : parts_of_nodes(graph, plan.pipeline)) {
    stages.of_node.push_back(stage_of[part]);
  }
  const auto& schedule = schedule::describe(plan.pipeline.schedule);
  const auto count = plan.mesh.size_of(plan.pipeline.axis);
  for (int64_t stage = 0; stage < count; ++stage) {
    const schedule::FlightCounts counts{.stages = static_cast<double>(count),
                                        .chunks = static_cast<double>(plan.pipeline.chunks),
                                        .microbatches = static_cast<double>(plan.microbatches),
                                        .later_stages = static_cast<double>(count - 1 - stage)};
    stages.in_flight.push_back(
        std::clamp(schedule.in_flight(counts), 1.0, std::max(counts.microbatches, 1.0)));
  }
  return stages;
}

}  // namespace perigee::methods
