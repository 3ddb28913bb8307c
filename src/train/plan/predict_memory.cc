#include "train/plan/predict_memory.h"

#include <utility>

#include "checkpoint/holdings.h"
#include "train/step/step_spec.h"

namespace perigee::train {

compile::Programs predict(plan::Plan& plan, const graph::Graph& graph, const job::Job& job,
                          compile::TraceSource& traces) {
  const auto before = plan.prediction;
  const auto spec = step_spec(job, graph);
  plan = compile::fit_recompute(graph, std::move(plan), spec, traces);
  auto programs = compile::compile_all(graph, plan, spec, traces);
  plan.prediction = compile::predict_memory(programs);
  plan.prediction.step_seconds = before.step_seconds;
  plan.prediction.measured_share = before.measured_share;
  return programs;
}

bool copies_checkpoints(const job::Job& job) {
  const auto every = job.train.checkpoint_every;
  return every > 0 && every < job.train.steps && !job.train.forward_only;
}

std::vector<int64_t> checkpoint_copies(const compile::Programs& programs, const plan::Plan& plan,
                                       const graph::Graph& graph, const job::Job& job) {
  if (!copies_checkpoints(job)) return {};
  const auto holdings = checkpoint::all_holdings(programs.programs.front(), graph, plan,
                                                 step_spec(job, graph), job.train.checkpoint_every);
  return checkpoint::bytes_by_owner(holdings, plan.mesh.size());
}

}  // namespace perigee::train
