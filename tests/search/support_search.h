// Searches for plans of the chain (support.h).
#pragma once

#include <algorithm>
#include <map>

#include "methods/method.h"
#include "search/search.h"
#include "tests/search/support.h"

namespace perigee::search {

inline cost::Cluster cluster(int64_t ranks, double memory = 1e9) {
  cost::DeviceSpec device{.name = "d", .count = ranks, .memory = memory, .bandwidth = 1e10};
  device.peak = {{graph::DType::float32, 1e12}};
  device.vector = 1e11;
  device.launch = 1e-7;
  cost::Cluster cluster{"test", {device}, {}};
  if (ranks > 1) cluster.links = {{"node", ranks, 1e-6, 1e9, ""}};
  return cluster;
}

// Plans a chain on `world` ranks: the request of a search, and calls of the search with it.
struct ChainPlanner {
  explicit ChainPlanner(Chain shape, int64_t world) : shape(shape) {
    request.graph = [this](int64_t samples) -> const graph::Graph& {
      auto at = this->shape;
      at.batch = samples;
      return graphs.try_emplace(samples, chain(at)).first->second;
    };
    request.spec = [](const graph::Graph&) { return compile::StepSpec{}; };
    request.global_batch = shape.batch;
    request.world = world;
  }
  Chain shape;
  std::map<int64_t, graph::Graph> graphs;
  Request request;
  cost::NoMeasurements none;
  compile::NoTraces traces;

  Found find(const cost::Cluster& on) { return search::find(request, on, none, traces); }

  // Returns all combinations under the pins.
  std::vector<Candidate> candidates(const cost::Cluster& on, const nlohmann::json& pins) {
    request.pins = parse_pins(pins);
    return search::candidates(request, on, none, traces, 100000);
  }

  // Compiles and simulates a candidate. `peak`: the largest peak memory of a rank, in bytes.
  simulate::Simulation judge(const Candidate& candidate, const cost::Cluster& on, double& peak) {
    const auto& graph = request.graph(candidate.choice.micro * candidate.choice.batch());
    methods::PlanRequest plan_request{.graph = &graph,
                                      .global_batch = request.global_batch,
                                      .world = request.world,
                                      .world_given = true};
    const auto plan = methods::make_plan(methods::from_json(candidate.strategy, "test"),
                                         plan_request);
    const auto programs = compile::compile_all(graph, plan, {}, traces);
    const auto peaks = compile::predict_memory(programs).peak_bytes;
    peak = double(*std::max_element(peaks.begin(), peaks.end()));
    simulate::OpCosts costs(on, none);
    return simulate::simulate(programs, plan.mesh, costs);
  }
};

}  // namespace perigee::search
