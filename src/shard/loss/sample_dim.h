// The position of the samples in a tensor, and ops that move it in other ways than their rules say.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace perigee::shard {

// A dim of [outer, samples, inner] elements: the samples alone where outer and inner are 1, else
// merged with other dims.
struct SampleDim {
  int dim = -1;
  int64_t inner = 1;
  bool operator==(const SampleDim&) const = default;
};

// Returns the samples' position after a reshape in row-major order, or nothing where no single dim
// has them all. A reshape of one sample may leave several dims to choose from: a dim of size 1 is
// taken, else the outermost.
std::optional<SampleDim> reshaped(const std::vector<int64_t>& from, const std::vector<int64_t>& to,
                                  SampleDim samples, int64_t count);

// Returns the samples' position in result `r` of an op for which the dim's position does not follow
// from a letter of its rule, as far as the samples stay independent:
//   cat along the samples' dim of tensors that all have them ([a; b] is [2, samples]);
//   slice and split of that dim into whole sets of samples;
//   the bags of an embedding bag, each with indices of one sample;
//   self[arange(samples), index], an element of each sample.
// `operands`: by operand in each_operand order; nothing: without samples.
std::optional<SampleDim> moved(const graph::Graph& graph, const graph::Node& node, size_t r,
                               const std::vector<std::optional<SampleDim>>& operands,
                               int64_t count);

}  // namespace perigee::shard
