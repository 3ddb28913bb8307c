// The share of the devices' peak that a step uses.
#pragma once

#include "cost/cluster.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::simulate {

struct Utilisation {
  double flops = 0;  // of the model in a step: forward and backward pass, without recomputation
  // Model FLOPs utilisation (Chowdhery et al. 2022): the time of `flops` at the matrix peaks of all
  // ranks, divided by the step time. Causal attention counts only the half that it computes.
  double mfu = 0;
};

// `graph` is the captured one, at the shapes of the plan's global microbatch.
Utilisation utilisation(const graph::Graph& graph, const plan::Plan& plan,
                        const cost::Cluster& cluster, double step_seconds);

}  // namespace perigee::simulate
