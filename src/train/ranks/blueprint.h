// Everything a rank needs to compile and run its program.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "exec/comm/communicator.h"
#include "graph/graph.h"
#include "job/job.h"
#include "plan/plan.h"

namespace perigee::train {

struct Blueprint {
  graph::Graph training;    // loss, gradients, new buffers
  graph::Graph evaluation;  // forward pass in eval mode, same batch
  // Computes the first values of parameters and buffers; empty: rank 0 has them in tensors.
  graph::Graph init;
  std::map<std::string, std::string> tied;  // further names of parameters
  plan::Plan plan;
  // The training graph for two microbatches, where the loss is declared without a proof and the
  // plan cuts the batch (train/step/check_loss.h).
  std::optional<graph::Graph> two_microbatches = {};
};

// Returns rank 0's blueprint on every rank of the communicator. Then compares the plan's hash over
// all ranks: throws Error naming a rank that has another. All ranks call it.
Blueprint share(Blueprint blueprint, exec::Communicator& communicator);

}  // namespace perigee::train
