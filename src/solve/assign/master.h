// The linear program over mixtures of whole choices (Dantzig-Wolfe): its row prices are the best
// Lagrange multipliers.
#pragma once

#include <cstddef>
#include <vector>

namespace perigee::solve {

// Minimises the cost of a mixture of columns (weights >= 0 that sum to one) under `rows` limits, by
// the revised simplex method with a dense inverse. Scale costs and rows to about one.
class Master {
 public:
  // limits[r] >= 0. `penalty` is the cost of the column that breaks no limit and stands for "no
  // mixture found".
  Master(std::vector<double> limits, double penalty);

  // Adds a choice with its cost and its use of each limit.
  void add_choice(double cost, const std::vector<double>& use) { add(cost, 1, use); }
  // Adds a free quantity >= 0 that is no choice and costs nothing.
  void add_quantity(const std::vector<double>& use) { add(0, 0, use); }

  // Solves from the present basis and returns the cost of the best mixture.
  double solve();
  // Returns the price (>= 0) of each limit after solve().
  std::vector<double> prices() const;

 private:
  void add(double cost, double weight, const std::vector<double>& use);
  void pivot(size_t row, const std::vector<double>& column);

  size_t size_;                  // rows, the sum of weights first
  std::vector<double> value_;    // of the basic columns
  std::vector<int> basis_;       // basic column per row
  std::vector<double> inverse_;  // size x size
  std::vector<double> dual_;
  std::vector<double> cost_;            // per column
  std::vector<std::vector<double>> a_;  // per column
};

}  // namespace perigee::solve
