#include "solve/ilp/ilp.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>

#include "base/deadline.h"
#include "base/infinity.h"
#include "solve/evaluate.h"
#include "solve/ilp/integer_program.h"

namespace perigee::solve {
namespace {

// CBC's tolerances are about 1e-7. Costs are scaled so that an answer costs about kCostScale; the
// cost of an answer below kPreciseCost is not known to 1e-9, relative.
constexpr double kCostScale = 1e5;
constexpr double kPreciseCost = 1e3;
constexpr double kCostError = 1e-6;
constexpr double kCostSpread = 1e3;  // limit on the largest cost / kCostScale

using Clock = std::chrono::steady_clock;

// Solves repeatedly, forbidding answers that `read` refuses (they exceed a limit by less than CBC's
// tolerance). `read` returns the choice; `chosen` the columns that are 1 in it.
template <class Problem>
IlpOutcome minimise(IntegerProgram& program, const Problem& problem, double scale,
                    Clock::time_point deadline,
                    const std::function<std::vector<int>(const std::vector<double>&)>& read,
                    const std::function<std::vector<int>(const std::vector<int>&)>& chosen) {
  IlpOutcome outcome;
  for (;;) {
    const double left = std::chrono::duration<double>(deadline - Clock::now()).count();
    if (left <= 0) return outcome;
    const auto answer = program.minimise(left);
    if (answer.ending == IntegerProgram::Ending::infeasible) {
      outcome.finished = true;
      outcome.lower_bound = kInfinity;
      return outcome;
    }
    outcome.lower_bound = std::max(0.0, answer.bound / scale * (1 - 1e-9));
    if (answer.values.empty()) return outcome;
    auto choice = read(answer.values);
    const auto evaluation = evaluate(problem, choice);
    if (evaluation.allowed) {
      outcome.choice = std::move(choice);
      outcome.finished = answer.ending == IntegerProgram::Ending::optimal;
      if (outcome.finished) outcome.lower_bound = evaluation.time;
      return outcome;
    }
    IntegerProgram::Terms terms;
    for (int column : chosen(choice)) terms.emplace_back(column, 1.0);
    program.add_row(terms, {-kInfinity, static_cast<double>(terms.size()) - 1});
  }
}

// The factor of costs, and the time of a known solution: options with a larger cost are left out.
struct Pricing {
  double scale = 1;
  double cutoff = kInfinity;
  bool leaves_out(double time) const { return time > cutoff * (1 + kTolerance); }
};

// Solves with costs scaled by an estimate of the answer's time, and repeats with the time found if
// the scale was too small for CBC to distinguish answers. Options that cost more than the answer
// are left out, so that all costs are of its magnitude.
template <class Problem>
IlpOutcome solve_scaled(const Problem& problem, double guess,
                        const std::function<IlpOutcome(const Pricing&)>& solve) {
  Pricing pricing{.scale = kCostScale / guess};
  IlpOutcome best;
  for (;;) {
    auto outcome = solve(pricing);
    if (outcome.choice) {
      const double time = evaluate(problem, *outcome.choice).time;
      if (time < pricing.cutoff) {
        pricing.cutoff = time;
        best.choice = std::move(outcome.choice);
      }
    }
    if (!best.choice) return outcome;
    const double cost = pricing.cutoff * pricing.scale;
    const bool precise = cost == 0 || cost >= kPreciseCost;
    // Options that were left out cost more than the best solution.
    double bound = std::min(outcome.lower_bound, pricing.cutoff);
    if (!precise) bound = std::max(0.0, bound - kCostError / pricing.scale);
    best.lower_bound = std::max(best.lower_bound, bound);
    best.finished = outcome.finished && precise;
    if (!outcome.finished || precise) return best;
    pricing.scale = kCostScale / pricing.cutoff;
  }
}

// The columns of an assign problem: one per option of each op that follows none; followers share
// their leader's.
class AssignProgram {
 public:
  AssignProgram(const AssignProblem& problem, const Pricing& pricing)
      : problem_(problem),
        pricing_(pricing),
        leader_(problem.ops.size()),
        first_(problem.ops.size()) {
    for (size_t i = 0; i < problem.ops.size(); ++i) {
      const auto& op = problem.ops[i];
      leader_[i] = op.follows < 0 ? static_cast<int>(i) : leader_[op.follows];
      if (op.follows >= 0) {
        first_[i] = first_[leader_[i]];
      } else {
        IntegerProgram::Terms one;
        first_[i] = columns_;
        for (size_t j = 0; j < op.options.size(); ++j) {
          one.emplace_back(program_.add_column({.most = 1, .integer = true}), 1.0);
        }
        columns_ += static_cast<int>(op.options.size());
        program_.add_row(one, {1, 1});
      }
      for (size_t j = 0; j < op.options.size(); ++j) {
        add_time(first_[i] + static_cast<int>(j), op.options[j].time);
      }
    }
    for (const auto& edge : problem.edges) add_edge(edge);
    if (problem.memory_limit) add_memory(*problem.memory_limit);
  }

