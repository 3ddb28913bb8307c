#include "train/run/rank_session.h"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log_format.h"
#include "exec/memory/allocator.h"
#include "exec/op_threads.h"
#include "shard/propagate/matched_rules.h"
#include "train/measure/profile_path.h"
#include "train/measure/recorded_profile.h"
#include "train/plan/predict_memory.h"
#include "train/plan/task_plan.h"
#include "train/ranks/share.h"
#include "train/ranks/wait_for_work.h"
#include "train/step/check_loss.h"
#include "train/step/step_spec.h"
#include "train/task/open_model.h"

namespace perigee::train {
namespace {

// Throws Error where even a fraction of a plan's estimated memory is more than there is: ops run on
// zeros for an exact prediction, and those of such a plan would take long.
void check_estimate(const PlannedJob& planned, const plan::Plan& plan, int64_t local_ranks,
                    const std::string& runtime_folder) {
  constexpr double kSurely = 0.6;
  auto least = plan;
  for (auto& peak : least.prediction.peak_bytes) {
    peak = static_cast<int64_t>(kSurely * static_cast<double>(peak));
  }
  try {
    check_memory_here(planned, least, local_ranks, {}, runtime_folder);
  } catch (const Error&) {
    check_memory_here(planned, plan, local_ranks, {}, runtime_folder);
  }
}

// Logs the ops that every rank computes whole since no rule says how to shard them.
void log_uncovered(const Blueprint& blueprint) {
  if (blueprint.plan.mesh.size() == 1) return;
  const auto ops = shard::uncovered_ops(blueprint.training, blueprint.plan);
  if (ops.empty()) return;
  std::vector<std::string> names;
  for (const auto& op : ops) {
    names.push_back(fmt::format("{} in scope \"{}\"{}", op.op, op.scope,
                                op.nodes > 1 ? fmt::format(" and {} more", op.nodes - 1) : ""));
  }
  log::info("ops without a sharding rule run whole on every rank: {}", fmt::join(names, ", "));
}

}  // namespace

RankSession::RankSession(const Task& task, Connection met)
    : job(completed(task)),
      connection(std::move(met)),
      communicator(connection.communicator.get()),
      // The first rank of a host speaks for it.
      database(profile_of(job),
               {.tells = communicator->rank() % std::max<int64_t>(1, connection.local_ranks) == 0}),
      traces(database, static_cast<int>(job.cluster.threads), connection.device) {
  exec::install_allocator();
  exec::set_op_threads(static_cast<int>(job.cluster.threads));
}

const Blueprint& plan_session(const Task& task, RankSession& session, const std::string& plan_text,
                              std::shared_ptr<const ModelSource>& source,
                              const std::function<void(const CompiledPlan&)>& begin) {
  auto& blueprint = session.blueprint;
  const auto make = [&] {
    auto with_job = task;
    with_job.job = session.job;
    auto planned = plan_task(with_job, plan_text);
    source = planned.source;
    blueprint.training = planned.captured.graph;
    blueprint.init = planned.captured.init;
    blueprint.tied = planned.captured.tied;
    blueprint.evaluation = planned.source
                               ->at(planned.job.batch.global / planned.plan.microbatches /
                                        copies_of(planned.plan),
                                    true)
                               .graph;
    auto times = times_of(session.database, *session.connection.device, session.job,
                          session.connection.local_ranks);
    compile::Programs programs;
    const auto predict_with = [&](compile::TraceSource& traces) {
      check_at_methods(planned, [&](plan::Plan plan) {
        const bool given = !plan_text.empty() || !task.plan_file.empty();
        programs = predict(plan, blueprint.training, planned.job, traces, given ? nullptr : &times);
        blueprint.plan = std::move(plan);
      });
    };
    profile::KnownTraces known(session.traces);
    bool estimated = false;
    try {
      predict_with(known);
      estimated = known.missing();
    } catch (const Error&) {
      if (!known.missing()) throw;  // with exact memory the plan may be within its budget
    }
    if (estimated) {
      check_estimate(planned, blueprint.plan, session.connection.local_ranks, task.runtime_folder);
    }
    if (known.missing()) predict_with(session.traces);  // records those
    session.step_prediction = predict_step(programs, blueprint.plan, planned.job, times,
                                           task.runtime_folder);
    session.memory = memory_json(programs);
    session.checkpoint_bytes = checkpoint_copies(programs, blueprint.plan, blueprint.training,
                                                 planned.job);
    check_memory_here(planned, blueprint.plan, session.connection.local_ranks,
                      session.checkpoint_bytes, task.runtime_folder);
    log_coupling(blueprint.training, blueprint.plan);
    log_uncovered(blueprint);
    blueprint.two_microbatches = graph_of_two(*planned.source, blueprint.training, blueprint.plan,
                                              planned.job.train.forward_only);
    if (begin) {
      cost::NoMeasurements none;
      auto& of_device = planned.job.cluster.file.empty() ? static_cast<cost::Measurements&>(times)
                                                         : none;
      begin({planned, blueprint.plan, programs, of_device});
    }
  };
  const bool root = session.communicator->rank() == 0;
  wait_for_work(*everyone(*session.communicator), session.job,
                root ? std::function<void()>(make) : nullptr);
  blueprint = share(std::move(blueprint), *session.communicator);
  session.job = with_fitted_batch(std::move(session.job), blueprint.plan);
  return blueprint;
}

void initialise(RankTrainer& trainer, const ModelSource* source, const RankTrainer::Done& done) {
  std::map<std::string, at::Tensor> values;
  if (source) {
    for (const auto& item : source->module().named_parameters())
      values[item.key()] = item.value().detach();
    for (const auto& item : source->module().named_buffers()) values[item.key()] = item.value();
  }
  trainer.initialise([&](const std::string& name) { return values[name]; }, done);
}

}  // namespace perigee::train
