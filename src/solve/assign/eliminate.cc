#include "solve/assign/eliminate.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "solve/assign/simplify.h"
#include "solve/assign/tighten.h"

namespace perigee::solve {
namespace {

// A table over variables, ascending, of which the last varies fastest.
struct Factor {
  std::vector<int> variables;
  std::vector<int64_t> time;
};

// Limit on the entries of one intermediate table, for its memory.
constexpr double kMostAtOnce = 1e8;
// Total table entries of an elimination above which dropping options first (tighten.h)
// is worthwhile.
constexpr double kWorthTightening = 2e6;

// The elimination order that adds the fewest pairs, weighted by their sizes (weighted min-fill).
class Order {
 public:
  explicit Order(const AssignModel& model) : model_(model), neighbours_(model.variables.size()) {
    for (const auto& pair : model.pairs) {
      neighbours_[pair.u].insert(pair.v);
      neighbours_[pair.v].insert(pair.u);
    }
    for (int v = 0; v < static_cast<int>(neighbours_.size()); ++v) {
      fill_.push_back(fill_of(v));
      queue_.emplace(fill_.back(), v);
    }
  }

  // The variables with at most two neighbours at their elimination, which therefore add pairs only.
  std::vector<int> easy() {
    std::vector<int> order, open;
    for (int v = 0; v < static_cast<int>(neighbours_.size()); ++v) open.push_back(v);
    while (!open.empty()) {
      const int v = open.back();
      open.pop_back();
      if (neighbours_[v].size() > 2 || !queue_.contains({fill_[v], v})) continue;
      order.push_back(v);
      open.insert(open.end(), neighbours_[v].begin(), neighbours_[v].end());
      take(v);
    }
    return order;
  }

  // All variables; nothing where the tables would have more than `most_work` entries in total.
  std::optional<std::vector<int>> run(double most_work) {
    std::vector<int> order;
    double total = 0;
    while (!queue_.empty()) {
      const int v = queue_.begin()->second;
      double work = size(v);
      for (int u : neighbours_[v]) work *= size(u);
      total += work;
      if (total > most_work || work > kMostAtOnce) return {};
      order.push_back(v);
      take(v);
    }
    return order;
  }

 private:
  void take(int v) {
    queue_.erase({fill_[v], v});
    const auto& others = neighbours_[v];
    std::set<int> changed(others.begin(), others.end());
    for (int u : others) {
      neighbours_[u].insert(others.begin(), others.end());
      neighbours_[u].erase(u);
      neighbours_[u].erase(v);
      changed.insert(neighbours_[u].begin(), neighbours_[u].end());
    }
    for (int u : changed) {
      queue_.erase({fill_[u], u});
      fill_[u] = fill_of(u);
      queue_.emplace(fill_[u], u);
    }
  }

  double size(int v) const { return model_.variables[v].size(); }

  double fill_of(int v) const {
    double fill = 0;
    for (auto a = neighbours_[v].begin(); a != neighbours_[v].end(); ++a) {
      for (auto b = std::next(a); b != neighbours_[v].end(); ++b) {
        if (!neighbours_[*a].contains(*b)) fill += size(*a) * size(*b);
      }
    }
    return fill;
  }

  const AssignModel& model_;
  std::vector<std::set<int>> neighbours_;
  std::vector<double> fill_;
  std::set<std::pair<double, int>> queue_;  // of the remaining variables
};

class Elimination {
 public:
  explicit Elimination(const AssignModel& model)
      : model_(model), factors_of_(model.variables.size()) {
    for (int v = 0; v < static_cast<int>(model.variables.size()); ++v) {
      Factor own{{v}, {}};
      for (const auto& use : model.variables[v].uses) own.time.push_back(use.time);
      add(std::move(own));
    }
    for (const auto& pair : model.pairs) add({{pair.u, pair.v}, pair.time});
  }

  void run(const std::vector<int>& order) {
    for (int v : order) eliminate(v);
  }

  // The least cost of the eliminated variables.
  int64_t least() const { return least_; }

