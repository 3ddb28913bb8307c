// Finds dominated labels of one state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace perigee::solve {

// The non-dominated labels of one state, added in ascending time. A label is dominated if a kept
// one uses no more of any term.
class LabelFront {
 public:
  explicit LabelFront(size_t width) : width_(width) {}
  void clear() {
    least_ = std::numeric_limits<int64_t>::max();
    stairs_.clear();
    labels_.clear();
    empty_ = true;
  }
  // Returns whether the label is dominated; keeps it where it is not.
  bool dominated(const int64_t* memory) {
    if (width_ == 0) return !std::exchange(empty_, false);
    if (width_ == 1) {
      if (memory[0] >= least_) return true;
      least_ = memory[0];
      return false;
    }
    return width_ == 2 ? on_stairs(memory) : among_labels(memory);
  }

 private:
  // Limit on the kept labels that a label of three or more terms is compared with.
  static constexpr size_t kCompared = 2048;

  // Ascending in the first term, descending in the second.
  bool on_stairs(const int64_t* memory) {
    const std::pair<int64_t, int64_t> point(memory[0], memory[1]);
    auto above = std::upper_bound(stairs_.begin(), stairs_.end(), point.first,
                                  [](int64_t x, const auto& stair) { return x < stair.first; });
    if (above != stairs_.begin() && std::prev(above)->second <= point.second) return true;
    auto begin = above;
    if (begin != stairs_.begin() && std::prev(begin)->first == point.first) --begin;
    auto end = begin;
    while (end != stairs_.end() && end->second >= point.second) ++end;
    if (begin == end) {
      stairs_.insert(begin, point);
    } else {
      *begin = point;
      stairs_.erase(begin + 1, end);
    }
    return false;
  }
  bool among_labels(const int64_t* memory) {
    const size_t count = labels_.size() / width_;
    for (size_t i = 0; i < count; ++i) {
      const int64_t* other = &labels_[i * width_];
      size_t k = 0;
      while (k < width_ && other[k] <= memory[k]) ++k;
      if (k < width_) continue;
      // Move it forward: it is likely to dominate other labels.
      if (i > 0)
        std::swap_ranges(labels_.begin() + i * width_, labels_.begin() + (i + 1) * width_,
                         labels_.begin() + i / 2 * width_);
      return true;
    }
    if (count < kCompared) labels_.insert(labels_.end(), memory, memory + width_);
    return false;
  }

  size_t width_;
  bool empty_ = true;
  int64_t least_ = std::numeric_limits<int64_t>::max();
  std::vector<std::pair<int64_t, int64_t>> stairs_;
  std::vector<int64_t> labels_;
};

}  // namespace perigee::solve
