#include "solve/assign/tighten.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <queue>

#include "solve/assign/improve.h"

namespace perigee::solve {
namespace {

constexpr int kPatience = 10;      // rounds between checks of the progress
constexpr double kSlow = 0.02;     // share of the gap that these rounds must close
constexpr double kMargin = 1e-10;  // relative margin for rounding

// The rest of a table between two variables after `taken` was moved to them.
struct Table {
  int ends[2];
  std::vector<double> time[2];   // [option of the other][option of this end]
  std::vector<double> taken[2];  // per option of this end
  double least = 0;
};

class Diffusion {
 public:
  explicit Diffusion(const AssignModel& model) : model_(model), tables_of_(model.variables.size()) {
    most_ = 1;
    for (const auto& variable : model.variables) {
      for (const auto& use : variable.uses) raise(use.time);
    }
    for (const auto& pair : model.pairs) {
      for (auto time : pair.time) raise(time);
    }
    most_ *= static_cast<double>(model.variables.size() + model.pairs.size());
    for (const auto& variable : model.variables) {
      auto& own = own_.emplace_back();
      for (const auto& use : variable.uses) own.push_back(bounded(use.time));
      least_.push_back(*std::min_element(own.begin(), own.end()));
    }
    for (const auto& pair : model.pairs) add(pair);
    order();
  }

  // Reads at most `most_work` entries of tables, and at least those of one round.
  Tightened run(double most_work) {
    found_.keep.resize(own_.size());
    for (size_t v = 0; v < own_.size(); ++v) {
      found_.keep[v].resize(own_[v].size());
      std::iota(found_.keep[v].begin(), found_.keep[v].end(), 0);
    }
    double entries = 0, before = -std::numeric_limits<double>::infinity();
    for (const auto& table : tables_) entries += 4 * static_cast<double>(table.time[0].size());
    for (int round = 0; round == 0 || round * entries < most_work; ++round) {
      const bool left = pass(true) && pass(false);
      const double bound = this->bound(), best = static_cast<double>(best_time_);
      found_.bound = std::max(found_.bound, std::min(bound, best) - margin());
      if (!left || (!found_.best.empty() && bound >= best - margin())) {
        found_.optimal = true;
        break;
      }
      if (round % kPatience != 0) continue;
      if (bound - before < kSlow * (best - bound)) break;
      before = bound;
    }
    return std::move(found_);
  }

 private:
  void raise(int64_t time) {
    if (time < kForbidden) most_ = std::max(most_, static_cast<double>(time));
  }
  // Forbidden pairs cost more than any allowed solution.
  double bounded(int64_t time) const {
    return time < kForbidden ? static_cast<double>(time) : most_;
  }

  void add(const Pair& pair) {
    Table table{.ends = {pair.u, pair.v}, .time = {}, .taken = {}};
    const size_t rows = own_[pair.u].size(), columns = own_[pair.v].size();
    table.taken[0].assign(rows, 0);
    table.taken[1].assign(columns, 0);
    table.time[0].resize(rows * columns);
    table.time[1].resize(rows * columns);
    table.least = most_;
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) {
        const double time = bounded(pair.time[i * columns + j]);
        table.time[0][j * rows + i] = table.time[1][i * columns + j] = time;
        table.least = std::min(table.least, time);
      }
    }
    for (int end : {0, 1}) tables_of_[table.ends[end]].emplace_back(tables_.size(), end);
    tables_.push_back(std::move(table));
  }

  // Order neighbours close to each other, so that one round propagates costs far.
  void order() {
    std::vector<int> distance(own_.size(), -1);
    for (size_t first = 0; first < own_.size(); ++first) {
      if (distance[first] >= 0) continue;
      std::queue<int> open;
      open.push(static_cast<int>(first));
      distance[first] = 0;
      while (!open.empty()) {
        const int v = open.front();
        open.pop();
        order_.push_back(v);
        for (const auto& [t, end] : tables_of_[v]) {
          const int other = tables_[t].ends[1 - end];
          if (distance[other] >= 0) continue;
          distance[other] = distance[v] + 1;
          open.push(other);
        }
      }
    }
    place_.resize(order_.size());
    for (size_t k = 0; k < order_.size(); ++k) place_[order_[k]] = static_cast<int>(k);
  }

  double bound() const {
    double sum = 0;
    for (double least : least_) sum += least;
    for (const auto& table : tables_) sum += table.least;
    return sum;
  }

  double margin() const { return 1 + kMargin * static_cast<double>(best_time_); }