  // Returns the model of the remaining variables; its options are positions of this model's
  // options. Requires that remaining factors have at most two variables. `left` receives the
  // remaining variables.
  AssignModel rest(std::vector<int>& left) const {
    std::vector<int> position(model_.variables.size(), -1);
    std::vector<bool> eliminated(model_.variables.size());
    for (const auto& bucket : buckets_) eliminated[bucket.variable] = true;
    AssignModel core;
    for (size_t v = 0; v < eliminated.size(); ++v) {
      if (eliminated[v]) continue;
      position[v] = static_cast<int>(left.size());
      left.push_back(static_cast<int>(v));
      auto& variable = core.variables.emplace_back();
      const int size = model_.variables[v].size();
      for (int j = 0; j < size; ++j) variable.options.push_back(j);
      variable.uses.resize(size);
    }
    std::map<std::pair<int, int>, size_t> pairs;
    for (const auto& [variables, time] : factors_) {
      if (time.empty()) continue;
      if (variables.size() == 1) {
        auto& uses = core.variables[position[variables[0]]].uses;
        for (size_t j = 0; j < time.size(); ++j) {
          uses[j].time = bounded_sum(uses[j].time, time[j]);
        }
        continue;
      }
      const std::pair ends(position[variables[0]], position[variables[1]]);
      const auto [at, added] = pairs.try_emplace(ends, core.pairs.size());
      if (added) core.pairs.push_back({ends.first, ends.second, time});
      for (size_t k = 0; k < time.size() && !added; ++k) {
        auto& cell = core.pairs[at->second].time[k];
        cell = bounded_sum(cell, time[k]);
      }
    }
    return core;
  }

  // Fills in the options of the eliminated variables.
  void complete(std::vector<int>& solution) const {
    for (size_t b = buckets_.size(); b-- > 0;) {
      const auto& bucket = buckets_[b];
      size_t state = 0;
      for (int u : bucket.others) state = state * model_.variables[u].size() + solution[u];
      solution[bucket.variable] = bucket.best[state];
    }
  }

 private:
  // A variable's best option for each state of the neighbours that are eliminated after it.
  struct Bucket {
    int variable;
    std::vector<int> others;
    std::vector<uint16_t> best;
  };
  // A position in a factor's table during the iteration over the states of the other variables.
  struct Cursor {
    const int64_t* at;
    size_t own;                // stride of the variable
    std::vector<size_t> step;  // per other
  };

  void add(Factor factor) {
    const int f = static_cast<int>(factors_.size());
    for (int v : factor.variables) factors_of_[v].push_back(f);
    factors_.push_back(std::move(factor));
  }

  Cursor cursor(const Factor& factor, int v, const std::vector<int>& others) const {
    Cursor cursor{factor.time.data(), 0, std::vector<size_t>(others.size())};
    size_t stride = 1;
    for (size_t k = factor.variables.size(); k-- > 0;) {
      const int u = factor.variables[k];
      if (u == v) {
        cursor.own = stride;
      } else {
        cursor.step[std::lower_bound(others.begin(), others.end(), u) - others.begin()] = stride;
      }
      stride *= model_.variables[u].size();
    }
    return cursor;
  }

  void eliminate(int v) {
    std::vector<int> present;
    std::set<int> union_of;
    for (int f : factors_of_[v]) {
      if (factors_[f].time.empty()) continue;
      present.push_back(f);
      union_of.insert(factors_[f].variables.begin(), factors_[f].variables.end());
    }
    union_of.erase(v);
    Bucket bucket{v, {union_of.begin(), union_of.end()}, {}};
    const auto& others = bucket.others;
    std::vector<Cursor> cursors;
    for (int f : present) cursors.push_back(cursor(factors_[f], v, others));
    size_t states = 1;
    for (int u : others) states *= model_.variables[u].size();
    Factor result{others, std::vector<int64_t>(states)};
    bucket.best.resize(states);
    const int size = model_.variables[v].size();
    std::vector<int> at(others.size());
    std::vector<int64_t> sum(size);
    for (size_t state = 0; state < states; ++state) {
      std::fill(sum.begin(), sum.end(), 0);
      for (const auto& factor : cursors) {
        for (int j = 0; j < size; ++j) sum[j] = bounded_sum(sum[j], factor.at[j * factor.own]);
      }
      const auto best = std::min_element(sum.begin(), sum.end());
      result.time[state] = *best;
      bucket.best[state] = static_cast<uint16_t>(best - sum.begin());
      for (size_t k = others.size(); k-- > 0;) {
        const bool wraps = ++at[k] == model_.variables[others[k]].size();
        for (auto& factor : cursors) {
          if (wraps) {
            factor.at -= factor.step[k] * (at[k] - 1);
          } else {
            factor.at += factor.step[k];
          }
        }
        if (!wraps) break;
        at[k] = 0;
      }
    }
    for (int f : present) factors_[f] = {};
    buckets_.push_back(std::move(bucket));
    if (result.variables.empty()) {
      least_ = bounded_sum(least_, result.time[0]);
    } else {
      add(std::move(result));
    }
  }

