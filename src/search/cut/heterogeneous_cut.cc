#include "search/cut/heterogeneous_cut.h"

#include <algorithm>

#include "base/infinity.h"

namespace perigee::search {
namespace {

class HeterogeneousCutting {
 public:
  explicit HeterogeneousCutting(const HeterogeneousRow& row)
      : row_(row),
        longest_(row.blocks - row.stages + 1),
        width_(static_cast<size_t>(row.blocks) + 1),
        weight_(static_cast<double>(row.microbatches - 1)) {
    for (int stage = 0; stage < row.stages; ++stage) {
      auto& times = times_.emplace_back(1);
      for (int length = 1; length <= longest_; ++length) {
        times.push_back(row.times(stage, length));
        if (times.back().fits) longests_.push_back(times.back().seconds);
      }
    }
    std::sort(longests_.begin(), longests_.end());
    longests_.erase(std::unique(longests_.begin(), longests_.end()), longests_.end());
  }

  std::optional<std::vector<int>> run() {
    if (longest_ < 1 || longests_.empty()) return std::nullopt;
    const double least = sum_up_to(longests_.back());  // no limit makes the sum smaller
    if (least == kInfinity) return std::nullopt;
    take();
    // The shortest longest stage for which there is a cut.
    const auto first = std::partition_point(
        longests_.begin(), longests_.end(),
        [&](double longest) { return sum_up_to(longest) == kInfinity; });
    for (auto longest = first; longest != longests_.end(); ++longest) {
      if (least + weight_ * *longest >= best_) break;
      const double sum = sum_up_to(*longest);
      take();
      if (sum <= least) break;
    }
    bound_rests();
    lengths_.clear();
    extend({.until_norm = row_.until_norm_bound});
    return found_;
  }

 private:
  const CutStageTimes& of(int stage, int length) const {
    return times_[static_cast<size_t>(stage)][static_cast<size_t>(length)];
  }

  // Returns the least sum of stages that all take at most `longest`; lengths_ is their cut.
  double sum_up_to(double longest) {
    std::vector<double> sums((static_cast<size_t>(row_.stages) + 1) * width_, kInfinity);
    std::vector<int> from(sums.size());
    sums[0] = 0;
    for (int stage = 0; stage < row_.stages; ++stage) {
      const auto* before = &sums[static_cast<size_t>(stage) * width_];
      for (int begin = stage; begin < row_.blocks; ++begin) {
        if (before[begin] == kInfinity) continue;
        for (int length = 1; length <= std::min(longest_, row_.blocks - begin); ++length) {
          const auto& times = of(stage, length);
          if (!times.fits || times.seconds > longest) continue;
          const auto to = static_cast<size_t>(stage + 1) * width_ + begin + length;
          if (before[begin] + times.seconds >= sums[to]) continue;
          sums[to] = before[begin] + times.seconds;
          from[to] = length;
        }
      }
    }
    lengths_.assign(static_cast<size_t>(row_.stages), 0);
    int end = row_.blocks;
    for (int stage = row_.stages; stage-- > 0 && sums.back() < kInfinity;) {
      const int length = from[static_cast<size_t>(stage + 1) * width_ + end];
      lengths_[static_cast<size_t>(stage)] = length;
      end -= length;
    }
    return sums.back();
  }

  // Sums and maxima over the first stages.
  struct Prefix {
    int stages = 0, blocks = 0;
    double sum = 0, longest = 0, backward = 0, until_norm = 0, optimizer = 0;
  };

  static Prefix with(Prefix made, const CutStageTimes& times, int length) {
    ++made.stages;
    made.blocks += length;
    made.sum += times.seconds;
    made.longest = std::max(made.longest, times.seconds);
    made.until_norm = std::max(made.until_norm, times.until_norm - made.backward);
    made.optimizer = std::max(made.optimizer, times.optimizer);
    made.backward += times.backward;
    return made;
  }

  double price(const Prefix& all) const {
    return all.sum + weight_ * all.longest + all.until_norm + all.optimizer;
  }

  // Keeps lengths_ as the result if they are the best so far.
  void take() {
    Prefix all{.until_norm = row_.until_norm_bound};
    for (int stage = 0; stage < row_.stages; ++stage) {
      const int length = lengths_[static_cast<size_t>(stage)];
      if (length == 0) return;
      all = with(all, of(stage, length), length);
    }
    if (price(all) >= best_) return;
    best_ = price(all);
    found_ = lengths_;
  }

  // Lower bounds for a stage and all later ones, which have a given number of blocks.
  struct Rest {
    double sum = kInfinity, longest = kInfinity;
  };

