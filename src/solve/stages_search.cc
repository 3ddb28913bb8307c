#include "solve/stages_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>

#include "base/fail.h"
#include "base/infinity.h"

namespace perigee::solve {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr double kMostStates = 1e8;  // layers x devices
// Least relative improvement: far above the rounding of a sum, far below the tolerance of a proof.
constexpr double kImprovement = 1e-12;

struct Candidate {
  int first, end;  // layers first..end-1
  int64_t devices;
  double time;
  int64_t successors;
  int index;
};

// Returns the greatest common divisor of the candidates' devices, the unit in which devices
// are counted.
int64_t device_unit(const StagesProblem& problem) {
  int64_t unit = 0;
  for (const auto& candidate : problem.candidates) {
    const auto& mesh = problem.submeshes[candidate.submesh];
    unit = std::gcd(unit, mesh.hosts * mesh.devices_per_host);
  }
  return std::max<int64_t>(unit, 1);
}

// Returns the candidates that fit, sorted by end, without those that another candidate for the same
// layers and devices dominates; devices in units.
std::vector<Candidate> useful_candidates(const StagesProblem& problem, int64_t unit) {
  std::vector<Candidate> all;
  for (size_t i = 0; i < problem.candidates.size(); ++i) {
    const auto& candidate = problem.candidates[i];
    const auto& mesh = problem.submeshes[candidate.submesh];
    const int64_t devices = mesh.hosts * mesh.devices_per_host;
    if (devices > problem.devices) continue;
    all.push_back({candidate.first, candidate.last + 1, devices / unit, candidate.time,
                   std::min<int64_t>(candidate.max_successors.value_or(kUnlimited), problem.layers),
                   static_cast<int>(i)});
  }
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(a.end, a.first, a.devices, a.time, -a.successors, a.index) <
           std::tuple(b.end, b.first, b.devices, b.time, -b.successors, b.index);
  });
  std::vector<Candidate> useful;
  int64_t most = -1;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& c = all[i];
    const bool same = i > 0 && all[i - 1].end == c.end && all[i - 1].first == c.first &&
                      all[i - 1].devices == c.devices;
    if (!same) most = -1;
    if (c.successors <= most) continue;  // an earlier one is at least as fast and allows as many
    most = c.successors;
    useful.push_back(c);
  }
  return useful;
}

// A range of the longest stage's time, as indices into the sorted times.
struct Node {
  size_t low, high;
  double sum;    // no sequence with stages up to times[high] has a smaller sum
  double bound;  // sum + (microbatches - 1) * times[low]
};

struct ByBound {
  bool operator()(const Node& a, const Node& b) const { return a.bound > b.bound; }
};

class StagesSearch {
 public:
  StagesSearch(const StagesProblem& problem, int64_t unit,
               std::chrono::steady_clock::time_point deadline)
      : problem_(problem),
        deadline_(deadline),
        candidates_(useful_candidates(problem, unit)),
        devices_(problem.devices / unit),
        width_(static_cast<size_t>(devices_) + 1),
        weight_(static_cast<double>(problem.microbatches - 1)) {
    by_end_.assign(problem.layers + 2, 0);
    for (const auto& c : candidates_) ++by_end_[c.end + 1];
    for (int l = 1; l < problem.layers + 2; ++l) by_end_[l] += by_end_[l - 1];
    for (const auto& c : candidates_) times_.push_back(c.time);
    std::sort(times_.begin(), times_.end());
    times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
  }

  StagesOutcome run();

 private:
  struct Label {
    int64_t stages;
    double sum;
    int candidate;  // the first stage of the suffix
    int rest;       // label of the suffix after it, in the pool
  };

  double target() const { return best_ ? best_time_ * (1 - kImprovement) : kInfinity; }
  double time_limit(const Node& node) const { return times_[node.high]; }
  void least_prefix(double longest);
  bool suffix(double longest, double most_sum, double& sum);
  bool settle(Node& node);
  void take(const std::vector<int>& sequence);

  const StagesProblem& problem_;
  const std::chrono::steady_clock::time_point deadline_;
  const std::vector<Candidate> candidates_;
  const int64_t devices_;  // in units
  const size_t width_;     // states per layer
  const double weight_;
  std::vector<size_t> by_end_;  // candidates that end at layer l: by_end_[l] .. by_end_[l + 1]
  std::vector<double> times_;
  // [layer][devices]: least sum of layers before it, successors ignored.
  std::vector<double> prefix_;
  std::vector<int> found_;  // sequence of the last suffix()
  std::optional<std::vector<int>> best_;
  double best_time_ = kInfinity;
};

void StagesSearch::least_prefix(double longest) {
  prefix_.assign((problem_.layers + 1) * width_, kInfinity);
  prefix_[0] = 0;
  for (const auto& c : candidates_) {  // ascending ends: preceding stages are complete
    if (c.time > longest) continue;
    const double* from = &prefix_[c.first * width_];
    double* to = &prefix_[c.end * width_ + c.devices];
    const size_t count = width_ - c.devices;
    for (size_t d = 0; d < count; ++d) {
      const double sum = from[d] + c.time;
      to[d] = sum < to[d] ? sum : to[d];
    }
  }
}

