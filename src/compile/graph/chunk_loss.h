// The loss over a product's rows, a chunk of them at a time.
#pragma once

#include <cstdint>

#include "graph/graph.h"

namespace perigee::compile {

// Computes the head of a rank's graph in `chunks` chunks of rows: the largest product that the loss
// is made from without another product between, all that is made from its result (logits, by rows
// and classes), and the products with the gradient of the logits. So no more than a chunk of the
// logits and of their gradient exists at a time. How the rows of operands and results belong
// together follows from the sharding rules of the ops. Sums over rows add the chunks' sums, of 16
// bits in float32. In training all of it moves to the backward pass: the forward pass ends at the
// product's input. The graph stays as it is where a microbatch has one row, and in evaluation where
// the loss cannot be chunked.
//
// Throws Error where the loss is made from no product, an op between has no rule for its rows, the
// model returns logits, or the gradient of the logits depends on sums over all rows.
graph::Graph chunk_loss(const graph::Graph& graph, int64_t chunks);

}  // namespace perigee::compile
