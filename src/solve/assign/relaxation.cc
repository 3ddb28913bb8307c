#include "solve/assign/relaxation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "solve/assign/master.h"

namespace perigee::solve {
namespace {

constexpr size_t kPoolSize = 160;

// The limits that can bind, as rows of the master: the two peaks, groups and moments.
struct Rows {
  bool backward = false, step = false;
  bool group_quantity = false;  // the largest group as a quantity of its own
  std::vector<int> kept;        // model rows
  std::vector<double> limits;   // in capacities, peaks first
};

Rows binding_rows(const AssignModel& model, const ThresholdRange& range) {
  Rows rows;
  if (!model.limited) return rows;
  int64_t backward = 0, step = 0;
  bool step_below = true, backward_below = true;  // of the other, for every option
  std::vector<int64_t> most(model.groups + model.moments);
  for (const auto& variable : model.variables) {
    int64_t b = 0, s = 0;
    std::vector<int64_t> r(variable.rows.size());
    for (const auto& use : variable.uses) {
      const int64_t over = excess(use, range);
      b = std::max(b, use.backward + over);
      s = std::max(s, use.step + over);
      step_below = step_below && use.step <= use.backward;
      backward_below = backward_below && use.backward <= use.step;
      for (size_t k = 0; k < r.size(); ++k) r[k] = std::max(r[k], use.rows[k]);
    }
    backward += b;
    step += s;
    for (size_t k = 0; k < r.size(); ++k) most[variable.rows[k]] += r[k];
  }
  int64_t group = 0;
  for (int g = 0; g < model.groups; ++g) group = std::max(group, most[g]);
  const int64_t left = capacity_left(model, range);
  rows.backward = backward + group > left && !(backward_below && !step_below);
  rows.step = step + group > left && !step_below;
  const double unit = static_cast<double>(std::max<int64_t>(model.capacity, 1));
  if (rows.backward) rows.limits.push_back(static_cast<double>(left) / unit);
  if (rows.step) rows.limits.push_back(static_cast<double>(left) / unit);
  rows.group_quantity = group > 0 && (rows.backward || rows.step);
  for (int r = 0; r < model.groups + model.moments; ++r) {
    if (r < model.groups ? (rows.group_quantity && most[r] > 0) : most[r] > model.capacity) {
      rows.kept.push_back(r);
      rows.limits.push_back(r < model.groups ? 0 : static_cast<double>(model.capacity) / unit);
    }
  }
  return rows;
}

// The fraction of each row's capacity that a solution uses, and its time.
struct Column {
  double time = 0;
  std::vector<double> use;
};

Column column_of(const AssignModel& model, const Sweep& sweep, const ThresholdRange& range,
                 const Rows& rows, std::span<const int> solution) {
  int64_t backward = 0, step = 0, time = 0;
  std::vector<int64_t> totals(model.groups + model.moments);
  for (size_t v = 0; v < model.variables.size(); ++v) {
    const auto& variable = model.variables[v];
    const auto& use = variable.uses[solution[v]];
    const int64_t over = excess(use, range);
    backward += use.backward + over;
    step += use.step + over;
    time += use.time;
    for (size_t r = 0; r < variable.rows.size(); ++r) totals[variable.rows[r]] += use.rows[r];
  }
  const double unit = static_cast<double>(std::max<int64_t>(model.capacity, 1));
  Column column{static_cast<double>(time) + sweep.pair_total(solution), {}};
  if (rows.backward) column.use.push_back(static_cast<double>(backward) / unit);
  if (rows.step) column.use.push_back(static_cast<double>(step) / unit);
  for (int r : rows.kept) column.use.push_back(static_cast<double>(totals[r]) / unit);
  return column;
}

// Prices per quantum from prices per capacity, with the groups' share made feasible.
Prices to_prices(const AssignModel& model, const Rows& rows, const std::vector<double>& prices,
                 double scale) {
  const double unit = scale / static_cast<double>(std::max<int64_t>(model.capacity, 1));
  Prices result;
  result.rows.assign(model.groups + model.moments, 0.0);
  size_t next = 0;
  if (rows.backward) result.backward = prices[next++] * unit;
  if (rows.step) result.step = prices[next++] * unit;
  double groups = 0;
  for (int r : rows.kept) {
    result.rows[r] = prices[next++] * unit;
    if (r < model.groups) groups += result.rows[r];
  }
  if (const double most = result.backward + result.step; groups > most) {
    for (int r = 0; r < model.groups; ++r) result.rows[r] *= most / groups;
  }
  return result;
}

}  // namespace

int64_t excess(const Use& use, const ThresholdRange& range) {
  int64_t over = 0;
  for (int64_t transient : use.transients) over += std::max<int64_t>(0, transient - range.high);
  return over;
}

Sweep::Unary charged(const AssignModel& model, const ThresholdRange& range, const Prices& prices,
                     double& constant) {
  Sweep::Unary unary;
  for (const auto& variable : model.variables) {
    auto& times = unary.emplace_back();
    times.reserve(variable.uses.size());
    for (const auto& use : variable.uses) {
      const int64_t over = excess(use, range);
      double time = static_cast<double>(use.time) +
                    prices.backward * static_cast<double>(use.backward + over) +
                    prices.step * static_cast<double>(use.step + over);
      for (size_t r = 0; r < variable.rows.size(); ++r) {
        time += prices.rows[variable.rows[r]] * static_cast<double>(use.rows[r]);
      }
      times.push_back(time);
    }
  }
  constant = (prices.backward + prices.step) * static_cast<double>(capacity_left(model, range));
  for (int r = model.groups; r < model.groups + model.moments; ++r) {
    constant += prices.rows[r] * static_cast<double>(model.capacity);
  }
  return unary;
}

Relaxed relax(const AssignModel& model, Sweep& sweep, const ThresholdRange& range,
              const RelaxOptions& options, Pool& pool,
              const std::function<void(std::span<const int>)>& visit) {
  const Rows rows = binding_rows(model, range);
  const double scale = std::max(std::abs(options.target), 1.0);
  // The penalty exceeds the value of any exchange of memory for time; otherwise the penalty column
  // would stay in the mixture.
  Master master(rows.limits, 1e5);
  if (rows.group_quantity) {
    std::vector<double> use(rows.limits.size(), 0.0);
    size_t next = 0;
    if (rows.backward) use[next++] = 1;
    if (rows.step) use[next++] = 1;
    for (int r : rows.kept) use[next++] = r < model.groups ? -1 : 0;
    master.add_quantity(use);
  }
  auto add = [&](std::span<const int> solution) {
    const Column column = column_of(model, sweep, range, rows, solution);
    master.add_choice(column.time / scale, column.use);
  };
  for (const auto& solution : pool) add(solution);

  Relaxed best;
  best.bound = -std::numeric_limits<double>::infinity();
  std::vector<double> best_prices(rows.limits.size(), 0.0);
  bool smooth = rows.limits.size() > 2;
  for (int iteration = 0; iteration < options.iterations; ++iteration) {
    const double mixture = master.solve() * scale;
    const auto prices = master.prices();
    auto tried = prices;
    // Take prices between the best so far and the master's: this converges much faster with
    // many prices.
    const bool between = smooth && std::isfinite(best.bound);
    if (between) {
      for (size_t r = 0; r < tried.size(); ++r) tried[r] = 0.5 * (best_prices[r] + prices[r]);
    }
    const Prices per_quantum = to_prices(model, rows, tried, scale);
    double constant = 0;
    const double total = sweep.backward(charged(model, range, per_quantum, constant));
    if (total == std::numeric_limits<double>::infinity()) {
      best.bound = total;
      best.prices = per_quantum;
      return best;
    }
    const bool better = total - constant > best.bound;
    if (better) {
      best.bound = total - constant;
      best.prices = per_quantum;
      best_prices = tried;
    }
    if (best.bound > options.target || rows.limits.empty()) {
      visit(sweep.solution());
      return best;
    }
    const double gain = mixture - best.bound;
    if (gain <= 1e-9 * scale || gain <= options.tolerance * (options.target - best.bound)) {
      if (!between || gain <= 1e-9 * scale) {
        visit(sweep.solution());
        break;
      }
    }
    smooth = rows.limits.size() > 2 && (!between || better);
    auto solution = sweep.solution();
    visit(solution);
    add(solution);
    if (pool.size() >= kPoolSize) pool.erase(pool.begin());
    pool.push_back(std::move(solution));
  }
  return best;
}

}  // namespace perigee::solve
