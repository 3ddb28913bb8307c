// The cost of a given solution, computed straight from the format's definition and independent of
// every solver.
#pragma once

#include <limits>
#include <span>
#include <string>

#include "solve/problem.h"

namespace perigee::solve {

// Relative tolerance of checked limits.
inline constexpr double kTolerance = 1e-9;

struct Peak {
  double resident = 0, saved = 0, optimizer = 0, transient = 0, group = 0;
  double moment = 0;      // the largest moment; 0 without moments
  int moment_index = -1;  // which moment that is; -1 without moments
  double total() const;   // the larger of the sum and the largest moment
};

struct Evaluation {
  double time = 0;    // infinity where the solution uses a forbidden pair
  double memory = 0;  // assign: peak memory; stages: 0
  bool allowed = true;
  std::string why;  // the first constraint it breaks; "" where it breaks none
};

// Returns the terms of the peak memory of a choice (one option index per op).
Peak peak_memory(const AssignProblem& problem, std::span<const int> choice);

// Returns time, memory and whether every constraint holds. Throws Error (invalid) where an index
// does not exist.
Evaluation evaluate(const AssignProblem& problem, std::span<const int> choice);
Evaluation evaluate(const StagesProblem& problem, std::span<const int> choice);
Evaluation evaluate(const Problem& problem, std::span<const int> choice);

}  // namespace perigee::solve
