#include "train/plan/make_plan.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/fail.h"
#include "base/log_format.h"
#include "methods/method.h"
#include "methods/placed.h"
#include "search/search.h"
#include "search/stages/describe_stages.h"
#include "train/measure/recorded_profile.h"
#include "train/plan/ask_devices.h"
#include "train/plan/auto_planner.h"
#include "train/plan/local_cluster.h"
#include "train/plan/strategy_access.h"
#include "train/ranks/device.h"
#include "train/step/step_spec.h"
#include "train/task/job_json.h"

namespace perigee {
namespace {

// Throws Error where the strategy sets keys to other values than the job has.
void check_set(const methods::StrategySpec& strategy, const Job& job) {
  for (const auto& assignment : strategy.set) {
    auto other = job;
    other.set(assignment);
    if (other == job) continue;
    fail("strategy",
         "the job must have what the strategy sets, {}, but it has another value: change "
         "it, or `set` of the strategy",
         assignment);
  }
}

// Warns of each method that could not be applied to this device or model or has no effect.
void warn_of_methods(const plan::Plan& plan) {
  for (const auto& decision : plan.decisions) {
    const auto& sentence = decision.sentence;
    if (sentence.starts_with("left out: ") || sentence.starts_with("has no effect")) {
      log::warn("{}: {}", decision.by, sentence);
    }
  }
}

// Warns of each axis whose ranks repeat each other's work.
void warn_of_axes(const plan::Plan& plan) {
  for (const auto& axis : methods::idle_axes(plan)) {
    if (axis.name == "instance") continue;  // repeats on request
    log::warn("parallel_mode: {}: add the method that uses it, or leave it out",
              methods::idle_sentence(axis));
  }
}

}  // namespace

PlannedJob make_plan(std::shared_ptr<const ModelSource> source, const Strategy& given,
                     const Job& job, World world) {
  if (world.size < 0) fail("plan", "a run has at least 1 rank, but got {}", world.size);
  train::prepare_device(job);
  source->check(job);
  for (const auto& warning : job.warnings.sentences) log::warn("{}", warning);
  auto strategy = given;
  if (StrategyAccess::is_auto(given) && !job.dialect.name.empty()) {
    strategy = Strategy::dialect(job.dialect, {.runtime_folder = world.runtime_folder});
  }
  methods::PlanRequest request;
  request.global_batch = job.batch.global;
  request.micro_batch = job.batch.micro;
  request.round = job.batch.round;
  request.frozen = job.model.frozen;
  request.world = world.size > 0 ? world.size : std::max<int64_t>(1, job.cluster.ranks);
  request.world_given = world.size > 0 || job.cluster.ranks > 0;
  request.eight_bits = train::multiplies_eight_bits(job, world.for_described_cluster,
                                                    world.runtime_folder);
  request.sharing_ranks = train::sharing_ranks(job, {request.world, world.hosts});
  const auto cluster = [job, world](int64_t ranks) {
    return train::cluster_of(job, {ranks, world.hosts}, world.runtime_folder);
  };
  request.device_bytes = [cluster](int64_t ranks) { return cluster(ranks).least_memory(); };
  std::unique_ptr<train::AutoPlanner> planner;
  if (StrategyAccess::is_auto(strategy) || StrategyAccess::is_function(strategy)) {
    planner = std::make_unique<train::AutoPlanner>(source, job,
                                                   train::HostedRanks{request.world, world.hosts},
                                                   world.runtime_folder, request.eight_bits);
  }
  if (StrategyAccess::is_auto(strategy)) {
    auto found = std::make_shared<search::Found>(planner->find(nlohmann::json::object()));
    source = source->with(found->plan.adapters);
    const auto& captured = source->at(methods::graph_batch(found->plan, request),
                                      job.train.forward_only);
    auto plan = found->plan;
    return {std::move(source),  captured,         std::move(plan), job,
            /*predicted=*/true, std::move(found), nullptr,         nullptr, strategy, world.hosts};
  }
  auto job_values = train::job_json(job);
  if (request.world_given) job_values["cluster"]["ranks"] = request.world;
  const auto recorded = std::make_shared<train::RecordedProfile>(
      job, train::ranks_per_host({request.world, world.hosts}));
  // The graph has the shapes of one global microbatch, whose size depends on the plan, which
  // may depend on the graph: guess the size, make the plan, and repeat with the plan's size
  // if it differs.
  auto samples = job.batch.micro > 0 ? std::min(job.batch.global, job.batch.micro * request.world)
                                     : job.batch.global;
  train::ScriptOutput::Held output(StrategyAccess::output(strategy));
  for (int tries = 0;; ++tries) {
    output.forget();
    const auto resolved = StrategyAccess::resolve(
        strategy, job_values, source->at(samples, job.train.forward_only).graph, planner.get());
    // Captured after `resolve`, since a planner captures other sizes.
    request.graph = &source->at(samples, job.train.forward_only).graph;
    request.samples = samples;
    train::ask_devices(request, job, cluster, {recorded, &recorded->traces()});
    auto plan = methods::make_plan(resolved, request);
    const auto wanted = methods::graph_batch(plan, request);
    if (wanted == samples) {
      source = source->with(plan.adapters);
      const auto& captured = source->at(samples, job.train.forward_only);
      request.graph = &captured.graph;
      check_set(resolved, job);
      for (const auto& warning : resolved.warnings) log::warn("{}", warning);
      if (!resolved.plan) warn_of_methods(plan);
      warn_of_axes(plan);
      methods::check_methods(resolved, request, plan, [&](plan::Plan made) {
        made.microbatches = plan.microbatches;
        plan::verify(made, captured.graph);
      });
      StrategyAccess::remember(strategy, resolved, request);
      if (request.world_given && plan.mesh.size() != request.world) {
        fail("plan",
             "the plan's mesh must have the {} ranks of this run, but it has {}: start {} rank{} "
             "(--nproc, cluster.ranks)",
             request.world, plan.mesh.size(), plan.mesh.size(), plan.mesh.size() == 1 ? "" : "s");
      }
      mesh::verify_ranks(plan.mesh, job.cluster.file.empty() ? plan.mesh.size()
                                                             : cluster(plan.mesh.size()).ranks());
      auto fitted = train::with_fitted_batch(job, plan);
      if (fitted.batch.global != job.batch.global) {
        log::warn(
            "batch.global = {} does not divide over {} microbatch{} and the data ranks: a step has "
            "{} samples (batch.round)",
            job.batch.global, plan.microbatches, plan.microbatches == 1 ? "" : "es",
            fitted.batch.global);
      }
      std::shared_ptr<const search::Found> explained;
      std::shared_ptr<const nlohmann::json> stages;
      if (planner && !resolved.plan) {
        if (auto found = planner->explain(resolved, plan, captured.graph)) {
          plan.decisions = found->plan.decisions;
          explained = std::move(found);
        }
        if ((stages = planner->stages_of(resolved))) {
          auto rows = search::stage_decisions(*stages);
          plan.decisions.insert(plan.decisions.end(), rows.begin(), rows.end());
        }
      }
      return {std::move(source),   captured, std::move(plan),      std::move(fitted),
              /*predicted=*/false, nullptr,  std::move(explained), std::move(stages), strategy,
              world.hosts};
    }
    if (tries == 2) {
      fail("plan",
           "the strategy asks for {} samples a microbatch when it sees {}, and does not settle",
           wanted, samples);
    }
    samples = wanted;
  }
}

namespace train {

const methods::StrategySpec* methods_of(const PlannedJob& planned, methods::PlanRequest& request) {
  request = StrategyAccess::last_request(planned.strategy);
  const auto& methods = StrategyAccess::last_methods(planned.strategy);
  return methods.methods.empty() ? nullptr : &methods;
}

void check_at_methods(const PlannedJob& planned, const std::function<void(plan::Plan)>& f) {
  auto request = StrategyAccess::last_request(planned.strategy);
  request.graph = &planned.captured.graph;
  methods::check_methods(StrategyAccess::last_methods(planned.strategy), request, planned.plan,
                         [&](plan::Plan plan) {
                           plan.microbatches = planned.plan.microbatches;
                           f(std::move(plan));
                         });
}

}  // namespace train
}  // namespace perigee
