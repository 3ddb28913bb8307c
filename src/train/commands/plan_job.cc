#include "train/commands/plan_job.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log_format.h"
#include "base/terminal/phases.h"
#include "compile/compile.h"
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
#include "train/task/threads.h"

namespace perigee::train {
namespace {

Task with_completed_job(const Task& task) {
  auto result = task;
  result.job = completed(task);
  // completed() counts all ranks as those of one host.
  result.job.cluster.threads = threads_of_rank(task.job, ranks_per_host({task.world, task.hosts}));
  check_profile(result.job);
  return result;
}

// Warns where the plan's ranks, on described devices or on as many hosts as this as the task names,
// need more memory than there is. train refuses such a plan.
void warn_of_memory(const Task& task, const PlannedJob& planned) {
  const auto& job = planned.job;
  const HostedRanks ranks{planned.plan.mesh.size(), planned.hosts};
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
  check(HostMemory{.ranks = ranks_per_host(ranks), .bytes = memory_of_host()});
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
  const HostedRanks ranks{planned.plan.mesh.size(), planned.hosts};
  const auto cluster = cluster_of(job, ranks, task.runtime_folder);
  RecordedProfile recorded(job, ranks_per_host(ranks));
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
