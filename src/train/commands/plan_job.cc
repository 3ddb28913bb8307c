#include "train/commands/plan_job.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log_format.h"
#include "base/terminal/phases.h"
#include "compile/compile.h"
#include "job/rank_process.h"
#include "search/stages/describe_stages.h"
#include "simulate/report.h"
#include "simulate/simulate.h"
#include "simulate/utilisation.h"
#include "train/measure/recorded_profile.h"
#include "train/plan/local_cluster.h"
#include "train/plan/memory_check.h"
#include "train/plan/predict_memory.h"
#include "train/plan/task_plan.h"
#include "train/ranks/device.h"
#include "train/task/open_model.h"

namespace perigee::train {
namespace {

Task with_completed_job(const Task& task) {
  auto result = task;
  result.job = completed(task);
  check_profile(result.job);
  return result;
}

// Warns where the plan's ranks, on described devices or on as many hosts as this as the task names,
// need more memory than there is. train refuses such a plan.
void warn_of_memory(const Task& task, const PlannedJob& planned) {
  const auto& job = planned.job;
  const auto ranks = planned.plan.mesh.size();
  const auto check = [&](const auto& memory) {
    try {
      check_memory(planned.plan, memory);
    } catch (const Error& error) {
      log::warn("the plan does not fit in memory: {}", error.what());
    }
  };
  if (!job.cluster.file.empty() || uses_gpu(job, /*warn=*/false)) {
    return check(cluster_of(job, ranks, task.runtime_folder));
  }
  const auto of_host = job::ranks_of_host().value_or((ranks + task.hosts - 1) / task.hosts);
  check(HostMemory{.ranks = std::clamp<int64_t>(of_host, 1, ranks), .bytes = memory_of_host()});
}

}  // namespace

PlanResult plan_job(const Task& task) {
  log::Phases phases(task.job.train.progress);
  phases.begin("planning");
  auto planned = plan_task(with_completed_job(task), /*plan_text=*/"",
                           /*for_described_cluster=*/true);
  const bool chooses_products = task.plan_file.empty() && planned.job.cluster.file.empty();
  if (!planned.predicted || chooses_products) {
    predict_recorded(planned, planned.job, task.runtime_folder, chooses_products);
  }
  if (!task.plain) warn_of_memory(task, planned);
  PlanResult result{planned.captured.graph, planned.plan, ""};
  if (task.report) result.report = page_of(planned, task.runtime_folder);
  return result;
}

SimulateResult simulate_job(const Task& task) {
  log::Phases phases(task.job.train.progress);
  phases.begin("planning");
  const auto completed_task = with_completed_job(task);
  const auto& job = completed_task.job;
  auto planned = plan_task(completed_task, /*plan_text=*/"", /*for_described_cluster=*/true);
  const auto& graph = planned.captured.graph;
  const auto cluster = cluster_of(job, planned.plan.mesh.size(), task.runtime_folder);
  RecordedProfile recorded(job, planned.plan.mesh.size());
  compile::Programs programs;
  check_at_methods(planned, [&](plan::Plan plan) {
    programs = predict(plan, graph, planned.job, recorded.traces(),
                       task.plan_file.empty() ? &recorded.times() : nullptr);
    planned.plan = std::move(plan);
  });
  warn_of_memory(task, planned);
  simulate::OpCosts costs(cluster, recorded.times());
  const auto simulation = simulate::simulate(
      programs, planned.plan.mesh, costs,
      {.intervals = task.simulate_trace, .stage_axis = planned.plan.pipeline.axis});
  const auto used = simulate::utilisation(graph, planned.plan, cluster, simulation.step_seconds);
  auto document = simulate::to_json(simulation, programs, cluster, used);
  if (planned.stages) {
    auto more = nlohmann::json::parse(document);
    more["stages"] = search::table_json(*planned.stages);
    document = more.dump(1) + "\n";
  }
  return {simulate::to_text(simulation, programs, cluster, used) + advice_of(planned, task),
          std::move(document),
          task.simulate_trace ? simulate::chrome_trace(simulation, programs) : std::string()};
}

}  // namespace perigee::train