  IlpOutcome solve(Clock::time_point deadline) {
    return minimise<AssignProblem>(
        program_, problem_, pricing_.scale, deadline,
        [&](const std::vector<double>& values) {
          std::vector<int> choice;
          for (size_t i = 0; i < problem_.ops.size(); ++i) {
            const auto begin = values.begin() + first_[i];
            choice.push_back(static_cast<int>(
                std::max_element(begin, begin + problem_.ops[i].options.size()) - begin));
          }
          return choice;
        },
        [&](const std::vector<int>& choice) {
          std::vector<int> chosen;
          for (size_t i = 0; i < choice.size(); ++i) {
            if (leader_[i] == static_cast<int>(i)) chosen.push_back(first_[i] + choice[i]);
          }
          return chosen;
        });
  }

 private:
  // Adds the time of the column's option; infinity forbids the column.
  void add_time(int column, double time) {
    if (time == kInfinity || pricing_.leaves_out(time)) {
      program_.forbid(column);
    } else {
      program_.add_cost(column, time * pricing_.scale);
    }
  }

  // Adds value(option) of op i for each of its options to the terms, in units of the limit. No
  // choice has an option that takes more than the limit by itself.
  void add_terms(IntegerProgram::Terms& terms, int i, double AssignOption::*value) {
    const double limit = *problem_.memory_limit;
    for (size_t j = 0; j < problem_.ops[i].options.size(); ++j) {
      const double each = problem_.ops[i].options[j].*value;
      const int column = first_[i] + static_cast<int>(j);
      if (each > limit * (1 + kTolerance)) {
        program_.forbid(column);
      } else if (each != 0) {
        terms.emplace_back(column, each / limit);
      }
    }
  }

  void add_edge(const AssignEdge& edge) {
    const int height = static_cast<int>(problem_.ops[edge.from].options.size());
    const int width = static_cast<int>(problem_.ops[edge.to].options.size());
    if (leader_[edge.from] == leader_[edge.to]) {
      for (int j = 0; j < height; ++j) add_time(first_[edge.from] + j, edge.time[j * width + j]);
      return;
    }
    // One column per allowed pair, whose sums are the two ops' choices.
    std::vector<IntegerProgram::Terms> from(height), to(width);
    for (int i = 0; i < height; ++i) from[i].emplace_back(first_[edge.from] + i, -1.0);
    for (int j = 0; j < width; ++j) to[j].emplace_back(first_[edge.to] + j, -1.0);
    for (int i = 0; i < height; ++i) {
      for (int j = 0; j < width; ++j) {
        const double time = edge.time[i * width + j];
        if (time == kInfinity || pricing_.leaves_out(time)) continue;
        const int column = program_.add_column({.cost = time * pricing_.scale, .most = 1});
        from[i].emplace_back(column, 1.0);
        to[j].emplace_back(column, 1.0);
      }
    }
    for (const auto& terms : from) program_.add_row(terms, {0, 0});
    for (const auto& terms : to) program_.add_row(terms, {0, 0});
  }

  void add_memory(double limit) {
    const double most = limit > 0 ? 1 + kTolerance : 0;
    const int either = program_.add_column({.most = kInfinity});
    IntegerProgram::Terms peak = {{either, 1.0}}, saved = {{either, -1.0}},
                          optimizer = {{either, -1.0}};
    std::map<std::string, IntegerProgram::Terms> groups;
    const int threshold = problem_.transient_count > 0 ? program_.add_column({.most = kInfinity})
                                                       : -1;
    if (threshold >= 0) {
      peak.emplace_back(threshold, std::min<double>(problem_.transient_count,
                                                    static_cast<double>(problem_.ops.size())));
    }
    for (int i = 0; i < static_cast<int>(problem_.ops.size()); ++i) {
      const auto& op = problem_.ops[i];
      add_terms(peak, i, &AssignOption::resident);
      add_terms(optimizer, i, &AssignOption::optimizer);
      if (op.group.empty()) {
        add_terms(saved, i, &AssignOption::saved);
      } else {
        add_terms(groups[op.group], i, &AssignOption::saved);
        if (op.group_input) add_terms(saved, i, &AssignOption::input);
      }
      if (threshold >= 0) {
        const int over = program_.add_column({.most = kInfinity});
        IntegerProgram::Terms transient = {{over, -1.0}, {threshold, -1.0}};
        add_terms(transient, i, &AssignOption::transient);
        program_.add_row(transient, {-kInfinity, 0});
        peak.emplace_back(over, 1.0);
      }
    }
    program_.add_row(saved, {-kInfinity, 0});
    program_.add_row(optimizer, {-kInfinity, 0});
    if (!groups.empty()) {
      const int largest = program_.add_column({.most = kInfinity});
      peak.emplace_back(largest, 1.0);
      for (auto& [name, terms] : groups) {
        terms.emplace_back(largest, -1.0);
        program_.add_row(terms, {-kInfinity, 0});
      }
    }
    program_.add_row(peak, {-kInfinity, most});
    for (const auto& moment : problem_.moments) {
      IntegerProgram::Terms live;
      for (int i : moment) add_terms(live, i, &AssignOption::live);
      if (!live.empty()) program_.add_row(live, {-kInfinity, most});
    }
  }

