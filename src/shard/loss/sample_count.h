// Numbers in a loss that are the number of samples: two graphs tell them from other numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/graph.h"
#include "shard/loss/classify_loss.h"

namespace perigee::shard {

// Returns the number of samples of the graph's data; 0: none.
int64_t samples_of(const graph::Graph& graph);

// Returns whether the number is a multiple of a number of samples above 1, as far as rounding tells.
bool is_multiple(double number, int64_t samples);

// Returns whether an op of the forward pass has a number or makes a constant, either of which may
// depend on the number of samples.
bool may_have_sample_count(const graph::Graph& graph);

// Returns whether an op of the forward pass has a factor, divisor or constant that is likely to be the
// number of samples: it or its inverse is a multiple of that number.
bool seems_to_have_sample_count(const graph::Graph& graph);

// Returns the class of the graph's loss by means of the same model's graph of twice the samples: a
// factor or divisor that doubles with the samples is a multiple of their number, so that
// (loss / samples).sum() is a mean, and one that stays is not. The loss is mixed where factors
// change in another way; it is to be checked by number (LossClass::declared) where other numbers or
// constants change, such as a sum over ones for each sample.
LossClass classify_loss(const graph::Graph& graph, const graph::Graph& twice);

// How numbers change from a graph to that of twice the samples, which has the same nodes.
class CountedNumbers {
 public:
  // `twice` may be absent: then no number is known to change.
  CountedNumbers(const graph::Graph& graph, const graph::Graph* twice);

  bool known() const { return known_; }
  // Returns whether the node has a number that changes and is no factor, divisor or constant; or,
  // where no operand depends on samples, whether its result changes.
  bool changes_otherwise(size_t node, const std::function<bool(graph::ValueId)>& of_samples) const;
  // Returns the factor by which the node multiplies an operand that depends on samples, in the graph
  // of twice the samples and relative to this one: 1 as a rule and where no operand does, NaN where
  // a number that changes is no factor or divisor.
  double factor_of(size_t node, const std::function<bool(graph::ValueId)>& of_samples) const;

 private:
  const graph::Graph& graph_;
  const graph::Graph* twice_;
  bool known_ = false;
  std::vector<double> of_nodes_;   // of the node's own number; 1: none, or the same
  std::vector<double> of_values_;  // of a number in all elements; NaN: others of them change
};

}  // namespace perigee::shard
