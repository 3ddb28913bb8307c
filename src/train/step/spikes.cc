#include "train/step/spikes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace perigee::train {
namespace {

// Returns the lower median; nothing where there are too few numbers.
std::optional<double> median_of(const std::deque<double>& window) {
  if (window.size() < Spikes::kAtLeast) return std::nullopt;
  std::vector<double> sorted(window.begin(), window.end());
  const auto middle = sorted.begin() + static_cast<int64_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

double limit_of(const std::deque<double>& window, double factor) {
  const auto median = median_of(window);
  const bool limits = factor > 0 && median && *median > 0;
  return limits ? factor * *median : std::numeric_limits<double>::infinity();
}

void append(std::deque<double>& window, double value) {
  if (!std::isfinite(value)) return;
  window.push_back(value);
  if (window.size() > Spikes::kWindow) window.pop_front();
}

std::string reason_of(const char* what, double value, const std::deque<double>& window,
                      double factor) {
  if (value <= limit_of(window, factor)) return "";
  const auto median = *median_of(window);
  return fmt::format("its {} is {:.4g}, {:.3g} times the median {:.4g} of {} steps", what, value,
                     value / median, median, window.size());
}

}  // namespace

StepLimits Spikes::limits() const {
  return {.loss = limit_of(losses_, loss_factor_), .grad_norm = limit_of(norms_, norm_factor_)};
}

std::string Spikes::reason(double loss, double grad_norm) const {
  auto reason = reason_of("loss", loss, losses_, loss_factor_);
  return reason.empty() ? reason_of("gradient norm", grad_norm, norms_, norm_factor_) : reason;
}

void Spikes::add(double loss, double grad_norm) {
  append(losses_, loss);
  append(norms_, grad_norm);
}

std::string Spikes::text() const {
  return nlohmann::json{{"losses", losses_}, {"norms", norms_}}.dump();
}

void Spikes::read(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto numbers = [&](const char* name) {
    std::deque<double> window;
    if (!json.is_object() || !json.contains(name) || !json[name].is_array()) return window;
    for (const auto& number : json[name]) {
      if (number.is_number()) append(window, number.get<double>());
    }
    return window;
  };
  losses_ = numbers("losses");
  norms_ = numbers("norms");
}

}  // namespace perigee::train
