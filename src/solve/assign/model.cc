#include "solve/assign/model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include "solve/evaluate.h"

namespace perigee::solve {
namespace {

// Sums of integers up to this stay far from overflow, and their doubles far from the tolerance.
constexpr double kLargestTotal = 0x1p58;
constexpr int kMostDecimals = 9;

// Integer counts of a quantum: a power of ten where that is exact, else a fraction of the scale.
class Grid {
 public:
  // `values` are all numbers below the scale; `total` bounds every sum of them.
  Grid(const std::vector<double>& values, double total, double scale) {
    double factor = 1;
    for (int digits = 0; digits <= kMostDecimals && total * factor < kLargestTotal;
         ++digits, factor *= 10) {
      if (std::all_of(values.begin(), values.end(), [&](double value) {
            const double scaled = value * factor;
            return std::abs(scaled - std::nearbyint(scaled)) <= 4e-16 * scaled;
          })) {
        factor_ = factor;
        exact_ = true;
        return;
      }
    }
    factor_ = std::exp2(std::floor(std::log2(kLargestTotal / std::max(scale, 1e-290))));
  }
  int64_t operator()(double value) const { return std::llround(value * factor_); }
  double quantum() const { return 1 / factor_; }
  double factor() const { return factor_; }
  bool exact() const { return exact_; }

