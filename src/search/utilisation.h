// How much of what the devices could compute a plan's step uses.
#pragma once

#include "cost/cluster.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::search {

struct Utilisation {
  double flops = 0;  // of the model in a step: forward and backward pass, nothing twice
  double mfu = 0;    // model FLOPs utilisation (Chowdhery et al. 2022): their time at the matrix
                     // peaks of all ranks, over the step's; causal attention counts the half that
                     // it computes
};

// `graph` is the captured one, at the shapes of the plan's global microbatch.
Utilisation utilisation(const graph::Graph& graph, const plan::Plan& plan,
                        const cost::Cluster& cluster, double step_seconds);

}  // namespace perigee::search