  const AssignProblem& problem_;
  const Pricing pricing_;
  IntegerProgram program_;
  std::vector<int> leader_, first_;
  int columns_ = 0;
};

// Returns an estimate of the answer's time: at least the sum of the fastest options, and large
// enough for scaled costs to stay small.
double guess_time(const AssignProblem& problem) {
  double least_total = 0, largest = 0;
  for (const auto& op : problem.ops) {
    double least = kInfinity;
    for (const auto& option : op.options) {
      least = std::min(least, option.time);
      largest = std::max(largest, option.time);
    }
    least_total += least;
  }
  for (const auto& edge : problem.edges) {
    for (double time : edge.time) {
      if (time != kInfinity) largest = std::max(largest, time);
    }
  }
  const double guess = std::max(least_total, largest / kCostSpread);
  return guess > 0 ? guess : 1;
}

IlpOutcome solve_stages(const StagesProblem& problem, const Pricing& pricing,
                        Clock::time_point deadline) {
  IntegerProgram program;
  // The longest stage is counted in a unit in which times are at most about 1000.
  const double count = static_cast<double>(problem.microbatches), scale = pricing.scale;
  const double unit = 100 / (count * scale);
  std::vector<IntegerProgram::Terms> covers(problem.layers), starts(problem.layers + 1);
  IntegerProgram::Terms devices;
  for (size_t i = 0; i < problem.candidates.size(); ++i) {
    const auto& c = problem.candidates[i];
    const auto& mesh = problem.submeshes[c.submesh];
    const bool possible = !pricing.leaves_out(c.time * count);
    const int column = program.add_column(
        {.cost = possible ? c.time * scale : 0, .most = possible ? 1.0 : 0.0, .integer = true});
    for (int l = c.first; l <= c.last; ++l) covers[l].emplace_back(column, 1.0);
    starts[c.first].emplace_back(column, 1.0);
    devices.emplace_back(column, static_cast<double>(mesh.hosts * mesh.devices_per_host));
  }
  const int longest = program.add_column({.cost = (count - 1) * unit * scale, .most = kInfinity});
  for (const auto& terms : covers) program.add_row(terms, {1, 1});
  program.add_row(devices,
                  {static_cast<double>(problem.devices), static_cast<double>(problem.devices)});
  for (size_t i = 0; i < problem.candidates.size(); ++i) {
    const auto& c = problem.candidates[i];
    if (!pricing.leaves_out(c.time * count)) {
      program.add_row({{static_cast<int>(i), c.time / unit}, {longest, -1.0}}, {-kInfinity, 0});
    }
    const int after = problem.layers - 1 - c.last;  // most stages that could follow
    if (!c.max_successors || *c.max_successors >= after) continue;
    // Stages that start later, at most max_successors where this candidate is chosen.
    IntegerProgram::Terms later = {
        {static_cast<int>(i), static_cast<double>(after - *c.max_successors)}};
    for (int l = c.last + 1; l < problem.layers; ++l)
      later.insert(later.end(), starts[l].begin(), starts[l].end());
    program.add_row(later, {-kInfinity, static_cast<double>(after)});
  }
  return minimise<StagesProblem>(
      program, problem, scale, deadline,
      [&](const std::vector<double>& values) {
        std::vector<int> choice;
        for (size_t i = 0; i < problem.candidates.size(); ++i) {
          if (values[i] > 0.5) choice.push_back(static_cast<int>(i));
        }
        std::sort(choice.begin(), choice.end(), [&](int a, int b) {
          return problem.candidates[a].first < problem.candidates[b].first;
        });
        return choice;
      },
      [](const std::vector<int>& choice) { return choice; });
}

}  // namespace

IlpOutcome solve_ilp(const AssignProblem& problem, double seconds) {
  if (problem.ops.empty()) return {.choice = std::vector<int>{}, .finished = true};
  const auto deadline = deadline_after(seconds);
  return solve_scaled(problem, guess_time(problem), [&](const Pricing& pricing) {
    return AssignProgram(problem, pricing).solve(deadline);
  });
}

IlpOutcome solve_ilp(const StagesProblem& problem, double seconds) {
  const auto deadline = deadline_after(seconds);
  double largest = 0;
  for (const auto& c : problem.candidates) largest = std::max(largest, c.time);
  const double guess = largest > 0 ? largest * static_cast<double>(problem.microbatches) : 1;
  return solve_scaled(problem, guess, [&](const Pricing& pricing) {
    return solve_stages(problem, pricing, deadline);
  });
}

}  // namespace perigee::solve
