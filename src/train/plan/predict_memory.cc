#include "train/plan/predict_memory.h"

#include <utility>

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

}  // namespace perigee::train
