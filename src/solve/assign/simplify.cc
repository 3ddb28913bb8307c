#include "solve/assign/simplify.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace perigee::solve {
namespace {

bool uses_no_more(const Use& a, const Use& b) {
  if (a.backward > b.backward || a.step > b.step || a.transients.size() > b.transients.size())
    return false;
  for (size_t r = 0; r < a.rows.size(); ++r) {
    if (a.rows[r] > b.rows[r]) return false;
  }
  // Both are descending: the k largest of `a` then sum to at most the k largest of `b`, for
  // every k.
  for (size_t t = 0; t < a.transients.size(); ++t) {
    if (a.transients[t] > b.transients[t]) return false;
  }
  return true;
}

// Returns the maximum over the neighbour's options of the pair time of option i minus that of
// option j; kForbidden if i forbids an option of the neighbour that j allows.
int64_t most_excess(const Pair& pair, bool is_u, int i, int j, int others) {
  int64_t most = -kForbidden;
  for (int k = 0; k < others; ++k) {
    const int own = static_cast<int>(pair.time.size()) / others;
    const int64_t a = is_u ? pair.time[i * others + k] : pair.time[k * own + i];
    const int64_t b = is_u ? pair.time[j * others + k] : pair.time[k * own + j];
    if (b >= kForbidden) continue;
    if (a >= kForbidden) return kForbidden;
    most = std::max(most, a - b);
  }
  return most;
}

}  // namespace

AssignModel without_dominated(const AssignModel& model) {
  std::vector<std::vector<const Pair*>> pairs(model.variables.size());
  for (const auto& pair : model.pairs) {
    pairs[pair.u].push_back(&pair);
    pairs[pair.v].push_back(&pair);
  }
  std::vector<std::vector<int>> keep(model.variables.size());
  bool any = false;
  for (int v = 0; v < static_cast<int>(keep.size()); ++v) {
    auto uses = model.variables[v].uses;
    for (auto& use : uses)
      std::sort(use.transients.begin(), use.transients.end(), std::greater<>());
    auto dominates = [&](int i, int j) {
      if (uses[i].time > uses[j].time && pairs[v].empty()) return false;
      if (!uses_no_more(uses[i], uses[j])) return false;
      int64_t excess = uses[i].time - uses[j].time;
      for (const auto* pair : pairs[v]) {
        const bool is_u = pair->u == v;
        const int64_t most = most_excess(*pair, is_u, i, j,
                                         model.variables[is_u ? pair->v : pair->u].size());
        if (most >= kForbidden) return false;
        if (most == -kForbidden) return true;  // j is never allowed
        excess += most;
      }
      return excess <= 0;
    };
    std::vector<bool> dominated(uses.size(), false);
    for (int j = 0; j < static_cast<int>(uses.size()); ++j) {
      for (int i = 0; i < static_cast<int>(uses.size()) && !dominated[j]; ++i) {
        dominated[j] = i != j && !dominated[i] && dominates(i, j);
      }
      if (!dominated[j]) keep[v].push_back(j);
      any = any || dominated[j];
    }
  }
  return any ? restrict_model(model, keep) : model;
}

bool break_symmetry(AssignModel& model, const std::vector<std::vector<double>>& cost) {
  std::vector<bool> paired(model.variables.size(), false);
  for (const auto& pair : model.pairs) paired[pair.u] = paired[pair.v] = true;
  auto interchangeable = [&](const Variable& a, const Variable& b) {
    if (a.options.size() != b.options.size() || a.rows != b.rows) return false;
    for (int j = 0; j < a.size(); ++j) {
      const auto& x = a.uses[j];
      const auto& y = b.uses[j];
      if (x.time != y.time || x.backward != y.backward || x.step != y.step ||
          x.transients != y.transients || x.rows != y.rows) {
        return false;
      }
    }
    return true;
  };
  struct Class {
    int first, latest;  // members
  };
  std::vector<Class> classes;
  bool any = false;
  for (int v = 0; v < static_cast<int>(model.variables.size()); ++v) {
    const auto& variable = model.variables[v];
    if (paired[v] || variable.size() < 2) continue;
    const auto found = std::find_if(classes.begin(), classes.end(), [&](const Class& each) {
      return interchangeable(model.variables[each.first], variable);
    });
    if (found == classes.end()) {
      classes.push_back({v, v});
      continue;
    }
    std::vector<int> order(variable.size()), rank(variable.size());
    std::iota(order.begin(), order.end(), 0);
    const auto& costs = cost[found->first];
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return costs[a] > costs[b]; });
    for (size_t k = 0; k < order.size(); ++k) rank[order[k]] = static_cast<int>(k);
    Pair pair{
        .u = found->latest, .v = v, .time = std::vector<int64_t>(order.size() * order.size(), 0)};
    for (size_t i = 0; i < order.size(); ++i) {
      for (size_t j = 0; j < order.size(); ++j) {
        if (rank[i] > rank[j]) pair.time[i * order.size() + j] = kForbidden;
      }
    }
    model.pairs.push_back(std::move(pair));
    found->latest = v;
    any = true;
  }
  return any;
}

}  // namespace perigee::solve
