// Time of propagation, partition and planned shardings (on one axis, and on two axes together)
// of a 96-layer transformer, against the capture of the same graph. Prints nodes, milliseconds
// and ratios.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "capture/capture.h"
#include "shard/partition.h"
#include "shard/solver/planned_shardings.h"

namespace {

namespace nn = torch::nn;

// Returns the median of five runs, in milliseconds.
double milliseconds(const std::function<void()>& run) {
  std::vector<double> times;
  for (int k = 0; k < 5; ++k) {
    const auto start = std::chrono::steady_clock::now();
    run();
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::sort(times.begin(), times.end());
  return times[2];
}

}  // namespace

int main() {
  using namespace perigee;
  auto model = nn::TransformerEncoder(
      nn::TransformerEncoderOptions(nn::TransformerEncoderLayerOptions(64, 4), 96));
  const Batch batch = {{"x", torch::randn({16, 8, 64})}};
  graph::Graph graph;
  const double capture_ms = milliseconds([&] {
    graph = capture(*model, batch, [&](const Batch& b) {
              return Result{model->forward(b.at("x")).square().mean()};
            }).graph;
  });
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(graph);
  plan.mesh.axes = {{"tensor", 2}, {"data", 4}};
  for (const auto& input : graph.inputs) {
    if (input.name.ends_with("linear1.weight"))
      plan.placements[input.name] = mesh::parse_placements("S0,R");
    if (input.name.ends_with("linear2.weight"))
      plan.placements[input.name] = mesh::parse_placements("S1,R");
  }
  shard::Sharding sharding;
  const double propagate_ms = milliseconds([&] { sharding = shard::propagate(graph, plan); });
  shard::LocalGraph local;
  const double partition_ms = milliseconds(
      [&] { local = shard::partition(graph, sharding, plan, 0); });
  std::printf("%zu nodes: propagate %.1f ms, partition %.1f ms (%zu nodes), capture %.1f ms\n",
              graph.nodes.size(), propagate_ms, partition_ms, local.graph.nodes.size(), capture_ms);
  std::printf("propagate / capture: %.2f\n", propagate_ms / capture_ms);
  auto unplanned = plan;
  unplanned.placements.clear();
  const auto bench_planned = [&](const char* what, const std::vector<std::string>& axes) {
    shard::PlannedShardings found;
    const double planned_ms = milliseconds([&] {
      auto planned = unplanned;
      found = shard::place_planned(planned, graph, {.axes = axes});
    });
    std::printf("%s: %.1f ms, %zu weights split, %zu pins, cost %.6g, bound %.6g\n", what,
                planned_ms, found.split.size(), found.pins, found.cost, found.bound);
    std::printf("%s / capture: %.2f\n", what, planned_ms / capture_ms);
  };
  bench_planned("planned", {"tensor"});
  unplanned.mesh.axes.insert(unplanned.mesh.axes.begin() + 1, {"sequence", 2});
  bench_planned("planned together on two axes", {"tensor", "sequence"});
  for (const auto& op : sharding.replicated_ops) std::printf("replicated: %s\n", op.c_str());
}
