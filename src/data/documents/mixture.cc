#include "data/documents/mixture.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "data/permutation.h"

namespace perigee::data {

// The samples are cut into blocks. In the first b blocks, which are n samples, a source has
// round(n * share) samples, and the source with the largest share has the others: their numbers never
// fall, since a block has at least (number of sources)^2 samples. Within a block the order is drawn.
Mixture::Mixture(std::vector<double> weights, uint64_t seed, bool in_order)
    : shares_(std::move(weights)), seed_(seed), in_order_(in_order) {
  const auto sum = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  for (auto& share : shares_) share /= sum;
  largest_ = static_cast<size_t>(std::ranges::max_element(shares_) - shares_.begin());
  if (shares_.size() > 1) {
    block_ = static_cast<int64_t>(
        std::bit_ceil(std::max<size_t>(64, shares_.size() * shares_.size())));
  }
}

int64_t Mixture::before(size_t source, int64_t block) const {
  return static_cast<int64_t>(
      std::floor(static_cast<double>(block * block_) * shares_[source] + 0.5));
}

Mixture::Place Mixture::at(int64_t sample) const {
  auto place = drawn_at(sample);
  if (!in_order_ || shares_.size() == 1) return place;
  const auto begin = sample / block_ * block_;
  place.sample = counts(begin)[place.source];
  for (auto earlier = begin; earlier < sample; ++earlier) {
    place.sample += drawn_at(earlier).source == place.source;
  }
  return place;
}

Mixture::Place Mixture::drawn_at(int64_t sample) const {
  if (shares_.size() == 1) return {0, sample};
  const auto block = sample / block_;
  const auto key = seed_ * 0x9e3779b97f4a7c15 ^ static_cast<uint64_t>(block) * 0xbf58476d1ce4e5b9;
  const Permutation permutation(static_cast<uint64_t>(block_), key);
  auto drawn = static_cast<int64_t>(permutation(static_cast<uint64_t>(sample % block_)));
  auto others = block * block_;  // samples of the largest source before the block
  for (size_t source = 0; source < shares_.size(); ++source) {
    if (source == largest_) continue;
    const auto first = before(source, block), count = before(source, block + 1) - first;
    others -= first;
    if (drawn >= 0 && drawn < count) return {source, first + drawn};
    drawn -= count;
  }
  return {largest_, others + drawn};
}

std::vector<int64_t> Mixture::counts(int64_t samples) const {
  std::vector<int64_t> counts(shares_.size(), 0);
  const auto blocks = samples / block_;
  auto others = blocks * block_;
  for (size_t source = 0; source < shares_.size(); ++source) {
    if (source == largest_) continue;
    counts[source] = before(source, blocks);
    others -= counts[source];
  }
  counts[largest_] = others;
  for (auto sample = blocks * block_; sample < samples; ++sample) ++counts[drawn_at(sample).source];
  return counts;
}

}  // namespace perigee::data
