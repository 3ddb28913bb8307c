// Makes the table of stages of a model on a cluster: the exact solver shards the ops of each range
// of layers on each submesh, with storage, recomputation and offload where they are allowed.
#pragma once

#include <string>
#include <vector>

#include "methods/method.h"
#include "search/stages/stage_table.h"

namespace perigee::search {

struct StageTableOptions {
  std::string cluster;  // its name
  int64_t microbatches = 1;
  std::vector<std::string> layers;  // first scope of each layer after the first
  std::vector<std::string> choose;  // auto_sharding's: storage, recompute, offload
  std::vector<SubmeshView> views;
  bool measured = false;
  bool one_layer = false;  // a stage has one layer, and there are no rows of several
  StageRules rules = {};
  plan::Precision precision = {};  // of all stages
};

// `request`: its graph is captured at one microbatch; it has the devices' memory and rates, and
// `world` ranks, all of which the stages use. Ranges that fit no memory have no row; a range that
// fits with fewer microbatches in flight at a lower cost has a row for each. Throws Error, with
// Status::infeasible where no row remains.
StageTable make_stage_table(const methods::PlanRequest& request, const StageTableOptions& options);

}  // namespace perigee::search
