// Losses of microbatches: whether they combine to that of the batch.
#pragma once

#include <functional>
#include <optional>

#include "compile/compile.h"
#include "data/data.h"
#include "graph/graph.h"
#include "plan/plan.h"
#include "train/task/source.h"

namespace perigee::train {

// Logs that samples of a microbatch depend on each other, where the plan has several microbatches.
void log_coupling(const graph::Graph& graph, const plan::Plan& plan);

// Returns the training graph for two of the plan's microbatches, where `graph`, that for one, has a
// loss that is declared a mean or a sum without a proof and the plan cuts the batch; else nothing.
// It is what check_declared_loss runs. `evaluation`: steps are forward passes in eval mode.
std::optional<graph::Graph> graph_of_two(const ModelSource& source, const graph::Graph& graph,
                                         const plan::Plan& plan, bool evaluation);

// A loss of the samples of a step's first microbatches, computed forward only by all ranks.
struct LossRun {
  const graph::Graph& graph;
  plan::Plan plan;
};

// Compares the loss of the first two microbatches of a step as one batch with the losses of each,
// combined as declared. `run` computes one of them. Throws Error where they differ by more than
// rounding: the declaration is wrong.
void check_declared_loss(const graph::Graph& one, const graph::Graph& two, const plan::Plan& plan,
                         const std::function<double(const LossRun&)>& run);

}  // namespace perigee::train
