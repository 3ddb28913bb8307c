#include "capture/models/hf/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace perigee::hf {
namespace {

// Wavelengths between the two limits are interpolated smoothly; longer ones are stretched.
double llama3(double frequency, const Rope& rope, double original) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// Frequencies of many rotations within the original context stay, those of few are stretched.
void yarn(RopeTable& table, const Rope& rope, double original, double dim) {
  const auto dim_of = [&](double rotations) {
    return dim * std::log(original / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dim_of(rope.beta_fast), high = dim_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < table.frequencies.size(); ++i) {
    const double stretched = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    auto& frequency = table.frequencies[i];
    frequency = frequency / rope.factor * stretched + frequency * (1 - stretched);
  }
  const auto scale = [&](double m) {
    return rope.factor <= 1 ? 1 : 0.1 * m * std::log(rope.factor) + 1;
  };
  const bool both = rope.mscale != 0 && rope.mscale_all_dim != 0;
  table.scale = both ? scale(rope.mscale) / scale(rope.mscale_all_dim) : scale(1);
}

int64_t original_positions(const Architecture& a) {
  return a.rope.original_positions ? a.rope.original_positions : a.positions;
}

}  // namespace

int64_t longest_of_one_table(const Architecture& a) {
  if (a.rope.kind == "dynamic") return a.positions;
  return a.rope.kind == "longrope" ? original_positions(a) : 0;
}

RopeTable rope_table(const Architecture& a, int64_t sequence) {
  const auto& rope = a.rope;
  const double dim = double(a.head_size);
  const double original = double(original_positions(a));
  double theta = rope.theta;
  if (rope.kind == "dynamic") {
    const double length = double(std::max(sequence, a.positions));
    const double stretch = rope.factor * length / double(a.positions) - (rope.factor - 1);
    theta *= std::pow(stretch, dim / (dim - 2));
  }
  RopeTable table;
  for (int64_t i = 0; i < a.head_size / 2; ++i) {
    table.frequencies.push_back(std::pow(theta, -2.0 * double(i) / dim));
  }
  if (rope.kind == "linear") {
    for (auto& frequency : table.frequencies) frequency /= rope.factor;
  } else if (rope.kind == "llama3") {
    for (auto& frequency : table.frequencies) frequency = llama3(frequency, rope, original);
  } else if (rope.kind == "longrope") {
    const auto& factors = double(sequence) > original ? rope.long_factor : rope.short_factor;
    for (size_t i = 0; i < factors.size(); ++i) table.frequencies[i] /= factors[i];
    if (rope.factor > 1) {
      table.scale = std::sqrt(1 + std::log(rope.factor) / std::log(original));
    }
  } else if (rope.kind == "yarn") {
    yarn(table, rope, original, dim);
  }
  if (rope.attention_factor > 0) table.scale = rope.attention_factor;
  return table;
}

}  // namespace perigee::hf
