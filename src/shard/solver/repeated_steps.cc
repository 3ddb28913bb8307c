#include "shard/solver/repeated_steps.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "shard/propagate/content_key.h"

namespace perigee::shard {
namespace {

constexpr size_t kLeastSteps = 4;
constexpr size_t kLeastNodes = 16;  // that the steps cover
// A period is a distance between a node and one of the next nodes of its kind, and among those that
// occur most often.
constexpr int kNextOfKind = 4;
constexpr size_t kMostPeriods = 16;

struct Steps {
  size_t begin = 0, period = 0, covered = 0;  // nodes
};

class StepFinder {
 public:
  explicit StepFinder(const std::vector<int>& kinds) : kinds_(kinds), first_(kinds.size()) {
    std::iota(first_.begin(), first_.end(), size_t{0});
  }

  void find(size_t begin, size_t end) {
    while (end - begin >= kLeastNodes) {
      const auto steps = longest(begin, end);
      if (steps.covered == 0) return;
      find(begin, steps.begin);
      find(steps.begin, steps.begin + steps.period);
      for (size_t n = steps.begin + steps.period; n < steps.begin + steps.covered; ++n) {
        first_[n] = first_[n - steps.period];
      }
      begin = steps.begin + steps.covered;
    }
  }

  std::vector<size_t> first() && { return std::move(first_); }

 private:
  // Returns the most frequent distances between nodes of one kind, ascending.
  std::vector<size_t> periods(size_t begin, size_t end) const {
    std::unordered_map<int, std::vector<size_t>> places;
    std::map<size_t, size_t> count;
    for (size_t n = begin; n < end; ++n) {
      auto& own = places[kinds_[n]];
      for (size_t k = own.size(); k > 0 && own.size() - k < kNextOfKind; --k) {
        if ((n - own[k - 1]) * kLeastSteps <= end - begin) ++count[n - own[k - 1]];
      }
      own.push_back(n);
    }
    std::vector<std::pair<size_t, size_t>> most(count.begin(), count.end());
    std::ranges::stable_sort(most, std::greater<>(), &std::pair<size_t, size_t>::second);
    most.resize(std::min(most.size(), kMostPeriods));
    std::vector<size_t> periods;
    for (const auto& [period, times] : most) periods.push_back(period);
    std::ranges::sort(periods);
    return periods;
  }

  Steps longest(size_t begin, size_t end) const {
    Steps best;
    for (const size_t period : periods(begin, end)) {
      size_t equal = 0;
      for (size_t n = begin; n + period <= end; ++n) {
        if (n + period < end && kinds_[n] == kinds_[n + period]) {
          ++equal;
          continue;
        }
        const size_t covered = equal + period;  // the last step may end early
        const bool enough = covered >= std::max(kLeastNodes, kLeastSteps * period);
        if (enough && covered > best.covered) best = {n - equal, period, covered};
        equal = 0;
      }
    }
    return best;
  }

  const std::vector<int>& kinds_;
  std::vector<size_t> first_;
};

}  // namespace

std::vector<size_t> find_repeated_steps(const std::vector<int>& kinds) {
  StepFinder finder(kinds);
  finder.find(0, kinds.size());
  return std::move(finder).first();
}

void fold_repeated_steps(const graph::Graph& graph, const ShardingOptions& node_options,
                         std::vector<size_t>& representative) {
  Numbering known;
  std::vector<int> kinds;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    // A node that another one represents is of no kind that repeats.
    kinds.push_back(-1 - static_cast<int>(n));
    if (representative[n] != n) continue;
    const auto& node = graph.nodes[n];
    ContentKey key;
    key.put(node.scope);
    key.put(node.op);
    key.put(static_cast<int64_t>(node.phase));
    key.put(node_options.number(n));
    const auto put = [&](graph::ValueId v) {
      key.put(int{v.defined()});
      if (!v.defined()) return;
      const auto& type = graph.type(v);
      key.put(static_cast<int64_t>(type.dtype));
      key.put(static_cast<int64_t>(type.shape.size()));
      for (const auto size : type.shape) key.put(size);
    };
    node.each_operand(put);
    for (const auto v : node.outputs) put(v);
    kinds.back() = known.of(key.bytes()).first;
  }
  const auto first = find_repeated_steps(kinds);
  for (auto& own : representative) own = first[own];
}

}  // namespace perigee::shard