  void bound_rests() {
    rests_.assign((static_cast<size_t>(row_.stages) + 1) * width_, {});
    rests_[static_cast<size_t>(row_.stages) * width_] = {0, 0};
    for (int stage = row_.stages; stage-- > 0;) {
      for (int blocks = 1; blocks <= row_.blocks; ++blocks) {
        auto& rest = rests_[static_cast<size_t>(stage) * width_ + blocks];
        for (int length = 1; length <= std::min(longest_, blocks); ++length) {
          const auto& later = rests_[static_cast<size_t>(stage + 1) * width_ + blocks - length];
          const auto& times = of(stage, length);
          if (!times.fits || later.sum == kInfinity) continue;
          rest.sum = std::min(rest.sum, later.sum + times.seconds);
          rest.longest = std::min(rest.longest, std::max(later.longest, times.seconds));
        }
      }
    }
  }

  void extend(const Prefix& made) {
    if (made.stages == row_.stages) return take();
    const int most = std::min(longest_, row_.blocks - made.blocks);
    for (int length = 1; length <= most && tries_ < kMostCuts; ++length) {
      const auto& times = of(made.stages, length);
      if (!times.fits) continue;
      ++tries_;
      auto next = with(made, times, length);
      const auto& rest =
          rests_[static_cast<size_t>(next.stages) * width_ + row_.blocks - next.blocks];
      if (rest.sum == kInfinity) continue;
      auto least = next;
      least.sum += rest.sum;
      least.longest = std::max(least.longest, rest.longest);
      if (price(least) >= best_ * (1 - 1e-12)) continue;
      lengths_.push_back(length);
      extend(next);
      lengths_.pop_back();
    }
  }

  const HeterogeneousRow& row_;
  const int longest_;  // blocks of a stage
  const size_t width_;
  const double weight_;
  std::vector<std::vector<CutStageTimes>> times_;  // by stage and length
  std::vector<double> longests_;
  std::vector<Rest> rests_;  // by stage and blocks
  std::vector<int> lengths_;
  int64_t tries_ = 0;
  double best_ = kInfinity;
  std::optional<std::vector<int>> found_;
};

}  // namespace

std::optional<std::vector<int>> cut_heterogeneous(const HeterogeneousRow& row) {
  return HeterogeneousCutting(row).run();
}

bool has_few_cuts(const HeterogeneousRow& row) {
  // As if each stage had a block, with one more for each end that needs none.
  const int64_t blocks = row.blocks + 2 - row.fewest_first - row.fewest_last;
  const int64_t most = std::min<int64_t>(row.stages - 1, blocks - row.stages);
  int64_t count = 1;
  for (int64_t k = 1; k <= most && count <= kFewCuts; ++k) count = count * (blocks - k) / k;
  return count <= kFewCuts;
}

namespace {

// Calls `visit` with all lengths that begin with `lengths`.
void each_cut(const HeterogeneousRow& row, std::vector<int>& lengths, int left,
              const std::function<void(const std::vector<int>&)>& visit) {
  const int stage = static_cast<int>(lengths.size()), later_stages = row.stages - 1 - stage;
  const int least = later_stages == 0 ? left : stage == 0 ? row.fewest_first : 1;
  const int later_blocks = later_stages == 0 ? 0 : later_stages - 1 + row.fewest_last;
  for (int length = least; length <= left - later_blocks; ++length) {
    if (!row.times(stage, length).fits) continue;
    lengths.push_back(length);
    if (later_stages == 0) visit(lengths);
    if (later_stages > 0) each_cut(row, lengths, left - length, visit);
    lengths.pop_back();
  }
}

}  // namespace

std::vector<int> refine_cut(const HeterogeneousRow& row, std::vector<int> lengths,
                            const std::function<double(const std::vector<int>&)>& price) {
  double best = price(lengths);
  const auto look = [&](const std::vector<int>& other) {
    const double seconds = price(other);
    if (seconds >= best) return;
    best = seconds;
    lengths = other;
  };
  if (has_few_cuts(row)) {
    std::vector<int> made;
    each_cut(row, made, row.blocks, look);
    return lengths;
  }
  for (double before = kInfinity; best < before * (1 - 1e-9);) {
    before = best;
    const auto from = lengths;
    const auto within = [&](int stage) {
      const auto s = static_cast<size_t>(stage);
      return row.identical_inner && stage > 1 && stage + 2 < row.stages && from[s - 1] == from[s] &&
             from[s + 1] == from[s];
    };
    for (int give = 0; give < row.stages; ++give) {
      if (within(give)) continue;
      for (int take = 0; take < row.stages; ++take) {
        if (within(take)) continue;
        auto other = from;
        --other[static_cast<size_t>(give)];
        ++other[static_cast<size_t>(take)];
        const auto fits = [&](int stage) {
          const int length = other[static_cast<size_t>(stage)];
          return length > 0 && row.times(stage, length).fits;
        };
        if (give != take && fits(give) && fits(take)) look(other);
      }
    }
  }
  return lengths;
}

}  // namespace perigee::search
