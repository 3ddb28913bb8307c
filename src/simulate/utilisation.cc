#include "simulate/utilisation.h"

#include "cost/flops.h"

namespace perigee::simulate {

Utilisation utilisation(const graph::Graph& graph, const plan::Plan& plan,
                        const cost::Cluster& cluster, double step_seconds) {
  double flops = 0, ideal = 0;  // ideal: rank seconds
  const auto ranks = plan.mesh.size();
  // Peaks of the first rank's device; other devices of a mixed cluster are weighed below.
  const auto& first = cluster.device(plan.mesh.order.empty() ? 0 : plan.mesh.order.front());
  for (const auto& node : graph.nodes) {
    const auto work = cost::work_of(graph, node);
    if (!work.matrix) continue;
    const auto dtype = plan.precision.dtype.value_or(work.dtype);
    flops += work.flops;
    ideal += work.flops / first.peak_of(dtype);
  }
  const auto times = static_cast<double>(plan.microbatches * plan::copies_of(plan));
  Utilisation result{.flops = flops * times};
  if (flops == 0 || step_seconds <= 0) return result;
  // The peak of a rank of the first kind, and the number of such ranks with the peak of all ranks.
  const auto peak = flops / ideal;
  double worth = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    const auto& device = cluster.device(plan.mesh.order.empty() ? r : plan.mesh.order[r]);
    const auto dtype = plan.precision.dtype.value_or(graph::DType::float32);
    worth += device.peak_of(dtype) / first.peak_of(dtype);
  }
  result.mfu = result.flops / peak / worth / step_seconds;
  return result;
}

}  // namespace perigee::simulate
