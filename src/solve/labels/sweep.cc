#include "solve/labels/sweep.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/infinity.h"

namespace perigee::solve {
namespace {

double to_double(int64_t time) {
  return time >= kForbidden ? kInfinity : static_cast<double>(time);
}

// Walks all states before a step in order, tracking each frontier variable's option and the state
// after without its own part.
class Odometer {
 public:
  Odometer(const SweepStep& step, const std::vector<int>& sizes)
      : step_(step), sizes_(sizes), option_(step.frontier.size(), 0) {}
  int option(int slot) const { return option_[slot]; }
  uint64_t base() const { return base_; }
  void next() {
    for (size_t k = option_.size(); k-- > 0;) {
      base_ += step_.next_stride[k];
      if (++option_[k] < sizes_[step_.frontier[k]]) return;
      base_ -= step_.next_stride[k] * option_[k];
      option_[k] = 0;
    }
  }

 private:
  const SweepStep& step_;
  const std::vector<int>& sizes_;
  std::vector<int> option_;
  uint64_t base_ = 0;
};

// Returns the least a[j] + b[j]; four chains keep the adder busy.
double least_sum(const double* a, const double* b, int size) {
  double m0 = kInfinity, m1 = kInfinity, m2 = kInfinity, m3 = kInfinity;
  int j = 0;
  for (; j + 4 <= size; j += 4) {
    m0 = std::min(m0, a[j] + b[j]);
    m1 = std::min(m1, a[j + 1] + b[j + 1]);
    m2 = std::min(m2, a[j + 2] + b[j + 2]);
    m3 = std::min(m3, a[j + 3] + b[j + 3]);
  }
  for (; j < size; ++j) m0 = std::min(m0, a[j] + b[j]);
  return std::min(std::min(m0, m1), std::min(m2, m3));
}

double work_of(const std::vector<SweepStep>& steps, const std::vector<int>& sizes) {
  double work = 0;
  for (const auto& step : steps) work += static_cast<double>(step.states) * sizes[step.variable];
  return work;
}

std::vector<std::vector<int>> neighbours_of(const AssignModel& model) {
  std::vector<std::vector<int>> neighbours(model.variables.size());
  for (const auto& pair : model.pairs) {
    neighbours[pair.u].push_back(pair.v);
    neighbours[pair.v].push_back(pair.u);
  }
  return neighbours;
}

// Returns the number of table entries of all steps; approximate, since it is a double.
double order_work(const AssignModel& model, const std::vector<std::vector<int>>& neighbours,
                  const std::vector<int>& order) {
  std::vector<int> left(order.size());
  for (size_t v = 0; v < order.size(); ++v) left[v] = static_cast<int>(neighbours[v].size());
  double states = 1, work = 0;
  for (int v : order) {
    work += states * model.variables[v].size();
    if (left[v] > 0) states *= model.variables[v].size();
    for (int u : neighbours[v]) {
      // A passed neighbour without further pairs leaves the frontier.
      if (--left[u] == 0) states /= std::max(model.variables[u].size(), 1);
    }
  }
  return work;
}

// The next variable is the one that leaves the smallest frontier; ties follow the model's order.
std::vector<int> greedy_order(const AssignModel& model,
                              const std::vector<std::vector<int>>& neighbours) {
  const size_t n = model.variables.size();
  std::vector<int> order, left(n);
  std::vector<bool> passed(n, false);
  for (size_t v = 0; v < n; ++v) left[v] = static_cast<int>(neighbours[v].size());
  while (order.size() < n) {
    double best = kInfinity;
    int chosen = -1;
    for (size_t v = 0; v < n; ++v) {
      if (passed[v]) continue;
      double change = left[v] > 0 ? std::log(model.variables[v].size() + 1e-9) : 0;
      bool touches = false;
      for (int u : neighbours[v]) {
        if (!passed[u]) continue;
        touches = true;
        if (left[u] == 1) change -= std::log(model.variables[u].size() + 1e-9);
      }
      if (!touches && !order.empty() && left[v] > 0)
        change += 1e-3;  // prefer components that were begun
      if (change < best - 1e-12) {
        best = change;
        chosen = static_cast<int>(v);
      }
    }
    passed[chosen] = true;
    order.push_back(chosen);
    for (int u : neighbours[chosen]) --left[u];
  }
  return order;
}

}  // namespace

std::vector<SweepStep> make_steps(const AssignModel& model, const std::vector<int>& order,
                                  const std::vector<bool>& kept) {
  const size_t n = order.size();
  std::vector<int> position(n), last(n);
  for (size_t i = 0; i < n; ++i) position[order[i]] = static_cast<int>(i);
  for (size_t v = 0; v < n; ++v) last[v] = position[v];
  std::vector<std::vector<int>> pairs_at(n);  // at the later end
  for (size_t e = 0; e < model.pairs.size(); ++e) {
    if (!kept[e]) continue;
    const auto& pair = model.pairs[e];
    const int late = std::max(position[pair.u], position[pair.v]);
    const int early = std::min(position[pair.u], position[pair.v]);
    last[order[early]] = std::max(last[order[early]], late);
    pairs_at[late].push_back(static_cast<int>(e));
  }
  std::vector<SweepStep> steps(n);
  std::vector<int> frontier;
  auto strides = [&](const std::vector<int>& variables) {
    std::vector<uint64_t> stride(variables.size());
    uint64_t states = 1;
    for (size_t k = variables.size(); k-- > 0;) {
      stride[k] = states;
      const auto size = static_cast<uint64_t>(std::max(model.variables[variables[k]].size(), 1));
      states = states > kManyStates / size ? kManyStates : states * size;
    }
    return std::pair(stride, states);
  };
  for (size_t i = 0; i < n; ++i) {
    auto& step = steps[i];
    step.variable = order[i];
    step.frontier = frontier;
    std::tie(step.stride, step.states) = strides(frontier);
    for (int e : pairs_at[i]) {
      const auto& pair = model.pairs[e];
      const bool forward = pair.v == step.variable;
      const int other = forward ? pair.u : pair.v;
      const int height = model.variables[other].size(),
                width = model.variables[step.variable].size();
      SweepStep::Link link;
      link.slot = static_cast<int>(std::find(frontier.begin(), frontier.end(), other) -
                                   frontier.begin());
      link.time.resize(static_cast<size_t>(height) * width);
      for (int a = 0; a < height; ++a) {
        for (int b = 0; b < width; ++b) {
          link.time[a * width + b] = to_double(forward ? pair.time[a * width + b]
                                                       : pair.time[b * height + a]);
        }
      }
      step.links.push_back(std::move(link));
    }
    std::vector<int> after;
    for (int u : frontier) {
      if (last[u] > static_cast<int>(i)) after.push_back(u);
    }
    if (last[step.variable] > static_cast<int>(i)) after.push_back(step.variable);
    const auto next = strides(after).first;
    for (int u : frontier) {
      const auto found = std::find(after.begin(), after.end(), u);
      step.next_stride.push_back(found == after.end() ? 0 : next[found - after.begin()]);
    }
    step.own_stride = !after.empty() && after.back() == step.variable ? next.back() : 0;
    frontier = std::move(after);
  }
  return steps;
}

std::vector<int> choose_order(const AssignModel& model) {
  const auto neighbours = neighbours_of(model);
  std::vector<int> own(model.variables.size());
  std::iota(own.begin(), own.end(), 0);
  const double own_work = order_work(model, neighbours, own);
  if (own_work < 2e5) return own;
  auto greedy = greedy_order(model, neighbours);
  return order_work(model, neighbours, greedy) * 2 < own_work ? greedy : own;
}

Sweep::Sweep(const AssignModel& model, std::vector<int> order, double most_work)
    : order_(std::move(order)) {
  for (const auto& variable : model.variables) {
    sizes_.push_back(variable.size());
    share_.emplace_back(variable.size(), 0.0);
  }
  for (const auto& pair : model.pairs) {
    auto& table = pair_time_.emplace_back(pair.time.size());
    std::transform(pair.time.begin(), pair.time.end(), table.begin(), to_double);
  }
  leave_out_pairs(model, most_work);
  for (const auto& step : steps_) rest_.emplace_back(step.states);
  rest_.emplace_back(1, 0.0);
}

void Sweep::leave_out_pairs(const AssignModel& model, double most_work) {
  std::vector<bool> kept(model.pairs.size(), true);
  std::vector<int> position(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) position[order_[i]] = static_cast<int>(i);
  steps_ = make_steps(model, order_, kept);
  while ((work_ = work_of(steps_, sizes_)) > most_work) {
    // The longest pair across the widest step.
    const auto widest = std::max_element(
                            steps_.begin(), steps_.end(),
                            [&](const auto& a, const auto& b) {
                              return static_cast<double>(a.states) * sizes_[a.variable] <
                                     static_cast<double>(b.states) * sizes_[b.variable];
                            }) -
                        steps_.begin();
    int chosen = -1, longest = 0;
    for (size_t e = 0; e < model.pairs.size(); ++e) {
      const auto [first, last] = std::minmax(position[model.pairs[e].u],
                                             position[model.pairs[e].v]);
      if (kept[e] && first < widest && last >= widest && last - first > longest) {
        longest = last - first;
        chosen = static_cast<int>(e);
      }
    }
    if (chosen < 0) break;
    kept[chosen] = false;
    exact_ = false;
    const int u = model.pairs[chosen].u, v = model.pairs[chosen].v;
    auto& table = pair_time_[chosen];
    // Shares: half of the least time of u's option, then the excess of v's option, then the rest
    // of u's.
    for (const double part : {0.5, -1.0, 1.0}) {
      const bool rows = part > 0;
      for (int a = 0; a < (rows ? sizes_[u] : sizes_[v]); ++a) {
        double least = kInfinity;
        const int others = rows ? sizes_[v] : sizes_[u];
        auto cell = [&](int b) -> double& {
          return rows ? table[a * sizes_[v] + b] : table[b * sizes_[v] + a];
        };
        for (int b = 0; b < others; ++b) least = std::min(least, cell(b));
        auto& share = rows ? share_[u][a] : share_[v][a];
        if (least == kInfinity) {
          share = kInfinity;
          continue;
        }
        least *= std::abs(part);
        share += least;
        for (int b = 0; b < others; ++b) cell(b) -= least;
      }
    }
    steps_ = make_steps(model, order_, kept);
  }
}

double Sweep::backward(const Unary& unary) {
  unary_ = unary;
  if (!exact_) {
    for (size_t v = 0; v < unary_.size(); ++v) {
      for (size_t j = 0; j < unary_[v].size(); ++j) unary_[v][j] += share_[v][j];
    }
  }
  fill(unary_, rest_);
  return rest_[0][0];
}

Sweep::Tables Sweep::tables(const Unary& with_shares) const {
  Tables tables;
  for (const auto& step : steps_) tables.emplace_back(step.states);
  tables.emplace_back(1, 0.0);
  fill(with_shares, tables);
  return tables;
}

void Sweep::fill(const Unary& unary, Tables& tables) const {
  std::vector<double> sum;
  for (size_t i = steps_.size(); i-- > 0;) {
    const auto& step = steps_[i];
    const auto& own = unary[step.variable];
    const auto& next = tables[i + 1];
    const int size = sizes_[step.variable];
    sum.resize(size);
    uint64_t base_of_sum = ~uint64_t{0};
    Odometer odometer(step, sizes_);
    auto& rest = tables[i];
    for (uint64_t state = 0; state < step.states; ++state, odometer.next()) {
      if (odometer.base() != base_of_sum || step.links.size() > 1) {
        base_of_sum = odometer.base();
        for (int j = 0; j < size; ++j) sum[j] = own[j] + next[base_of_sum + j * step.own_stride];
        for (size_t k = 1; k < step.links.size(); ++k) {
          const double* row = step.links[k].time.data() +
                              odometer.option(step.links[k].slot) * size;
          for (int j = 0; j < size; ++j) sum[j] += row[j];
        }
      }
      if (step.links.empty()) {
        double least = kInfinity;
        for (int j = 0; j < size; ++j) least = std::min(least, sum[j]);
        rest[state] = least;
      } else {
        rest[state] = least_sum(
            step.links[0].time.data() + odometer.option(step.links[0].slot) * size, sum.data(),
            size);
      }
    }
  }
}

std::vector<int> Sweep::solution() const {
  std::vector<int> option(order_.size(), 0);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const auto& step = steps_[i];
    uint64_t next_base = 0;
    for (size_t k = 0; k < step.frontier.size(); ++k)
      next_base += step.next_stride[k] * option[step.frontier[k]];
    double best = kInfinity;
    for (int j = 0; j < sizes_[step.variable]; ++j) {
      double total = unary_[step.variable][j] + rest_[i + 1][next_base + j * step.own_stride];
      for (const auto& link : step.links) {
        total += link.time[option[step.frontier[link.slot]] * sizes_[step.variable] + j];
      }
      if (total < best) {
        best = total;
        option[step.variable] = j;
      }
    }
  }
  return option;
}