 private:
  double factor_ = 1;
  bool exact_ = false;
};

// Returns the leader of every op: the op at the end of its chain of follows.
std::vector<int> leaders(const AssignProblem& problem) {
  std::vector<int> leader(problem.ops.size());
  for (size_t i = 0; i < leader.size(); ++i) {
    leader[i] = problem.ops[i].follows < 0 ? static_cast<int>(i) : leader[problem.ops[i].follows];
  }
  return leader;
}

Grid time_grid(const AssignProblem& problem, double scale) {
  std::vector<double> values;
  double total = 0;
  auto add = [&](double value, double& most) {
    if (value > scale || std::isinf(value)) return;
    values.push_back(value);
    most = std::max(most, value);
  };
  for (const auto& op : problem.ops) {
    double most = 0;
    for (const auto& option : op.options) add(option.time, most);
    total += most;
  }
  for (const auto& edge : problem.edges) {
    double most = 0;
    for (double time : edge.time) add(time, most);
    total += most;
  }
  return Grid(values, total, total);
}

Grid memory_grid(const AssignProblem& problem) {
  // Memory above the limit is forbidden, so the limit bounds all relevant sums.
  const double limit = problem.memory_limit.value_or(0);
  std::vector<double> values = {limit};
  double total = 0;
  for (const auto& op : problem.ops) {
    for (const auto& option : op.options) {
      for (double value : {option.resident, option.saved, option.optimizer, option.transient,
                           option.input, option.live}) {
        if (value > limit * 1.5) continue;
        values.push_back(value);
      }
    }
    total += limit * 4;
  }
  return Grid(values, total, total);
}

}  // namespace

AssignModel make_model(const AssignProblem& problem, const ModelOptions& settings) {
  AssignModel model;
  model.transient_count = static_cast<int>(
      std::min<size_t>(problem.transient_count, problem.ops.size()));
  model.limited = problem.memory_limit.has_value();
  const Grid times = time_grid(problem, settings.time_scale);
  const Grid memories = memory_grid(problem);
  model.time_quantum = times.quantum();
  model.memory_quantum = memories.quantum();
  model.exact_time = times.exact();
  if (model.limited) {
    // Just inside the tolerance, so that rounding cannot carry a solution over it.
    model.capacity = static_cast<int64_t>(
        std::floor(*problem.memory_limit * memories.factor() * (1 + kTolerance * 0.99) + 1e-6));
  }
  auto time = [&](double value) -> int64_t {
    if (std::isinf(value)) return kForbidden;
    if (settings.ignore_time) return 0;
    return value > settings.time_scale ? kForbidden : times(value);
  };
  // Without a limit, memory is ignored; memory above the limit is clipped.
  auto memory = [&](double value) -> int64_t {
    if (!model.limited || value == 0) return 0;
    return value > *problem.memory_limit * 1.5 ? model.capacity + 1 : memories(value);
  };

  const auto leader = leaders(problem);
  std::vector<int> variable_of(problem.ops.size());
  for (size_t i = 0; i < problem.ops.size(); ++i) {
    if (leader[i] == static_cast<int>(i)) {
      variable_of[i] = static_cast<int>(model.variables.size());
      auto& variable = model.variables.emplace_back();
      variable.options.resize(problem.ops[i].options.size());
      std::iota(variable.options.begin(), variable.options.end(), 0);
      variable.uses.resize(variable.options.size());
    } else {
      variable_of[i] = variable_of[leader[i]];
    }
    model.variables[variable_of[i]].ops.push_back(static_cast<int>(i));
  }

  std::map<std::string, int> group_row;
  for (const auto& op : problem.ops) {
    if (model.limited && !op.group.empty())
      group_row.emplace(op.group, static_cast<int>(group_row.size()));
  }
  model.groups = static_cast<int>(group_row.size());
  model.moments = model.limited ? static_cast<int>(problem.moments.size()) : 0;
  std::vector<std::vector<int>> moments_of(problem.ops.size());
  for (int m = 0; m < model.moments; ++m) {
    for (int i : problem.moments[m]) moments_of[i].push_back(model.groups + m);
  }

  std::vector<int64_t> thresholds = {0};
  for (auto& variable : model.variables) {
    for (int i : variable.ops) {
      const auto& op = problem.ops[i];
      if (model.limited && !op.group.empty()) variable.rows.push_back(group_row[op.group]);
      variable.rows.insert(variable.rows.end(), moments_of[i].begin(), moments_of[i].end());
    }
    std::sort(variable.rows.begin(), variable.rows.end());
    variable.rows.erase(std::unique(variable.rows.begin(), variable.rows.end()),
                        variable.rows.end());
    auto position = [&](int row) {
      return std::lower_bound(variable.rows.begin(), variable.rows.end(), row) -
             variable.rows.begin();
    };
    for (int j = 0; j < variable.size(); ++j) {
      auto& use = variable.uses[j];
      use.rows.assign(variable.rows.size(), 0);
      for (int i : variable.ops) {
        const auto& op = problem.ops[i];
        const auto& option = op.options[j];
        const int64_t resident = memory(option.resident);
        use.time = bounded_sum(use.time, time(option.time));
        use.step += resident + memory(option.optimizer);
        use.backward += resident;
        if (op.group.empty()) {
          use.backward += memory(option.saved);
        } else if (model.limited) {
          if (op.group_input) use.backward += memory(option.input);
          use.rows[position(group_row[op.group])] += memory(option.saved);
        }
        for (int row : moments_of[i]) use.rows[position(row)] += memory(option.live);
        if (const int64_t transient = memory(option.transient);
            transient > 0 && model.transient_count > 0) {
          use.transients.push_back(transient);
          thresholds.push_back(transient);
        }
      }
    }
  }
  std::sort(thresholds.begin(), thresholds.end());
  thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
  model.thresholds = std::move(thresholds);

  std::map<std::pair<int, int>, int> pair_of;
  for (const auto& edge : problem.edges) {
    const int a = variable_of[edge.from], b = variable_of[edge.to];
    const int from_size = model.variables[a].size(), to_size = model.variables[b].size();
    if (a == b) {
      for (int j = 0; j < from_size; ++j) {
        auto& use = model.variables[a].uses[j];
        use.time = bounded_sum(use.time, time(edge.time[j * to_size + j]));
      }
      continue;
    }
    const auto [found, added] = pair_of.try_emplace(std::minmax(a, b),
                                                    static_cast<int>(model.pairs.size()));
    if (added) {
      model.pairs.push_back(
          {std::min(a, b), std::max(a, b), std::vector<int64_t>(from_size * to_size)});
    }
    auto& table = model.pairs[found->second].time;
    for (int i = 0; i < from_size; ++i) {
      for (int j = 0; j < to_size; ++j) {
        auto& cell = a < b ? table[i * to_size + j] : table[j * from_size + i];
        cell = bounded_sum(cell, time(edge.time[i * to_size + j]));
      }
    }
  }

  int64_t granule = 0;
  for (const auto& variable : model.variables) {
    for (const auto& use : variable.uses)
      granule = std::gcd(granule, use.time < kForbidden ? use.time : 0);
  }
  for (const auto& pair : model.pairs) {
    for (int64_t cell : pair.time) {
      if (granule == 1) break;
      granule = std::gcd(granule, cell < kForbidden ? cell : 0);
    }
  }
  model.granule = std::max<int64_t>(granule, 1);

  // An option whose own time is forbidden is no option.
  std::vector<std::vector<int>> keep(model.variables.size());
  bool all = true;
  for (size_t v = 0; v < keep.size(); ++v) {
    for (int j = 0; j < model.variables[v].size(); ++j) {
      if (model.variables[v].uses[j].time < kForbidden) keep[v].push_back(j);
    }
    all = all && static_cast<int>(keep[v].size()) == model.variables[v].size();
  }
  return all ? model : restrict_model(model, keep);
}

AssignModel restrict_model(const AssignModel& model, const std::vector<std::vector<int>>& keep) {
  AssignModel result;
  result.groups = model.groups;
  result.moments = model.moments;
  result.transient_count = model.transient_count;
  result.limited = model.limited;
  result.capacity = model.capacity;
  result.thresholds = model.thresholds;
  result.time_quantum = model.time_quantum;
  result.memory_quantum = model.memory_quantum;
  result.granule = model.granule;
  result.exact_time = model.exact_time;
  result.variables.resize(model.variables.size());
  for (size_t v = 0; v < keep.size(); ++v) {
    const auto& from = model.variables[v];
    auto& to = result.variables[v];
    to.ops = from.ops;
    to.rows = from.rows;
    for (int j : keep[v]) {
      to.options.push_back(from.options[j]);
      to.uses.push_back(from.uses[j]);
    }
  }
  result.pairs.resize(model.pairs.size());
  for (size_t e = 0; e < model.pairs.size(); ++e) {
    const auto& from = model.pairs[e];
    auto& to = result.pairs[e];
    to.u = from.u;
    to.v = from.v;
    const int width = model.variables[from.v].size();
    to.time.reserve(keep[from.u].size() * keep[from.v].size());
    for (int i : keep[from.u]) {
      for (int j : keep[from.v]) to.time.push_back(from.time[i * width + j]);
    }
  }
  return result;
}

std::vector<int> to_choice(const AssignModel& model, std::span<const int> solution, size_t ops) {
  std::vector<int> choice(ops);
  for (size_t v = 0; v < model.variables.size(); ++v) {
    for (int i : model.variables[v].ops) choice[i] = model.variables[v].options[solution[v]];
  }
  return choice;
}

int64_t time_of(const AssignModel& model, std::span<const int> solution) {
  int64_t total = 0;
  for (size_t v = 0; v < model.variables.size(); ++v)
    total += model.variables[v].uses[solution[v]].time;
  for (const auto& pair : model.pairs) {
    total = bounded_sum(
        total, pair.time[solution[pair.u] * model.variables[pair.v].size() + solution[pair.v]]);
  }
  return total;
}

int64_t memory_of(const AssignModel& model, std::span<const int> solution) {
  int64_t backward = 0, step = 0, transient = 0, group = 0, moment = 0;
  std::vector<int64_t> transients, rows(model.groups + model.moments);
  for (size_t v = 0; v < model.variables.size(); ++v) {
    const auto& variable = model.variables[v];
    const auto& use = variable.uses[solution[v]];
    backward += use.backward;
    step += use.step;
    transients.insert(transients.end(), use.transients.begin(), use.transients.end());
    for (size_t r = 0; r < variable.rows.size(); ++r) rows[variable.rows[r]] += use.rows[r];
  }
  const auto count = std::min<size_t>(model.transient_count, transients.size());
  std::partial_sort(transients.begin(), transients.begin() + count, transients.end(),
                    std::greater<>());
  for (size_t i = 0; i < count; ++i) transient += transients[i];
  for (int r = 0; r < model.groups; ++r) group = std::max(group, rows[r]);
  for (int r = model.groups; r < model.groups + model.moments; ++r)
    moment = std::max(moment, rows[r]);
  return std::max(std::max(backward, step) + transient + group, moment);
}

}  // namespace perigee::solve
