// From a model, a strategy and a job to a plan.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "capture/capture.h"
#include "job/job.h"
#include "plan/plan.h"
#include "train/plan/strategy.h"
#include "train/task/source.h"

namespace perigee {

namespace methods {
struct PlanRequest;
struct StrategySpec;
}  // namespace methods
namespace search {
struct Found;
}

// A plan with the model, the job and the strategy that it was made from.
struct PlannedJob {
  std::shared_ptr<const ModelSource> source;
  Captured captured;  // at the plan's global microbatch
  plan::Plan plan;
  Job job;
  bool predicted = false;                      // the plan's prediction is that of its programs
  std::shared_ptr<const search::Found> found;  // by the strategy "auto", else nullptr
  // Of a strategy function that took a plan of its searches; else nullptr.
  std::shared_ptr<const search::Found> explained;
  // The search for stages that a strategy function took the stages from (search/stages); else nullptr.
  std::shared_ptr<const nlohmann::json> stages;
  Strategy strategy;  // may observe the training
  int64_t hosts = 1;  // World::hosts
};

// The ranks of a plan.
struct World {
  int64_t size = 0;            // 0: that of the strategy's mesh, else job.cluster.ranks, else 1
  std::string runtime_folder;  // cluster descriptions and Lua modules, for "auto"; "": none
  // The plan is for the devices of cluster.file, which this machine need not have.
  bool for_described_cluster = false;
  int64_t hosts = 1;  // that the ranks are on, unless this process has a launcher
};

// Captures the model at the size that the strategy's plan needs and makes the plan. Takes no time
// measurements unless a strategy function asks for them. Throws Error where job, strategy, graph
// and ranks do not fit together.
PlannedJob make_plan(std::shared_ptr<const ModelSource> source, const Strategy& strategy,
                     const Job& job, World world = {});

namespace train {

// Runs f(plan) for the plan that was made. An error of f is reported at the method that caused it
// (methods::check_methods, which calls f for plans without some of the methods).
void check_at_methods(const PlannedJob& planned, const std::function<void(plan::Plan)>& f);

// Returns the methods that made the plan, and fills `request` with its request (without a graph);
// nullptr for a plan that was not made by a list of methods.
const methods::StrategySpec* methods_of(const PlannedJob& planned, methods::PlanRequest& request);

}  // namespace train
}  // namespace perigee
