// An assign problem as the exact search reads it: ops that follow each other are one variable,
// parallel edges are one table, every number is an integer multiple of a quantum. Integer sums do
// not depend on their order; with rounding, permutations of identical layers would differ, and
// labels of equal states would not be recognised as equal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "solve/problem.h"

namespace perigee::solve {

inline constexpr int64_t kForbidden = std::numeric_limits<int64_t>::max() / 4;

// A sum of times, of which either may be kForbidden.
inline int64_t bounded_sum(int64_t a, int64_t b) { return std::min(a + b, kForbidden); }

// The time and memory of one option of a variable, in quanta.
struct Use {
  int64_t time = 0;
  int64_t backward = 0;             // resident + saved: the peak with saved activations
  int64_t step = 0;                 // resident + optimizer: the peak in the optimizer's step
  std::vector<int64_t> transients;  // one per member op, zeros left out
  std::vector<int64_t> rows;        // parallel to Variable::rows
};

struct Variable {
  std::vector<int> ops;      // members, ascending
  std::vector<int> options;  // original option index of each option that is left
  std::vector<int> rows;     // rows it adds to: groups first, then moments
  std::vector<Use> uses;     // parallel to options
  int size() const { return static_cast<int>(options.size()); }
};

// A table between variables u < v: time[option of u * size of v + option of v], kForbidden where
// not allowed.
struct Pair {
  int u = 0;
  int v = 0;
  std::vector<int64_t> time;
};

struct AssignModel {
  std::vector<Variable> variables;
  std::vector<Pair> pairs;  // at most one for u, v
  int groups = 0;           // rows 0..groups-1
  int moments = 0;          // rows groups..groups+moments-1
  int transient_count = 2;
  bool limited = false;
  int64_t capacity = 0;  // limit of peak memory and of every moment; unused unless `limited`
  std::vector<int64_t> thresholds;  // 0 and every distinct transient, ascending
  double time_quantum = 1;
  double memory_quantum = 1;
  int64_t granule = 1;     // all times are multiples of it, where the quantum is exact
  bool exact_time = true;  // no time was rounded
};

// Restrictions of a model to a part of its problem.
struct ModelOptions {
  double time_scale =
      std::numeric_limits<double>::infinity();  // options slower than this are forbidden
  bool ignore_time = false;                     // every allowed choice has time 0
};

// Returns the model. Numbers with up to nine decimals stay exact; others are rounded to a quantum
// far below the tolerance.
AssignModel make_model(const AssignProblem& problem, const ModelOptions& options = {});

// Returns the model with only the options listed per variable (indices into its present
// options, ascending).
AssignModel restrict_model(const AssignModel& model, const std::vector<std::vector<int>>& keep);

// Returns the option index per op of a solution (option position per variable).
std::vector<int> to_choice(const AssignModel& model, std::span<const int> solution, size_t ops);

int64_t time_of(const AssignModel& model, std::span<const int> solution);

// Returns the larger of peak memory and the largest moment.
int64_t memory_of(const AssignModel& model, std::span<const int> solution);

}  // namespace perigee::solve
