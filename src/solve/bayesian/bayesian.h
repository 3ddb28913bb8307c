// Bayesian optimisation over discrete choices, for functions that are expensive to evaluate, such
// as a dry run of a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace perigee::solve {

// The option index of each choice.
using Point = std::vector<int>;

// Minimises a function of several choices, each among a few options. A Gaussian process
// (Rasmussen and Williams 2006) is fitted to the known values, and the point of largest expected
// improvement (Jones et al. 1998) is evaluated next. The kernel is k(a, b) = exp(-sum over
// choices c of w_c [a_c != b_c]), with the weights of maximum likelihood. The same seed and
// values give the same points.
class Bayesian {
 public:
  // `options`: number of options of each choice, >= 1. The first `spread` points are as far apart
  // as possible. Throws Error for a choice without options.
  Bayesian(std::vector<int> options, uint64_t seed, int spread = 3);

  // Returns the point to evaluate next, one without a known value; nothing when all values
  // are known.
  std::optional<Point> ask();

  // Adds the value of a point: above 0, to be minimised; infinity if the evaluation failed.
  void tell(Point point, double value);

 private:
  std::vector<Point> unknown();
  Point farthest(const std::vector<Point>& candidates) const;
  Point most_promising(const std::vector<Point>& candidates) const;
  bool is_known(const Point& point) const;

  std::vector<int> options_;
  size_t spread_;
  std::mt19937_64 random_;
  std::vector<Point> points_;  // with known values
  std::vector<double> values_;
};

}  // namespace perigee::solve
