// A Gaussian process over points that are lists of options.
#pragma once

#include <vector>

namespace perigee::solve {

// The predicted distribution of a point's value: mean and standard deviation.
struct Prediction {
  double mean = 0, deviation = 0;
};

// Fitted to the values of at least one point; points are lists of equal length. Values should have
// mean 0.
class GaussianProcess {
 public:
  GaussianProcess(std::vector<std::vector<int>> points, std::vector<double> values);

  // Returns the predicted value of a point.
  Prediction at(const std::vector<int>& point) const;

 private:
  double kernel(const std::vector<int>& a, const std::vector<int>& b) const;
  // Factors the points' covariance under the weights. Returns the log likelihood of the values at
  // the scale that maximises it.
  double fit();

  std::vector<std::vector<int>> points_;
  std::vector<double> values_;
  std::vector<double> weights_;  // by choice
  std::vector<double> factor_;   // lower triangular, [n, n]
  std::vector<double> solved_;   // covariance^-1 values
  double scale_ = 1;
};

}  // namespace perigee::solve
