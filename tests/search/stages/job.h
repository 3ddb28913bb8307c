// A small job for tests of automatic stages.
#pragma once

#include <string>

#include "methods/method.h"
#include "search/stages/make_stage_table.h"
#include "search/stages/plan_stages.h"
#include "tests/search/support.h"

namespace perigee::search {

// A request for a chain of blocks on `world` devices of `memory` bytes.
struct Job {
  graph::Graph graph = chain({.blocks = 5, .batch = 8, .width = 64});
  int64_t world = 4;
  double memory = 1e9;

  methods::PlanRequest request() const {
    methods::PlanRequest request;
    request.graph = &graph;
    request.world = world;
    request.device_bytes = [this](int64_t) { return memory; };
    request.rates = [](const graph::Graph&, const plan::Plan& plan) {
      methods::DeviceRates rates{.flops = 1e9, .bytes = 1e9, .host = 1e8, .links = {}};
      for (const auto& axis : plan.mesh.axes) rates.links[axis.name] = 2e8;
      return rates;
    };
    return request;
  }

  StageTableOptions options() const {
    return {.cluster = "a test",
            .microbatches = 4,
            .layers = {"blocks.1", "blocks.3"},
            .choose = {},
            .views = submesh_choices({.hosts = 1, .devices = world, .samples = 8})};
  }
};

// Returns the request for a job's stages at 8 samples a microbatch, in which each strategy takes a
// second less than the one before it.
inline StagesRequest stages_request(const Job& job) {
  StagesRequest request{.cluster = "a test",
                        .hosts = 1,
                        .devices_per_host = job.world,
                        .global_batch = 32,
                        .request = [&job](int64_t) { return job.request(); },
                        .cost = {}};
  request.cost = [left = 100.0](const nlohmann::json&) mutable {
    return methods::PlanCost{.seconds = left -= 1};
  };
  return request;
}

}  // namespace perigee::search
