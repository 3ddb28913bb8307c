// An assign problem in the form its exact search works on: ops that follow each other are one
// variable, parallel edges are one table, every number is an integer count of a quantum. Integers
// make equal sums equal, whatever their order: without that, permutations of identical layers
// differ by rounding and no two labels ever meet.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "solve/problem.h"

namespace perigee::solve {

inline constexpr int64_t kForbidden = std::numeric_limits<int64_t>::max() / 4;

// What one option of a variable adds, in quanta.
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

struct Model {
  std::vector<Variable> variables;
  std::vector<Pair> pairs;  // at most one for u, v
  int groups = 0;           // rows 0..groups-1
  int moments = 0;          // rows groups..groups+moments-1
  int transient_count = 2;
  bool limited = false;
  int64_t capacity =
      0;  // peak memory and every moment must not exceed it; meaningless unless limited
  std::vector<int64_t> thresholds;  // 0 and every distinct transient, ascending
  double time_quantum = 1;
  double memory_quantum = 1;
  int64_t granule = 1;     // all times are multiples of it, where the quantum is exact
  bool exact_time = true;  // no time was rounded
};

// What of a problem a model is built for.
struct ModelOptions {
  double time_scale =
      std::numeric_limits<double>::infinity();  // slower than this is as good as forbidden
  bool ignore_time = false;                     // every allowed choice takes no time
};

// Returns the model. Numbers with up to nine decimals stay exact; others are rounded to a quantum
// far below the tolerance.
Model make_model(const AssignProblem& problem, const ModelOptions& options = {});

// Returns the model with only the options listed per variable (indices into its present options,
// ascending).
Model restrict_model(const Model& model, const std::vector<std::vector<int>>& keep);

// Returns the option index per op of a solution (option position per variable).
std::vector<int> to_choice(const Model& model, std::span<const int> solution, size_t ops);

int64_t time_of(const Model& model, std::span<const int> solution);

// Returns the larger of peak memory and the largest moment.
int64_t memory_of(const Model& model, std::span<const int> solution);

}  // namespace perigee::solve
