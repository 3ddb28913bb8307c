#include "train/plan/step_prediction.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/log_format.h"
#include "simulate/simulate.h"
#include "simulate/utilisation.h"
#include "train/plan/local_cluster.h"

namespace perigee::train {
namespace {

// Returns the result of `make`, or nothing where it throws: a run does not fail for a prediction.
template <class Make>
auto unless_refused(Make make) -> decltype(make()) {
  try {
    return make();
  } catch (const Error& error) {
    log::debug("steps are not predicted: {}", error.what());
    return std::nullopt;
  }
}

}  // namespace

std::optional<StepPrediction> predict_step(const compile::Programs& programs,
                                           const plan::Plan& plan, const job::Job& job,
                                           cost::Measurements& times,
                                           const std::string& runtime_folder) {
  return unless_refused([&]() -> std::optional<StepPrediction> {
    const auto begin = std::chrono::steady_clock::now();
    const auto cluster = cluster_of(job, {plan.mesh.size()}, runtime_folder);
    cost::NoMeasurements none;
    simulate::OpCosts costs(cluster, job.cluster.file.empty() ? times : none);
    const auto simulation = simulate::simulate(programs, plan.mesh, costs,
                                               {.stage_axis = plan.pipeline.axis});
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() -
                                                            begin;
    log::debug("step predicted in {:.2f} ms", taken.count());
    double waiting = 0;
    for (const auto& rank : simulation.ranks) waiting = std::max(waiting, rank.waiting);
    return StepPrediction{simulation.step_seconds, simulation.measured_share,
                          simulation.step_seconds > 0 ? waiting / simulation.step_seconds : 0};
  });
}

std::optional<double> mfu_of(const graph::Graph& graph, const plan::Plan& plan, const job::Job& job,
                             const std::string& runtime_folder, double step_seconds) {
  if (step_seconds <= 0) return std::nullopt;
  return unless_refused([&]() -> std::optional<double> {
    const auto cluster = cluster_of(job, {plan.mesh.size()}, runtime_folder);
    if (cluster.assumed) return std::nullopt;
    return simulate::utilisation(graph, plan, cluster, step_seconds).mfu;
  });
}

}  // namespace perigee::train