  const AssignModel& model_;
  std::vector<Factor> factors_;
  std::vector<std::vector<int>> factors_of_;  // per variable; empty for eliminated ones
  std::vector<Bucket> buckets_;
  int64_t least_ = 0;
};

size_t options_of(const AssignModel& model) {
  size_t options = 0;
  for (const auto& variable : model.variables) options += variable.options.size();
  return options;
}

Eliminated forbids_all() {
  return {.best = {}, .lower_bound = std::numeric_limits<double>::infinity(), .finished = true};
}

// Eliminates all variables in the order.
Eliminated eliminate_all(const AssignModel& model, const std::vector<int>& order) {
  Elimination elimination(model);
  elimination.run(order);
  if (elimination.least() >= kForbidden) return forbids_all();
  std::vector<int> solution(model.variables.size());
  elimination.complete(solution);
  return {std::move(solution), static_cast<double>(elimination.least()), true};
}

// Eliminates a model without easy variables or dominated options. If worthwhile, first drops
// options that no best solution has.
Eliminated eliminate_hard(const AssignModel& model, double most_work) {
  if (const auto order = Order(model).run(std::min(most_work, kWorthTightening))) {
    return eliminate_all(model, *order);
  }
  auto tightened = tighten(model, most_work);
  Eliminated found{.best = {}, .lower_bound = tightened.bound, .finished = tightened.optimal};
  if (!tightened.best.empty()) found.best = std::move(tightened.best);
  if (found.finished) return found;
  size_t kept = 0;
  for (const auto& positions : tightened.keep) kept += positions.size();
  if (kept == options_of(model)) {
    const auto order = Order(model).run(most_work);
    return order ? eliminate_all(model, *order) : found;
  }
  // A solution with a dropped option is slower than the one that was found.
  const auto time = [&] {
    return found.best ? static_cast<double>(time_of(model, *found.best))
                      : std::numeric_limits<double>::infinity();
  };
  auto rest = eliminate(restrict_model(model, tightened.keep), most_work);
  found.finished = rest.finished;
  found.lower_bound = std::max(found.lower_bound, std::min(rest.lower_bound, time()));
  if (!rest.best) return found;
  for (size_t v = 0; v < rest.best->size(); ++v) {
    (*rest.best)[v] = tightened.keep[v][(*rest.best)[v]];
  }
  if (static_cast<double>(time_of(model, *rest.best)) <= time()) found.best = std::move(rest.best);
  return found;
}

}  // namespace

Eliminated eliminate(const AssignModel& model, double most_work) {
  std::vector<int> solution(model.variables.size());
  Elimination elimination(model);
  elimination.run(Order(model).easy());
  if (elimination.least() >= kForbidden) return forbids_all();
  Eliminated found{
      .best = {}, .lower_bound = static_cast<double>(elimination.least()), .finished = true};
  std::vector<int> left;
  const auto core = elimination.rest(left);
  const auto smaller = without_dominated(core);
  if (!left.empty()) {
    const bool less = left.size() < model.variables.size() ||
                      options_of(smaller) < options_of(core);
    const auto rest = less ? eliminate(smaller, most_work) : eliminate_hard(smaller, most_work);
    found.finished = rest.finished;
    found.lower_bound += rest.lower_bound;
    if (!rest.best) return found;
    for (size_t k = 0; k < left.size(); ++k) {
      solution[left[k]] = smaller.variables[k].options[(*rest.best)[k]];
    }
  }
  elimination.complete(solution);
  found.best = std::move(solution);
  return found;
}

}  // namespace perigee::solve