double Sweep::pair_total(std::span<const int> solution) const {
  double total = 0;
  for (const auto& step : steps_) {
    const int own = solution[step.variable];
    for (const auto& link : step.links) {
      total += link.time[solution[step.frontier[link.slot]] * sizes_[step.variable] + own];
    }
    total += share_[step.variable][own];
  }
  return total;
}

Sweep::Unary Sweep::through() {
  Unary least;
  for (int size : sizes_) least.emplace_back(size, kInfinity);
  std::vector<double> reach = {0.0}, reach_next;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const auto& step = steps_[i];
    const int size = sizes_[step.variable];
    reach_next.assign(rest_[i + 1].size(), kInfinity);
    Odometer odometer(step, sizes_);
    for (uint64_t state = 0; state < step.states; ++state, odometer.next()) {
      if (reach[state] == kInfinity) continue;
      for (int j = 0; j < size; ++j) {
        double total = reach[state] + unary_[step.variable][j];
        for (const auto& link : step.links)
          total += link.time[odometer.option(link.slot) * size + j];
        const uint64_t next = odometer.base() + j * step.own_stride;
        reach_next[next] = std::min(reach_next[next], total);
        least[step.variable][j] = std::min(least[step.variable][j], total + rest_[i + 1][next]);
      }
    }
    reach.swap(reach_next);
  }
  return least;
}

}  // namespace perigee::solve
