// Bayesian optimisation over choices: for functions that are dear to ask, such as a dry run of a
// plan.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace perigee::solve {

// An option of each choice.
using Point = std::vector<int>;

// Minimises a function of several choices, each among a few options. A Gaussian process over what
// is known (Rasmussen and Williams 2006) says what a point may give; the one of the most expected
// improvement (Jones et al. 1998) is asked next. Points are alike as far as they choose alike:
// k(a, b) = exp(-sum over choices c of w_c [a_c != b_c]), with the weights that make what is known
// the likeliest. The same seed and answers give the same points.
class Bayesian {
 public:
  // `options`: of each choice, how many; at least one each. The first `spread` points are as far
  // from each other as can be. Throws Error for a choice without options.
  Bayesian(std::vector<int> options, uint64_t seed, int spread = 3);

  // Returns the point to ask next, none twice; nothing when all have been told.
  std::optional<Point> ask();

  // Says what a point gives, above 0, less is better; infinity where it failed.
  void tell(Point point, double value);

 private:
  std::vector<Point> unknown();
  Point farthest(const std::vector<Point>& among) const;
  Point most_promising(const std::vector<Point>& among) const;
  bool is_known(const Point& point) const;

  std::vector<int> options_;
  size_t spread_;
  std::mt19937_64 random_;
  std::vector<Point> points_;  // told
  std::vector<double> values_;
};

}  // namespace perigee::solve
