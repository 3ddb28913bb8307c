#include "search/layers/buckets.h"

#include <algorithm>
#include <map>
#include <utility>

namespace perigee::search {

std::vector<std::vector<size_t>> buckets_by_size(const std::vector<Member>& members, double least) {
  std::vector<std::vector<size_t>> buckets(1);
  double size = 0;
  for (size_t k = members.size(); k-- > 0;) {
    if (size >= least) {
      buckets.emplace_back();
      size = 0;
    }
    buckets.back().push_back(k);
    size += members[k].whole;
  }
  if (buckets.size() > 1 && size < least) {
    auto& first = buckets.front();
    first.insert(first.end(), buckets.back().begin(), buckets.back().end());
    buckets.pop_back();
  }
  return buckets;
}

std::vector<Bucket> buckets_of_block(const std::vector<Member>& members,
                                     const std::vector<std::vector<size_t>>& buckets,
                                     double seconds, int blocks) {
  // The last block of the backward pass: its first bucket has the remainder of the previous block;
  // its own remainder is in the first bucket of all.
  const double begin = seconds * (blocks - 1) / blocks;
  std::vector<std::pair<double, double>> ready;  // seconds, bytes
  double bytes = 0;
  for (size_t b = blocks > 1 ? 1 : 0; b < buckets.size(); ++b) {
    std::map<size_t, std::pair<double, double>> flats;
    for (size_t k : buckets[b]) {
      auto& [last, of_this] = flats[members[k].flat];
      last = std::max(last, members[k].ready);
      of_this += members[k].gradient;
    }
    for (const auto& [flat, found] : flats) {
      const auto [last, of_this] = found;
      if (last <= begin || of_this <= 0) continue;
      ready.emplace_back(last - begin, of_this);
      bytes += of_this;
    }
  }
  if (ready.size() < 2) return {};
  std::ranges::sort(ready);
  std::vector<Bucket> made;
  double before = 0;
  for (const auto& [at, of_this] : ready) {
    made.push_back({(at - before) * blocks / seconds, of_this / bytes});
    before = at;
  }
  return made;
}

}  // namespace perigee::search
