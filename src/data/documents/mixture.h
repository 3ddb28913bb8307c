// The order of samples of several sources.
#pragma once

#include <cstdint>
#include <vector>

namespace perigee::data {

// Divides the samples 0, 1, ... of a run among sources by weight. Of the samples before any one, each
// source has its share to within a few samples, and none is ever left out. A pure function, hence
// resumable and the same for every number of ranks.
class Mixture {
 public:
  // Weights are positive. `in_order`: a source's samples come in their order, so that those of the
  // first n places are its first ones; else in an order that is drawn block by block.
  Mixture(std::vector<double> weights, uint64_t seed, bool in_order = false);

  struct Place {
    size_t source = 0;
    int64_t sample = 0;  // among the source's samples, from 0; each has one place
  };
  Place at(int64_t sample) const;

  // Returns how many of the first `samples` samples are of each source.
  std::vector<int64_t> counts(int64_t samples) const;

 private:
  Place drawn_at(int64_t sample) const;
  // Returns how many samples of a source are in the first `block` blocks; not of the largest one.
  int64_t before(size_t source, int64_t block) const;

  std::vector<double> shares_;
  uint64_t seed_;
  bool in_order_;
  size_t largest_ = 0;
  int64_t block_ = 1;  // samples
};

}  // namespace perigee::data
