#include "solve/bayesian/gaussian_process.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace perigee::solve {
namespace {

// Noise of measured times, as a share of their variance.
constexpr double kNoise = 1e-3;
// Candidate weights of a choice: from hardly any influence to full influence.
constexpr std::array kWeights{0.02, 0.1, 0.3, 0.8, 2.0, 5.0};

}  // namespace

GaussianProcess::GaussianProcess(std::vector<std::vector<int>> points, std::vector<double> values)
    : points_(std::move(points)),
      values_(std::move(values)),
      weights_(points_.front().size(), 0.3) {
  double likeliest = fit();
  // Coordinate descent: two rounds over the weights.
  for (size_t k = 0; k < 2 * weights_.size(); ++k) {
    auto& weight = weights_[k % weights_.size()];
    double best = weight;
    for (const double tried : kWeights) {
      weight = tried;
      const double likelihood = fit();
      if (likelihood <= likeliest) continue;
      likeliest = likelihood;
      best = tried;
    }
    weight = best;
  }
  fit();
}

double GaussianProcess::kernel(const std::vector<int>& a, const std::vector<int>& b) const {
  double distance = 0;
  for (size_t c = 0; c < weights_.size(); ++c) {
    if (a[c] != b[c]) distance += weights_[c];
  }
  return std::exp(-distance);
}

double GaussianProcess::fit() {
  const size_t n = points_.size();
  factor_.assign(n * n, 0);
  double determinant = 0;  // half of its logarithm
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = kernel(points_[i], points_[j]) + (i == j ? kNoise : 0);
      for (size_t k = 0; k < j; ++k) sum -= factor_[i * n + k] * factor_[j * n + k];
      factor_[i * n + j] = i == j ? std::sqrt(sum) : sum / factor_[j * n + j];
    }
    determinant += std::log(factor_[i * n + i]);
  }
  solved_ = values_;
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) solved_[i] -= factor_[i * n + k] * solved_[k];
    solved_[i] /= factor_[i * n + i];
  }
  double squares = 0;
  for (const double value : solved_) squares += value * value;
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) solved_[i] -= factor_[k * n + i] * solved_[k];
    solved_[i] /= factor_[i * n + i];
  }
  scale_ = std::max(squares / static_cast<double>(n), 1e-12);
  return -determinant - 0.5 * static_cast<double>(n) * std::log(scale_);
}

Prediction GaussianProcess::at(const std::vector<int>& point) const {
  const size_t n = points_.size();
  std::vector<double> like(n);
  Prediction prediction;
  for (size_t i = 0; i < n; ++i) {
    like[i] = kernel(points_[i], point);
    prediction.mean += like[i] * solved_[i];
  }
  double variance = 1;
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) like[i] -= factor_[i * n + k] * like[k];
    like[i] /= factor_[i * n + i];
    variance -= like[i] * like[i];
  }
  prediction.deviation = std::sqrt(scale_ * std::max(variance, 0.0));
  return prediction;
}

}  // namespace perigee::solve
