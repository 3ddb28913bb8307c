#include "compile/memory/pack.h"

#include <algorithm>
#include <numeric>

namespace perigee::compile {

namespace {

// Within this share of the lower bound, no further order is tried.
constexpr double kGoodEnough = 1.003;
// Budget of comparisons with placed blocks for trying further orders.
constexpr int64_t kWork = 60'000'000;

int64_t most_in_use(const std::vector<Block>& blocks) {
  std::vector<std::pair<int64_t, int64_t>> changes;  // (time, bytes)
  changes.reserve(2 * blocks.size());
  for (const auto& block : blocks) {
    changes.emplace_back(block.start, align(block.bytes));
    changes.emplace_back(block.end, -align(block.bytes));
  }
  std::sort(changes.begin(), changes.end());  // at one time, ends are before starts
  int64_t now = 0, most = 0;
  for (const auto& [time, bytes] : changes) most = std::max(most, now += bytes);
  return most;
}

// Places blocks one by one, each at the lowest offset that is free over its lifetime.
class FirstFit {
 public:
  explicit FirstFit(const std::vector<Block>& blocks) : blocks_(blocks) {
    int64_t end = 1;
    for (const auto& block : blocks) end = std::max(end, block.end);
    // Short-lived blocks are found by time, long-lived ones are kept by offset.
    width_ = std::max<int64_t>(1, end / 256);
    buckets_.resize(end / width_ + 2);
  }

  Packing run(const std::vector<int32_t>& order) {
    for (auto& bucket : buckets_) bucket.clear();
    long_.clear();
    Packing result;
    result.offsets.assign(blocks_.size(), 0);
    for (int32_t b : order) {
      const auto& block = blocks_[b];
      const int64_t bytes = align(block.bytes);
      near_.clear();
      for (int64_t k = block.start / width_; k <= (block.end - 1) / width_; ++k) {
        for (const auto& other : buckets_[k]) {
          if (other.start < block.end && other.end > block.start) near_.push_back(other);
        }
        work_ += static_cast<int64_t>(buckets_[k].size());
      }
      std::sort(near_.begin(), near_.end(), [](const Placed& x, const Placed& y) {
        return x.offset != y.offset ? x.offset < y.offset : x.top < y.top;
      });
      int64_t at = 0;
      auto l = long_.begin();
      auto n = near_.begin();
      while (true) {
        while (l != long_.end() && !(l->start < block.end && l->end > block.start)) ++l;
        const bool from_long = l != long_.end() && (n == near_.end() || l->offset <= n->offset);
        if (!from_long && n == near_.end()) break;
        const Placed& next = from_long ? *l++ : *n++;
        if (next.offset >= at + bytes) break;
        at = std::max(at, next.top);
      }
      work_ += l - long_.begin();
      const Placed placed{at, at + bytes, block.start, block.end};
      if (block.end - block.start > width_) {
        long_.insert(
            std::upper_bound(long_.begin(), long_.end(), placed,
                             [](const Placed& x, const Placed& y) { return x.offset < y.offset; }),
            placed);
      } else {
        for (int64_t k = block.start / width_; k <= (block.end - 1) / width_; ++k) {
          buckets_[k].push_back(placed);
        }
      }
      result.offsets[b] = at;
      result.bytes = std::max(result.bytes, at + bytes);
    }
    return result;
  }

  int64_t work() const { return work_; }

 private:
  struct Placed {
    int64_t offset, top, start, end;
  };

  const std::vector<Block>& blocks_;
  int64_t width_ = 1;
  int64_t work_ = 0;
  std::vector<std::vector<Placed>> buckets_;  // by time / width_
  std::vector<Placed> long_;                  // by offset
  std::vector<Placed> near_;
};

}  // namespace

Packing pack(const std::vector<Block>& blocks) {
  const int64_t bound = most_in_use(blocks);
  const auto good = static_cast<int64_t>(static_cast<double>(bound) * kGoodEnough);
  std::vector<int32_t> all;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].bytes > 0 && blocks[b].end > blocks[b].start) {
      all.push_back(static_cast<int32_t>(b));
    }
  }
  FirstFit fit(blocks);
  Packing best;
  best.bytes = -1;
  std::vector<int32_t> best_order;
  auto attempt = [&](const std::vector<int32_t>& order) {
    Packing packing = fit.run(order);
    if (best.bytes < 0 || packing.bytes < best.bytes) {
      best = std::move(packing);
      best_order = order;
    }
    return best.bytes <= good;
  };
  auto sorted = [&](auto rank) {
    std::vector<int32_t> order = all;
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return rank(blocks[a]) > rank(blocks[b]); });
    return order;
  };
  auto duration = [](const Block& b) { return b.end - b.start; };
  const bool done =
      attempt(sorted([&](const Block& b) { return std::pair(duration(b), b.bytes); })) ||
      attempt(sorted([&](const Block& b) { return std::pair(b.bytes, duration(b)); })) ||
      attempt(sorted([&](const Block& b) {
        return static_cast<double>(b.bytes) * static_cast<double>(duration(b));
      })) ||
      attempt(sorted([&](const Block& b) { return -b.start; }));
  // Blocks that end above the bound are placed first in the next attempt.
  for (int round = 0; !done && round < 64 && fit.work() < kWork; ++round) {
    std::vector<int32_t> order = best_order;
    const int64_t limit = round % 2 == 0 ? bound : best.bytes - 1;
    std::stable_partition(order.begin(), order.end(), [&](int32_t b) {
      return best.offsets[b] + align(blocks[b].bytes) > limit;
    });
    const int64_t before = best.bytes;
    if (attempt(order)) break;
    if (best.bytes == before) {
      // Without a gain the next round starts from the changed order; each fourth round is the last.
      if (round % 4 == 3) break;
      best_order = order;
    }
  }
  best.bytes = std::max<int64_t>(best.bytes, 0);
  if (best.offsets.empty()) best.offsets.assign(blocks.size(), 0);
  best.lower_bound = bound;
  return best;
}

}  // namespace perigee::compile
