// From the whole graph to one rank's local graph: placements are propagated through sharding rules,
// redistributes become collectives, types become local.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"
#include "plan/plan.h"

namespace perigee::shard {

// What an axis that is not in space does to the loss: microbatches split the batch over time.
enum class LossKind { mean, sum, mixed };

// Placements for every value of the graph; for every node those its operands are wanted in and
// those its results come in. Where these differ from the value's own, a redistribute stands
// between. Indexed like graph.values and graph.nodes.
struct Sharding {
  std::vector<mesh::Placements> values;
  std::vector<std::vector<mesh::Placements>> operands;  // [node][operand in each_operand order]
  std::vector<std::vector<mesh::Placements>> results;   // [node][output]
  std::vector<std::string>
      replicated_ops;  // ops without a rule (or with an attribute no rule mentions), run replicated
};

// Decides a placement for every value, from the plan's pins and the ops' rules, choosing for each
// op the cheapest rule instance by bytes moved. Gradients of replicated parameters come out
// Partial; that is left to compile/.
Sharding propagate(const graph::Graph& graph, const plan::Plan& plan);

// One rank's graph. Inputs and outputs keep their names; types are local; `comm::` nodes move data.
// All ranks' graphs have the same nodes in the same order, so that passes treat them alike and
// every rank meets the same collectives; only types and arguments differ. So a rank's part of a sum
// is a node on each rank: it has the argument `part`, and is the value itself (perigee::reshape to
// the same shape) on the first rank of the axes, zeros (perigee::full with `part`, the value)
// elsewhere.
struct LocalGraph {
  graph::Graph graph;
  std::vector<mesh::Placements> inputs;  // like graph.inputs
  // Like graph.outputs. A gradient is Partial (not yet reduced) or replicated on axes where its
  // parameter is replicated, and lies as its parameter elsewhere. The loss may be Partial. Buffers
  // lie as their input, results are not Partial.
  std::vector<mesh::Placements> outputs;
};

LocalGraph partition(const graph::Graph& graph, const Sharding& sharding, const plan::Plan& plan,
                     int64_t rank);

// How the loss depends on the batch dim of the data inputs.
struct LossClass {
  // The same for twice the samples (mean: the losses of microbatches are averaged) or twice as much
  // (sum: they add up). `mixed` cannot be split over microbatches.
  LossKind kind = LossKind::mean;
  // Where samples of a microbatch see each other (an expert's capacity and the balance loss of a
  // mixture of experts, batch norm), as "OP in scope ..."; "": nowhere. Where they do, the mean (or
  // sum) of the microbatches' losses is what gradient accumulation computes anywhere, and another
  // number than the loss of the whole batch; over ranks it is the same.
  std::string coupling;
};
LossClass classify_loss(const graph::Graph& graph);

}  // namespace perigee::shard