  // Visits the variables in order: each collects the costs of its tables and distributes them to
  // the tables of variables that follow in this direction. Returns false if a variable has no
  // option left.
  bool pass(bool forward) {
    double bound = this->bound();
    std::vector<int> solution(own_.size(), -1);
    for (size_t k = 0; k < order_.size(); ++k) {
      const int v = order_[forward ? k : order_.size() - 1 - k];
      bound -= least_[v];
      for (const auto& [t, end] : tables_of_[v]) {
        bound -= tables_[t].least;
        take(tables_[t], end, own_[v]);
      }
      const auto first = std::min_element(own_[v].begin(), own_[v].end());
      if (best_time_ < kForbidden && !drop(v, bound)) return false;
      solution[v] = cheapest(v, solution);
      bound += *first;
      give(v, forward);
    }
    visit(std::move(solution));
    return true;
  }

  static void take(Table& table, int end, std::vector<double>& own) {
    const size_t size = own.size();
    const auto& others = table.taken[1 - end];
    auto& taken = table.taken[end];
    std::vector<double> least(size, std::numeric_limits<double>::infinity());
    const double* time = table.time[end].data();
    for (size_t j = 0; j < others.size(); ++j, time += size) {
      const double other = others[j];
      for (size_t i = 0; i < size; ++i) {
        const double sum = time[i] - other;
        least[i] = sum < least[i] ? sum : least[i];
      }
    }
    for (size_t i = 0; i < size; ++i) {
      own[i] += least[i] - taken[i];
      taken[i] = least[i];
    }
    table.least = 0;
  }

  void give(int v, bool forward) {
    auto& own = own_[v];
    int next = 0, previous = 0;
    for (const auto& [t, end] : tables_of_[v]) {
      ++(is_next(v, tables_[t].ends[1 - end], forward) ? next : previous);
    }
    const double least = *std::min_element(own.begin(), own.end());
    const double share = 1.0 / std::max({next, previous, 1});
    for (const auto& [t, end] : tables_of_[v]) {
      if (!is_next(v, tables_[t].ends[1 - end], forward)) continue;
      auto& taken = tables_[t].taken[end];
      for (size_t i = 0; i < own.size(); ++i) taken[i] -= share * own[i];
      tables_[t].least = share * least;
    }
    for (double& time : own) time *= 1 - share * next;
    least_[v] = (1 - share * next) * least;
  }

  bool is_next(int v, int other, bool forward) const {
    return (place_[other] > place_[v]) == forward;
  }

  // Drops options whose cost plus the least cost of all other variables (`others`) exceeds the
  // best solution's.
  bool drop(int v, double others) {
    const double most = static_cast<double>(best_time_) + margin() - others;
    std::erase_if(found_.keep[v], [&](int i) { return own_[v][i] > most; });
    return !found_.keep[v].empty();
  }

  // The option of least cost, given the options of the preceding variables.
  int cheapest(int v, const std::vector<int>& solution) const {
    auto cost = own_[v];
    for (const auto& [t, end] : tables_of_[v]) {
      const auto& table = tables_[t];
      const int other = solution[table.ends[1 - end]];
      if (other < 0) continue;
      const double* time = table.time[end].data() + other * cost.size();
      const double taken = table.taken[1 - end][other];
      for (size_t i = 0; i < cost.size(); ++i) cost[i] += time[i] - taken - table.taken[end][i];
    }
    return static_cast<int>(std::min_element(cost.begin(), cost.end()) - cost.begin());
  }

  void visit(std::vector<int> solution) {
    if (time_of(model_, solution) >= kForbidden) return;
    descend(model_, solution);
    const auto time = time_of(model_, solution);
    if (time >= best_time_) return;
    best_time_ = time;
    found_.best = std::move(solution);
  }

  const AssignModel& model_;
  double most_ = 1;
  std::vector<std::vector<double>> own_;  // time per variable and option
  std::vector<double> least_;             // per variable
  std::vector<Table> tables_;
  // Per variable: index in tables_, end.
  std::vector<std::vector<std::pair<size_t, int>>> tables_of_;
  std::vector<int> order_, place_;
  Tightened found_;
  int64_t best_time_ = kForbidden;
};

}  // namespace

Tightened tighten(const AssignModel& model, double most_work) {
  AssignModel unlimited{.variables = model.variables, .pairs = model.pairs};
  return Diffusion(unlimited).run(most_work);
}

}  // namespace perigee::solve
