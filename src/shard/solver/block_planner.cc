#include "shard/solver/block_planner.h"

#include <algorithm>

#include "mesh/mesh.h"
#include "plan/pipeline.h"
#include "shard/solver/submesh_planner.h"

namespace perigee::shard {

double BlockPlan::step_cost(double microbatches) const {
  double sum = 0;
  for (const auto& stage : stages) sum += stage.cost;
  return sum + (microbatches - 1) * cost;
}

BlockPlanner::BlockPlanner(const graph::Graph& graph, const plan::Plan& plan, std::vector<int> axes,
                           const BlockPlanOptions& options)
    : graph_(graph), axes_(std::move(axes)), options_(options) {
  const auto stages = std::max<size_t>(options.in_flight.size(), 1);
  for (size_t stage = 0; stage < stages; ++stage) {
    auto own = plan::of_stage(plan, static_cast<int64_t>(stage));
    own.mesh.order.clear();  // shardings depend on sizes alone
    const auto known = std::ranges::find_if(
        plans_, [&](const auto& each) { return each->mesh.axes == own.mesh.axes; });
    planner_of_.push_back(static_cast<size_t>(known - plans_.begin()));
    if (known != plans_.end()) continue;
    // An axis on which the stage has one rank shards nothing there; the solver requires one axis.
    std::vector<int> positions;
    for (int a : axes_) {
      if (own.mesh.axes[a].size > 1) positions.push_back(a);
    }
    if (positions.empty()) positions = axes_;
    plans_.push_back(std::make_unique<plan::Plan>(std::move(own)));
    planners_.push_back(
        std::make_unique<SubmeshPlanner>(graph, *plans_.back(), std::move(positions), options_));
  }
}

BlockPlanner::~BlockPlanner() = default;

StageRange BlockPlanner::range_of(int stage) const {
  return {stage, stage, options_.in_flight.empty() ? 1 : options_.in_flight[stage]};
}

std::optional<BlockPlan> BlockPlanner::fit(std::optional<double> memory) const {
  return fit_stages([&](int) { return memory; });
}

std::optional<BlockPlan> BlockPlanner::fit_least(double factor) const {
  return fit_stages([&](int stage) {
    return planners_[planner_of_[stage]]->least_memory(range_of(stage)) * factor;
  });
}

std::optional<BlockPlan> BlockPlanner::fit_stages(
    const std::function<std::optional<double>(int)>& limit_of) const {
  BlockPlan plan;
  plan.placements.assign(graph_.values.size(),
                         mesh::Placements(axes_.size(), mesh::Placement::open()));
  plan.stage_of.assign(graph_.values.size(), 0);
  plan.stages.reserve(planner_of_.size());
  for (int stage = 0; stage < std::ssize(planner_of_); ++stage) {
    const auto& planner = planners_[planner_of_[stage]];
    std::vector<const StageChoice*> decided;
    for (const auto& earlier : plan.stages) {
      if (planner_of_[earlier.range.first] == planner_of_[stage]) decided.push_back(&earlier);
    }
    auto choice = planner->fit(range_of(stage), limit_of(stage), decided);
    if (!choice) return {};
    planner->write(*choice, axes_, plan);
    plan.cost = std::max(plan.cost, choice->cost);
    plan.memory = std::max(plan.memory, choice->memory);
    plan.bound = std::max(plan.bound, choice->bound);
    plan.stages.push_back(std::move(*choice));
  }
  return plan;
}

double BlockPlanner::least_memory() const {
  double least = 0;
  for (size_t stage = 0; stage < planner_of_.size(); ++stage) {
    const auto& planner = planners_[planner_of_[stage]];
    least = std::max(least, planner->least_memory(range_of(static_cast<int>(stage))));
  }
  return least;
}

}  // namespace perigee::shard
