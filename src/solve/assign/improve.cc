#include "solve/assign/improve.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace perigee::solve {
namespace {

constexpr size_t kCrossed = 14;  // newest solutions that are paired

// The pairs of each variable, for changing one option at a time.
class Changes {
 public:
  explicit Changes(const AssignModel& model) : model_(model), pairs_(model.variables.size()) {
    for (size_t e = 0; e < model.pairs.size(); ++e) {
      pairs_[model.pairs[e].u].push_back(static_cast<int>(e));
      pairs_[model.pairs[e].v].push_back(static_cast<int>(e));
    }
  }
  // Returns the time of v's option j and its pairs, the other variables as in `solution`; at least
  // kForbidden where forbidden.
  int64_t time(std::span<const int> solution, int v, int j) const {
    int64_t total = model_.variables[v].uses[j].time;
    for (int e : pairs_[v]) {
      const auto& pair = model_.pairs[e];
      const int width = model_.variables[pair.v].size();
      total += pair.u == v ? pair.time[j * width + solution[pair.v]]
                           : pair.time[solution[pair.u] * width + j];
      if (total >= kForbidden) return kForbidden;  // a sum of many would overflow
    }
    return total;
  }
  // Returns how many of the pairs of v's option j are forbidden.
  int forbidden(std::span<const int> solution, int v, int j) const {
    int count = model_.variables[v].uses[j].time >= kForbidden;
    for (int e : pairs_[v]) {
      const auto& pair = model_.pairs[e];
      const int width = model_.variables[pair.v].size();
      count += (pair.u == v ? pair.time[j * width + solution[pair.v]]
                            : pair.time[solution[pair.u] * width + j]) >= kForbidden;
    }
    return count;
  }

 private:
  const AssignModel& model_;
  std::vector<std::vector<int>> pairs_;
};

}  // namespace

void cross(const AssignModel& model, const std::vector<int>& order, const ThresholdRange& range,
           const Pool& pool, const std::function<int64_t()>& best_time,
           const std::function<void(std::span<const int>)>& visit) {
  const Changes changes(model);
  const int64_t capacity = capacity_left(model, range);
  const size_t begin = pool.size() > kCrossed ? pool.size() - kCrossed : 0;
  for (size_t p = begin; p < pool.size(); ++p) {
    for (size_t q = begin; q < pool.size(); ++q) {
      if (p == q) continue;
      std::vector<int> joined = pool[q];
      int64_t backward = 0, step = 0;
      for (size_t v = 0; v < joined.size(); ++v) {
        const auto& use = model.variables[v].uses[joined[v]];
        const int64_t over = excess(use, range);
        backward += use.backward + over;
        step += use.step + over;
      }
      // Count forbidden pairs separately, so that the sum does not overflow.
      int64_t time = time_of(model, joined);
      if (time >= kForbidden) continue;
      for (int v : order) {
        const int from = joined[v], to = pool[p][v];
        if (from == to) continue;
        const auto& variable = model.variables[v];
        if (time < kForbidden) {
          const int64_t added = changes.time(joined, v, to);
          time = added >= kForbidden ? kForbidden : time + added - changes.time(joined, v, from);
          joined[v] = to;
        } else {
          joined[v] = to;
          time = time_of(model, joined);
        }
        const auto& old_use = variable.uses[from];
        const auto& new_use = variable.uses[to];
        const int64_t over = excess(new_use, range) - excess(old_use, range);
        backward += new_use.backward - old_use.backward + over;
        step += new_use.step - old_use.step + over;
        if (time < best_time() && (!model.limited || std::max(backward, step) <= capacity))
          visit(joined);
      }
    }
  }
}

void descend(const AssignModel& model, std::vector<int>& solution) {
  const Changes changes(model);
  for (bool changed = true; changed;) {
    changed = false;
    for (int v = 0; v < static_cast<int>(solution.size()); ++v) {
      int64_t least = changes.time(solution, v, solution[v]);
      for (int j = 0; j < model.variables[v].size(); ++j) {
        const int64_t time = changes.time(solution, v, j);
        if (time >= least) continue;
        const int kept = std::exchange(solution[v], j);
        if (model.limited && memory_of(model, solution) > model.capacity) {
          solution[v] = kept;
          continue;
        }
        least = time;
        changed = true;
      }
    }
  }
}

bool repair(const AssignModel& model, std::vector<int>& solution,
            std::chrono::steady_clock::time_point deadline) {
  const Changes changes(model);
  const auto excess_of = [&] {
    return model.limited ? std::max<int64_t>(0, memory_of(model, solution) - model.capacity) : 0;
  };
  const int count = static_cast<int>(solution.size());
  for (int64_t excess = excess_of();; excess = excess_of()) {
    // Compare the change in the number of forbidden pairs, then the memory above capacity, then
    // the time.
    using Gain = std::tuple<int, int64_t, int64_t>;
    Gain best{0, excess, std::numeric_limits<int64_t>::min()};
    int best_v = -1, best_j = 0;
    bool forbidden = false;
    for (int v = 0; v < count; ++v) {
      const int kept = solution[v];
      const int conflicts = changes.forbidden(solution, v, kept);
      forbidden = forbidden || conflicts > 0;
      for (int j = 0; j < model.variables[v].size(); ++j) {
        if (j == kept) continue;
        const int change = changes.forbidden(solution, v, j) - conflicts;
        if (change > 0 || (change == 0 && excess == 0)) continue;
        solution[v] = j;
        const Gain gain{change, excess_of(), changes.time(solution, v, j)};
        if (gain < best) {
          best = gain;
          best_v = v;
          best_j = j;
        }
      }
      solution[v] = kept;
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    if (!forbidden && excess == 0) return true;
    if (best_v < 0) return false;
    solution[best_v] = best_j;
  }
}

}  // namespace perigee::solve
