#include "train/plan/ask_devices.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "train/step/step_spec.h"

namespace perigee::train {
namespace {

methods::DeviceRates rates_of(const cost::Cluster& cluster, const plan::Plan& plan,
                              const graph::Graph& graph) {
  const auto& device = cluster.device(0);
  graph::DType dtype = graph::DType::float32;
  for (const auto& input : graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) dtype = graph.type(input.value).dtype;
  }
  methods::DeviceRates rates{
      .flops = device.matrix_efficiency * device.peak_of(plan.precision.dtype.value_or(dtype)),
      .bytes = device.memory_efficiency * device.bandwidth,
      .host = device.host,
      .links = {}};
  const bool ragged = plan.mesh.is_ragged();
  auto ranks = mesh::ranks(plan.mesh);
  if (!ragged) ranks.resize(1);  // groups of all ranks have equal links
  for (const auto& axis : plan.mesh.axes) {
    if (ragged && axis.name == plan.mesh.axes.back().name) continue;  // no group is over it alone
    double link = std::numeric_limits<double>::infinity();
    for (const auto rank : ranks) {
      const int level = cost::level_of(cluster,
                                       mesh::group_of(plan.mesh, std::span(&axis.name, 1), rank));
      if (level >= 0) link = std::min(link, cluster.links[level].bandwidth);
    }
    rates.links[axis.name] = std::isfinite(link) ? link : rates.bytes;
  }
  return rates;
}

}  // namespace

void ask_devices(methods::PlanRequest& request, const job::Job& job,
                 std::function<cost::Cluster(int64_t ranks)> cluster,
                 std::shared_ptr<compile::TraceSource> traces) {
  const auto states = compile::optimizer_states(step_spec(job, *request.graph));
  request.state_share = static_cast<double>(states.size());
  request.rates = [cluster = std::move(cluster)](const graph::Graph& graph,
                                                 const plan::Plan& plan) {
    return rates_of(cluster(plan.mesh.size()), plan, graph);
  };
  request.as_computed = compile::as_computed;
  request.peak_bytes = [job, traces = std::move(traces)](const graph::Graph& graph,
                                                         const plan::Plan& plan) {
    const auto spec = step_spec(job, graph);
    const auto fitted = compile::fit_recompute(graph, plan, spec, *traces);
    const auto peaks = compile::predict_memory(graph, fitted, spec, *traces).peak_bytes;
    return static_cast<double>(*std::max_element(peaks.begin(), peaks.end()));
  };
}

}  // namespace perigee::train
