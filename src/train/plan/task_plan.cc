#include "train/plan/task_plan.h"

#include <utility>

#include "base/fail.h"
#include "base/files/file.h"
#include "base/log_format.h"
#include "checkpoint/target.h"
#include "search/explain/page.h"
#include "simulate/simulate.h"
#include "train/measure/recorded_profile.h"
#include "train/plan/advice.h"
#include "train/plan/local_cluster.h"
#include "train/plan/memory_check.h"
#include "train/plan/predict_memory.h"
#include "train/ranks/device.h"
#include "train/step/step_spec.h"
#include "train/task/open_model.h"

namespace perigee::train {
namespace {

// Time limit for trying changes of a plan that does not fit.
constexpr double kAdviceSeconds = 5;

template <class Check>
bool fits(Check check) {
  try {
    check();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Returns the changes that would make the plan fit; "" where none is known.
std::string remedies(const PlannedJob& planned, const std::string& runtime_folder,
                     const std::function<bool(const plan::Plan&)>& fits) {
  try {
    return memory_advice(advise(planned, runtime_folder, kAdviceSeconds), fits);
  } catch (const Error& error) {
    log::debug("no advice: {}", error.what());
    return "";
  }
}

void check_memory_of_devices(const PlannedJob& planned, const plan::Plan& plan,
                             const std::string& runtime_folder) {
  const auto cluster_for = [&](const plan::Plan& any) {
    return cluster_of(planned.job, {any.mesh.size(), planned.hosts}, runtime_folder);
  };
  check_memory(plan, cluster_for(plan), [&] {
    return remedies(planned, runtime_folder, [&](const plan::Plan& other) {
      return fits([&] { check_memory(other, cluster_for(other)); });
    });
  });
}

Strategy open_strategy(const Task& task) {
  if (!task.plan_file.empty()) {
    return Strategy::plan(plan::parse(read_file(task.plan_file, "plan"), task.plan_file));
  }
  if (task.strategy == "auto" && task.plain) return Strategy::data("[]");
  const ScriptOptions options{task.script_seconds, task.script_megabytes,
                              static_cast<uint64_t>(task.job.seed), task.runtime_folder};
  if (task.strategy != "auto") return Strategy::file(task.strategy, options);
  if (!task.job.dialect.name.empty()) return Strategy::dialect(task.job.dialect, options);
  return {};
}

}  // namespace

PlannedJob plan_task(const Task& task, const std::string& plan_text, bool for_described_cluster) {
  auto source = open_model(task);
  auto strategy = open_strategy(task);
  const auto observer = strategy;
  if (!plan_text.empty()) strategy = Strategy::plan(plan::parse(plan_text));
  auto planned = perigee::make_plan(
      std::move(source), strategy, task.job,
      {task.world_given ? task.world : 0, task.runtime_folder, for_described_cluster, task.hosts});
  if (!plan_text.empty()) planned.strategy = observer;
  return planned;
}

std::string read_resumed_plan(const std::string& file) {
  auto text = checkpoint::is_s3(file) ? checkpoint::read_text(file) : read_file(file, "plan");
  try {
    plan::parse(text, file);
  } catch (const Error&) {
    fail("plan",
         "{} must be as it was written, but it is no plan: copy it again, or go on with --plan or "
         "--strategy",
         file);
  }
  return text;
}

void predict_recorded(PlannedJob& planned, const job::Job& job, const std::string& runtime_folder,
                      bool chooses_products) {
  RecordedProfile recorded(job, ranks_per_host({planned.plan.mesh.size(), planned.hosts}));
  auto& plan = planned.plan;
  check_at_methods(planned, [&](plan::Plan candidate) {
    predict(candidate, planned.captured.graph, job, recorded.traces(),
            chooses_products ? &recorded.times() : nullptr);
    plan = std::move(candidate);
  });
  if (!job.cluster.file.empty()) check_memory_of_devices(planned, plan, runtime_folder);
}

void check_memory_here(const PlannedJob& planned, const plan::Plan& plan, int64_t local_ranks,
                       const std::vector<int64_t>& checkpoint_bytes,
                       const std::string& runtime_folder) {
  if (uses_gpu(planned.job, /*warn=*/false)) {
    return check_memory_of_devices(planned, plan, runtime_folder);
  }
  const HostMemory host{
      .ranks = local_ranks, .bytes = memory_of_host(), .checkpoint_bytes = checkpoint_bytes};
  check_memory(plan, host, [&] {
    // More ranks would share the same memory.
    return remedies(planned, runtime_folder, [&](const plan::Plan& other) {
      if (other.mesh.size() != plan.mesh.size()) return false;
      return fits([&] { check_memory(other, host); });
    });
  });
}

std::string advice_of(const PlannedJob& planned, const Task& task) {
  methods::PlanRequest request;
  if (!task.advice || !methods_of(planned, request)) return "";
  const auto fits_devices = [&](const plan::Plan& other) {
    return fits([&] {
      check_memory(
          other, cluster_of(planned.job, {other.mesh.size(), planned.hosts}, task.runtime_folder));
    });
  };
  return speed_advice(advise(planned, task.runtime_folder, kAdviceSeconds), fits_devices);
}

std::string page_of(const CompiledPlan& compiled, const std::string& runtime_folder) {
  const auto& planned = compiled.planned;
  const auto cluster = cluster_of(planned.job, {compiled.plan.mesh.size(), planned.hosts},
                                  runtime_folder);
  simulate::OpCosts costs(cluster, compiled.times);
  const auto simulation = simulate::simulate(
      compiled.programs, compiled.plan.mesh, costs,
      {.runs = true, .stage_axis = compiled.plan.pipeline.axis});
  return search::to_html({.title = planned.job.name,
                          .graph = planned.captured.graph,
                          .plan = compiled.plan,
                          .programs = compiled.programs,
                          .simulation = simulation,
                          .costs = costs,
                          .found = planned.found ? planned.found.get() : planned.explained.get(),
                          .stages = planned.stages.get()});
}

std::string page_of(const PlannedJob& planned, const std::string& runtime_folder) {
  RecordedProfile recorded(planned.job, ranks_per_host({planned.plan.mesh.size(), planned.hosts}));
  const auto& graph = planned.captured.graph;
  const auto programs = compile::compile_all(graph, planned.plan, step_spec(planned.job, graph),
                                             recorded.traces());
  return page_of({planned, planned.plan, programs, recorded.times()}, runtime_folder);
}

}  // namespace perigee::train
