// The numbers by which a loss divides: sums of weights or counts over the samples of a whole step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/graph.h"

namespace perigee::shard {

// A number by which a loss divides and which depends on data only: a sum or mean over samples, or a
// function of one, such as a sum that is raised to at least 1.
struct Divisor {
  // The sum or mean, then functions of it, each of the one before; the divisor last.
  std::vector<graph::ValueId> values;
  bool mean = false;  // the first value is a mean
  bool operator==(const Divisor&) const = default;
};

// How the values of a graph depend on samples.
struct Dependence {
  std::function<bool(graph::ValueId)> of_samples;  // on any
  std::function<bool(graph::ValueId)> is_sum;      // as a sum over all
  std::function<bool(graph::ValueId)> is_mean;     // as a mean over all, not as a function of one
  std::function<bool(graph::ValueId)> of_data;  // on data and fixed values (Graph::is_fixed) alone
};

// Returns the number as a function of one sum or mean over samples and of fixed values. Without
// values: it is none.
Divisor find_divisor(const graph::Graph& graph, graph::ValueId number,
                     const Dependence& dependence);

// Returns whether the divisor is that of the whole step already.
bool is_of_step(const graph::Graph& graph, const Divisor& divisor);

// Returns the graph in which the divisors of a loss (LossClass::divisors) are those of the whole step,
// in the forward and the backward pass: sums and means are averaged over the step's microbatches
// (perigee::step_average), before functions of means; functions of sums are computed from the sum
// over all microbatches and divided by the number of microbatches (perigee::step_share). With one
// microbatch the numbers are the same.
graph::Graph average_divisors(graph::Graph graph, const std::vector<Divisor>& divisors);

// Returns the graph in which every perigee::step_share is a division by the number of microbatches.
graph::Graph with_shares(graph::Graph graph, int64_t microbatches);

}  // namespace perigee::shard
