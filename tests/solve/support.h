// Random problems and exhaustive search, which shares nothing with the solvers but evaluate().
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "solve/problem.h"

namespace perigee::solve::testing {

// Which parts of the format a random problem uses, and its size.
struct AssignShape {
  int ops = 6;
  int options = 4;          // at most, per op
  double edge_share = 0.2;  // of the pairs of ops beside the chain
  bool chain = true;
  bool memory = true, groups = false, follows = false, moments = false;
  double forbidden = 0;  // share of edge entries
  bool whole = false;    // whole numbers, with many ties
  bool same = false;     // all ops are identical
  double tightness =
      0.5;  // memory limit; 0: the least of each term; 1: the memory of the fastest choice
};

struct StagesShape {
  int layers = 5;
  int devices = 6;
  double density = 0.7;  // share of candidates that exist
  bool successors = true;
  bool whole = false;
};

using Random = std::mt19937_64;

AssignProblem random_assign(Random& random, const AssignShape& shape);
// Draws the shape, too: small enough for exhaustive().
AssignProblem random_small_assign(Random& random);
StagesProblem random_stages(Random& random, const StagesShape& shape);
StagesProblem random_small_stages(Random& random);

// Returns the least time over every choice or sequence, nothing where none is allowed.
std::optional<double> exhaustive(const AssignProblem& problem);
std::optional<double> exhaustive(const StagesProblem& problem);

// Checks a result for a problem whose least time is `expected` against the documented format. Returns the first error, or "".
std::string complaint(const Problem& problem, const Result& result, std::optional<double> expected,
                      double tolerance = 1e-9);

std::string read_file(const std::string& path);

}  // namespace perigee::solve::testing
