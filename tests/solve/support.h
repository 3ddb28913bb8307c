// Random problems, and exhaustive search, which shares only evaluate() with the solvers.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "solve/problem.h"

namespace perigee::solve::testing {

// The size of a random problem, and the fields of the format that it uses.
struct AssignShape {
  int ops = 6;
  int options = 4;          // of an op, at most
  double edge_share = 0.2;  // share of the pairs of ops with an edge beside the chain's
  bool chain = true;
  bool memory = true, groups = false, follows = false, moments = false;
  double forbidden = 0;  // share of forbidden pairs of options
  bool whole = false;    // whole numbers, which give many ties
  bool same = false;     // all ops are identical
  // Memory limit: 0 is the least of each term, 1 the memory of the fastest choice.
  double tightness = 0.5;
};

struct StagesShape {
  int layers = 5;
  int devices = 6;
  double density = 0.7;  // share of candidates that exist
  bool successors = true;
  bool whole = false;
};

using Random = std::mt19937_64;

// Returns a random number from `low` to `high`.
double uniform(Random& random, double low, double high);

AssignProblem random_assign(Random& random, const AssignShape& shape);
// Draws the shape, too; small enough for exhaustive().
AssignProblem random_small_assign(Random& random);
StagesProblem random_stages(Random& random, const StagesShape& shape);
StagesProblem random_small_stages(Random& random);

// Returns the least time of all choices or sequences, nothing if none is allowed.
std::optional<double> exhaustive(const AssignProblem& problem);
std::optional<double> exhaustive(const StagesProblem& problem);

// Checks a result against the documented format; `expected`: the least time. Returns the first
// error, or "".
std::string first_error(const Problem& problem, const Result& result,
                        std::optional<double> expected, double tolerance = 1e-9);

std::string read_file(const std::string& path);

}  // namespace perigee::solve::testing
