#include "solve/bayesian/bayesian.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/infinity.h"
#include "solve/bayesian/gaussian_process.h"

namespace perigee::solve {
namespace {

// Limit on the candidate points that are compared for each evaluation.
constexpr int64_t kMostCandidates = 4096;

// Returns the expected decrease below the best known value.
double expected_improvement(const Prediction& prediction, double best) {
  const double gain = best - prediction.mean;
  if (prediction.deviation < 1e-12) return std::max(gain, 0.0);
  const double z = gain / prediction.deviation;
  const double probability = 0.5 * std::erfc(-z / std::sqrt(2.0));
  const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * 3.14159265358979323846);
  return gain * probability + prediction.deviation * density;
}

// The values' logarithms, scaled to mean 0 and standard deviation 1. Failed points count as worse
// than all others.
std::vector<double> standardized(std::vector<double> values) {
  double sum = 0, squares = 0, worst = -kInfinity;
  int count = 0;
  for (auto& value : values) {
    if (value == kInfinity) continue;
    value = std::log(std::max(value, 1e-300));
    sum += value;
    squares += value * value;
    worst = std::max(worst, value);
    ++count;
  }
  if (count == 0) return std::vector<double>(values.size(), 0);
  const double mean = sum / count;
  const double deviation = std::sqrt(std::max(squares / count - mean * mean, 1e-12));
  for (auto& value : values) {
    value = value == kInfinity ? (worst - mean) / deviation + 1 : (value - mean) / deviation;
  }
  return values;
}

}  // namespace

Bayesian::Bayesian(std::vector<int> options, uint64_t seed, int spread)
    : options_(std::move(options)),
      spread_(static_cast<size_t>(std::max(spread, 1))),
      random_(seed) {
  for (const int count : options_) {
    if (count < 1) fail("search", "a choice has at least one option, but got {}", count);
  }
}

bool Bayesian::is_known(const Point& point) const {
  return std::find(points_.begin(), points_.end(), point) != points_.end();
}

void Bayesian::tell(Point point, double value) {
  points_.push_back(std::move(point));
  values_.push_back(value);
}

std::vector<Point> Bayesian::unknown() {
  int64_t all = 1;
  for (const int count : options_) all = std::min(all * count, kMostCandidates + 1);
  std::vector<Point> result;
  if (all <= kMostCandidates) {
    Point point(options_.size(), 0);
    for (int64_t k = 0; k < all; ++k) {
      if (!is_known(point)) result.push_back(point);
      for (size_t c = 0; c < point.size() && ++point[c] == options_[c]; ++c) point[c] = 0;
    }
    return result;
  }
  // Candidates: random points, and all points that differ from the best in one choice.
  const auto add = [&](const Point& point) {
    if (!is_known(point)) result.push_back(point);
  };
  if (!points_.empty()) {
    const auto best = std::min_element(values_.begin(), values_.end()) - values_.begin();
    for (size_t c = 0; c < options_.size(); ++c) {
      auto point = points_[static_cast<size_t>(best)];
      for (point[c] = 0; point[c] < options_[c]; ++point[c]) add(point);
    }
  }
  // Where few points are unknown, most draws are known.
  for (int64_t draw = 0;
       draw < 4 * kMostCandidates && static_cast<int64_t>(result.size()) < kMostCandidates;
       ++draw) {
    Point point;
    for (const int count : options_) {
      point.push_back(static_cast<int>(random_() % static_cast<uint64_t>(count)));
    }
    add(point);
  }
  return result;
}

Point Bayesian::farthest(const std::vector<Point>& candidates) const {
  const Point* best = nullptr;
  size_t most = 0;
  for (const auto& point : candidates) {
    size_t least = point.size() + 1;
    for (const auto& known : points_) {
      size_t differ = 0;
      for (size_t c = 0; c < point.size(); ++c) differ += point[c] != known[c];
      least = std::min(least, differ);
    }
    if (best && least <= most) continue;
    best = &point;
    most = least;
  }
  return *best;
}

Point Bayesian::most_promising(const std::vector<Point>& candidates) const {
  const auto values = standardized(values_);
  const GaussianProcess process(points_, values);
  const double best = *std::min_element(values.begin(), values.end());
  const Point* chosen = nullptr;
  double most = 0;
  for (const auto& point : candidates) {
    const double gain = expected_improvement(process.at(point), best);
    if (chosen && gain <= most) continue;
    chosen = &point;
    most = gain;
  }
  return *chosen;
}

std::optional<Point> Bayesian::ask() {
  auto candidates = unknown();
  if (candidates.empty()) return std::nullopt;
  if (points_.size() >= spread_) return most_promising(candidates);
  // Break ties at random.
  std::rotate(candidates.begin(),
              candidates.begin() + static_cast<int64_t>(random_() % candidates.size()),
              candidates.end());
  return farthest(candidates);
}

}  // namespace perigee::solve
