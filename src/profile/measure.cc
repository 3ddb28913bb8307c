#include "profile/measure.h"

#include <algorithm>
#include <cmath>

namespace perigee::profile {

constexpr double kRounding = 1e-12;

Measured median_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto count = std::ssize(samples);
  const auto half = samples.size() / 2;
  Measured result{.samples = count};
  result.seconds = samples.size() % 2 ? samples[half] : 0.5 * (samples[half - 1] + samples[half]);
  // Order statistics: distribution-free for a median.
  const double spread = 0.98 * std::sqrt(static_cast<double>(count));
  const auto at = [&](double position) {
    const auto index = std::clamp<int64_t>(std::llround(position), 0, count - 1);
    return samples[static_cast<size_t>(index)];
  };
  const double middle = 0.5 * static_cast<double>(count - 1);
  result.interval = 0.5 * (at(middle + spread) - at(middle - spread));
  return result;
}

Measured mean_of(const std::vector<double>& samples) {
  const auto count = static_cast<double>(samples.size());
  Measured result{.samples = std::ssize(samples)};
  for (const double sample : samples) result.seconds += sample / count;
  double squares = 0;
  for (const double sample : samples) squares += std::pow(sample - result.seconds, 2);
  if (count > 1) result.interval = 1.96 * std::sqrt(squares / (count - 1) / count);
  return result;
}

Line fit(const Points& points) {
  // Weighted least squares of t = a + b x.
  double w = 0, wx = 0, wt = 0, wxx = 0, wxt = 0;
  Line line;
  for (const auto& [x, measured] : points) {
    const double t = measured.seconds;
    if (t <= 0) continue;
    // Weighted by its interval, which counts as 5% at least.
    const double error = std::max(measured.interval, 0.05 * t);
    const double weight = 1 / (error * error);
    w += weight;
    wx += weight * x;
    wt += weight * t;
    wxx += weight * x * x;
    wxt += weight * x * t;
    line.interval = std::max(line.interval, measured.interval / t);
  }
  if (w == 0) return line;
  const double determinant = w * wxx - wx * wx;
  // With points of one size the determinant is a rounding error.
  line.per_byte = determinant > kRounding * w * wxx ? (w * wxt - wx * wt) / determinant : 0;
  line.per_byte = std::max(0.0, line.per_byte);
  line.latency = (wt - line.per_byte * wx) / w;
  if (line.latency < 0) {
    line.latency = 0;
    line.per_byte = wxx > 0 ? wxt / wxx : 0;
  }
  return line;
}

}  // namespace perigee::profile
