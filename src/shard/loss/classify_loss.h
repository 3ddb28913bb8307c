// How a loss depends on the samples of a batch: whether the batch can be cut into microbatches.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "shard/loss/divisors.h"

namespace perigee::shard {

// How the losses of microbatches combine into the loss of the batch.
enum class LossKind { mean, sum, mixed };

struct LossClass {
  // Mean: unchanged when the samples are doubled; microbatches' losses are averaged. Sum: doubled;
  // they add up. Mixed: neither is proven; the batch cannot be split into microbatches.
  LossKind kind = LossKind::mean;
  // The first op that couples samples of a microbatch (batch norm, an expert's capacity, a balance
  // loss), as "OP in scope ..."; "": none. With coupling the mean (or sum) of the microbatches'
  // losses differs from the whole batch's loss, as it does in any gradient accumulation; sharding
  // over ranks does not change it.
  std::string coupling;
  // Where the proof ended, of a loss that is mixed or declared: "OP in scope ..., which ...".
  std::string ended;
  // The loss has no proof: the model declares it (perigee::reduction), or the proof takes constants
  // that depend on the number of samples for others. Is checked by number (check_declared_loss).
  bool declared = false;
  // False: the graph of twice the samples (sample_count.h) has other ops.
  bool comparable = true;
  // The loss requires those of the whole step (average_divisors).
  std::vector<Divisor> divisors;
};

// Follows the samples' dim through the ops' sharding rules, from the batched inputs to the loss,
// also past ops that cannot shard it: merged with other dims, and moved. Nothing is assumed of an
// op without a rule. A graph of one sample hides which dims have the samples: classify a graph of
// more where there is one.
LossClass classify_loss(const graph::Graph& graph);

// A model's declaration of its loss: a mean over samples, a sum, or a mean that is divided by tensors
// of the data.
enum class Declared { mean, sum, weighted };

// Returns the graph with the declaration between its loss, where it has one, and the output for the
// loss (perigee::reduction).
graph::Graph with_declaration(graph::Graph graph, Declared loss);
// Returns the graph of one sample with the proof that was found in the graph of more, which has the
// same nodes: divisors averaged, and the kind beside the loss.
graph::Graph with_proof(graph::Graph graph, const LossClass& proof);
// Returns the graph without one.
graph::Graph without_declaration(graph::Graph graph);

}  // namespace perigee::shard
