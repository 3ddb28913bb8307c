#include "train/forecast.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "search/simulate.h"
#include "search/utilisation.h"
#include "train/local_cluster.h"

namespace perigee::train {
namespace {

// Returns what `make` does, or nothing where it throws: no run fails for what is told beside it.
template <class Make>
auto unless_refused(Make make) -> decltype(make()) {
  try {
    return make();
  } catch (const Error& error) {
    log::debug("steps are not foretold: {}", error.what());
    return std::nullopt;
  }
}

}  // namespace

std::optional<Forecast> forecast_of(const compile::Programs& programs, const plan::Plan& plan,
                                    const job::Job& job, cost::Measurements& times,
                                    const std::string& runtime_folder) {
  return unless_refused([&]() -> std::optional<Forecast> {
    const auto begin = std::chrono::steady_clock::now();
    const auto cluster = cluster_of(job, plan.mesh.size(), runtime_folder);
    cost::NoMeasurements none;
    search::OpCosts costs(cluster, job.cluster.file.empty() ? times : none);
    const auto simulation =
        search::simulate(programs, plan.mesh, costs, {.stage_axis = plan.pipeline.axis});
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    log::debug("steps are foretold after {:.2f} ms", taken.count());
    double waiting = 0;
    for (const auto& rank : simulation.ranks) waiting = std::max(waiting, rank.waiting);
    return Forecast{simulation.step_seconds, simulation.measured_share,
                    simulation.step_seconds > 0 ? waiting / simulation.step_seconds : 0};
  });
}

std::optional<double> mfu_of(const graph::Graph& graph, const plan::Plan& plan, const job::Job& job,
                             const std::string& runtime_folder, double step_seconds) {
  if (step_seconds <= 0) return std::nullopt;
  return unless_refused([&]() -> std::optional<double> {
    const auto cluster = cluster_of(job, plan.mesh.size(), runtime_folder);
    if (cluster.assumed) return std::nullopt;
    return search::utilisation(graph, plan, cluster, step_seconds).mfu;
  });
}

}  // namespace perigee::train