// Finds the sequence of least sum whose stages take at most `longest`, successors obeyed, if that
// sum is at most `most_sum`. Requires least_prefix(longest). Returns whether there is one.
bool StagesSearch::suffix(double longest, double most_sum, double& sum) {
  std::vector<Label> pool;
  std::vector<std::map<int64_t, std::vector<int>>> labels(
      problem_.layers + 1);  // [first layer][devices]: fewest stages first
  pool.push_back({0, 0.0, -1, -1});
  labels[problem_.layers][0] = {0};
  for (int end = problem_.layers; end > 0; --end) {
    for (const auto& [devices, suffixes] : labels[end]) {
      for (size_t k = by_end_[end]; k < by_end_[end + 1]; ++k) {
        const auto& c = candidates_[k];
        const int64_t total = devices + c.devices;
        if (c.time > longest || total > devices_) continue;
        const double before = prefix_[c.first * width_ + (devices_ - total)];
        if (before == kInfinity) continue;
        std::vector<int>* known = nullptr;
        for (const int rest : suffixes) {
          const Label label{pool[rest].stages + 1, pool[rest].sum + c.time, static_cast<int>(k),
                            rest};
          if (pool[rest].stages > c.successors) break;
          if (label.sum + before > most_sum) continue;
          if (!known) known = &labels[c.first][total];
          // Fewer stages and a smaller sum are both better.
          size_t at = 0;
          while (at < known->size() && pool[(*known)[at]].stages <= label.stages) ++at;
          bool dominated = false;
          for (size_t i = 0; i < at && !dominated; ++i)
            dominated = pool[(*known)[i]].sum <= label.sum;
          if (dominated) continue;
          if (at > 0 && pool[(*known)[at - 1]].stages == label.stages) --at;
          size_t worse = at;
          while (worse < known->size() && pool[(*known)[worse]].sum >= label.sum) ++worse;
          known->erase(known->begin() + at, known->begin() + worse);
          known->insert(known->begin() + at, static_cast<int>(pool.size()));
          pool.push_back(label);
        }
      }
    }
    labels[end].clear();
  }
  const auto complete = labels[0].find(devices_);
  if (complete == labels[0].end() || complete->second.empty()) return false;
  int label = complete->second.back();  // most stages, least sum
  sum = pool[label].sum;
  found_.clear();
  for (; pool[label].candidate >= 0; label = pool[label].rest)
    found_.push_back(candidates_[pool[label].candidate].index);
  return true;
}

void StagesSearch::take(const std::vector<int>& sequence) {
  double sum = 0, longest = 0;
  for (int i : sequence) {
    sum += problem_.candidates[i].time;
    longest = std::max(longest, problem_.candidates[i].time);
  }
  if (sum + weight_ * longest >= best_time_) return;
  best_time_ = sum + weight_ * longest;
  best_ = sequence;
}

// Finds the least sum for the range's longest time and removes the solved top of the range. Returns
// whether the range is not empty.
bool StagesSearch::settle(Node& node) {
  const double longest = time_limit(node);
  least_prefix(longest);
  const double relaxed = prefix_[problem_.layers * width_ + devices_];
  node.sum = std::max(node.sum, relaxed);
  node.bound = node.sum + weight_ * times_[node.low];
  if (!(node.bound <= target())) return false;
  double sum = 0;
  const double most_sum = best_ ? target() - weight_ * times_[node.low] : kInfinity;
  if (!suffix(longest, most_sum * (1 + 1e-15), sum)) return false;
  take(found_);
  node.sum = std::max(node.sum, sum);
  double used = 0;
  for (int i : found_) used = std::max(used, problem_.candidates[i].time);
  // No sequence whose longest stage takes at least `used` has a smaller sum.
  const size_t at = std::lower_bound(times_.begin(), times_.end(), used) - times_.begin();
  if (at <= node.low) return false;
  node.high = at - 1;
  node.bound = node.sum + weight_ * times_[node.low];
  return node.bound <= target();
}

StagesOutcome StagesSearch::run() {
  StagesOutcome outcome;
  outcome.lower_bound = kInfinity;
  if (times_.empty()) return outcome;
  std::priority_queue<Node, std::vector<Node>, ByBound> open;
  Node root{0, times_.size() - 1, 0, 0};
  if (settle(root)) open.push(root);
  while (!open.empty() && open.top().bound <= target()) {
    if (std::chrono::steady_clock::now() > deadline_) {
      outcome.finished = false;
      break;
    }
    const Node node = open.top();
    open.pop();
    const size_t middle = (node.low + node.high) / 2;
    Node lower{node.low, middle, node.sum, node.bound};
    if (settle(lower)) open.push(lower);
    if (middle == node.high) continue;
    Node upper{middle + 1, node.high, node.sum, node.sum + weight_ * times_[middle + 1]};
    if (upper.bound <= target() && settle(upper)) open.push(upper);
  }
  outcome.choice = best_;
  outcome.lower_bound = outcome.finished ? best_time_ : std::min(best_time_, open.top().bound);
  return outcome;
}

}  // namespace

StagesOutcome stages_by_search(const StagesProblem& problem,
                               std::chrono::steady_clock::time_point deadline) {
  const int64_t unit = device_unit(problem);
  if (problem.devices % unit != 0) return {.choice = std::nullopt, .lower_bound = kInfinity};
  const auto states = static_cast<double>(problem.layers + 1) *
                      static_cast<double>(problem.devices / unit + 1);
  if (states > kMostStates) {
    fail("solve",
         "layers x devices must be at most {:.0f}, but got {:.0f}; count devices in larger units",
         kMostStates, states);
  }
  return StagesSearch(problem, unit, deadline).run();
}

}  // namespace perigee::solve
