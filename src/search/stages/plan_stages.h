// Automatic stages: layers, the table of stages, and the sequence whose simulated step is shortest.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "methods/method.h"

namespace perigee::search {

// The job and the cluster of a request for stages, and functions of the caller.
struct StagesRequest {
  std::string cluster;                      // its name
  int64_t hosts = 1, devices_per_host = 1;  // that the stages use together
  bool measured = false;                    // rates are from measured times
  int64_t global_batch = 1;
  // Returns the request of a plan for the graph captured at so many samples.
  std::function<methods::PlanRequest(int64_t samples)> request;
  // Returns the cost of a step of a strategy's compiled programs. Throws Error.
  std::function<methods::PlanCost(const nlohmann::json& strategy)> cost;
  // Methods of scripts, which the option `methods` may name.
  std::vector<std::shared_ptr<const methods::Method>> defined = {};
};

// Returns the names of the options: `layers` (their number, or the first scopes of those after the
// first), `tolerance` (LayerCuts), `stage_layers` (numbers of layers: the stages are given, each has
// as many devices, and their views are chosen), `microbatches`, `submeshes` (SubmeshSpace::physical, or a list
// of {hosts, devices}), `views` (SubmeshSpace::logical), `choose` (of auto_sharding; by default
// storage and recompute, unless `methods` make these choices), `schedule`, `methods` (a list that
// every plan has), `profile`, `imbalance` and `forbid` (StageRules), `estimated` (for
// StagesRequest::cost), `file` (of the table: read where it exists, else written) and `most`
// (sequences that are simulated; of the fastest also variants, stage_variants.h). Returns
// {submesh_choices, layers, rows, text (the table), judged: [{stages, predicted, with (of a
// variant), seconds | refused}], stages (rows of the chosen sequence), with (of a chosen variant),
// strategy, seconds, lower_bound}. `stages` count rows from 0. A variant with the cuts of
// pipeline_parallel, which is judged where `layers` is not given, has the submeshes of its stages.
// Throws Error: for unknown options or methods, a file of another model or space, and with
// Status::infeasible where no sequence fits.
nlohmann::json plan_stages(const nlohmann::json& options, const StagesRequest& request);

}  // namespace perigee::search
