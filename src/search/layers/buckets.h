// Buckets: gradients that are reduced together, at least of a given size, and when each reduction
// may begin.
#pragma once

#include <cstddef>
#include <vector>

namespace perigee::search {

// A part of a layer's gradients that is reduced at once, of one FlatGroup.
struct Bucket {
  double compute =
      0;  // of the layer's backward pass: since the previous bucket, or since its begin
  double reduced = 0;  // of the layer's bytes
};

// A parameter, in the order of the forward pass.
struct Member {
  double whole = 0;     // bytes, of all ranks
  double gradient = 0;  // bytes, of a rank
  size_t flat = 0;
  double ready = 0;  // seconds into the backward pass
};

// Returns the members of each reduction, from the last member on: each grows to `least` bytes; the
// remainder is reduced with the next layer's gradients.
std::vector<std::vector<size_t>> buckets_by_size(const std::vector<Member>& members, double least);

// Returns the buckets of one of `blocks` identical blocks, whose backward passes together take
// `seconds`; none where it has only one.
std::vector<Bucket> buckets_of_block(const std::vector<Member>& members,
                                     const std::vector<std::vector<size_t>>& buckets,
                                     double seconds, int blocks);

}  // namespace perigee::search
