#include "search/explain/features.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <utility>

namespace perigee::search {
namespace {

struct Feature {
  const char* name;
  bool (*has)(const Choice&);
};

constexpr Feature kFeatures[] = {
    {"tensor parallelism", [](const Choice& c) { return c.tensor > 1; }},
    {"expert parallelism", [](const Choice& c) { return c.expert > 1; }},
    {"context parallelism", [](const Choice& c) { return c.context > 1; }},
    {"a pipeline", [](const Choice& c) { return c.pipe > 1; }},
    {"stages of unequal submeshes", [](const Choice& c) { return !c.submeshes.empty(); }},
    {"parameters in parts", [](const Choice& c) { return c.zero == 3; }},
    {"optimizer state on the host", [](const Choice& c) { return c.offload; }}};

}  // namespace

void Features::count(const Choice& choice, double seconds, bool bound) {
  static_assert(std::size(kFeatures) == kCount);
  for (size_t f = 0; f < kCount; ++f) {
    auto& least = least_[f][kFeatures[f].has(choice)];
    if (seconds < least.seconds) least = {seconds, bound};
  }
  if (!choice.submeshes.empty()) return;
  auto& size = tensor_sizes_[choice.tensor];
  if (bound) {
    size.bound = std::min(size.bound, seconds);
  } else if (seconds < size.seconds) {
    size.seconds = seconds;
    size.choice = choice;
  }
}

std::vector<std::string> Features::sentences(const Choice& best, double seconds,
                                             bool longer) const {
  std::vector<std::string> texts;
  for (size_t f = 0; f < kCount; ++f) {
    const bool has = kFeatures[f].has(best);
    const auto& [other, bound] = least_[f][!has];
    if (other == std::numeric_limits<double>::infinity() || ((bound || longer) && other <= seconds))
      continue;
    texts.push_back(fmt::format("{} {} a plan takes {}{}", has ? "without" : "with",
                                kFeatures[f].name, bound ? "at least " : "",
                                more_text(other, seconds)));
  }
  return texts;
}

std::vector<Features::TensorSize> Features::tensor_sizes() const {
  std::vector<TensorSize> sizes;
  for (const auto& [tensor, size] : tensor_sizes_) {
    sizes.push_back(size);
    sizes.back().tensor = tensor;
  }
  return sizes;
}

std::string narrowing(const std::vector<Choice>& all, const Choice& best) {
  struct Pin {
    const char* name;
    std::function<std::string(const Choice&)> value;
  };
  const auto number = [](int64_t Choice::*field) {
    return [field](const Choice& c) { return std::to_string(c.*field); };
  };
  const Pin pins[] = {{"tensor", number(&Choice::tensor)},
                      {"pipe", number(&Choice::pipe)},
                      {"data", number(&Choice::data)},
                      {"micro", number(&Choice::micro)},
                      {"zero", [](const Choice& c) { return std::to_string(c.zero); }},
                      {"schedule", [](const Choice& c) { return '"' + c.schedule + '"'; }}};
  std::vector<std::pair<int64_t, std::string>> left;
  for (const auto& pin : pins) {
    const auto value = pin.value(best);
    if (value == "\"\"") continue;
    const auto count = std::ranges::count_if(
        all, [&](const auto& choice) { return pin.value(choice) == value; });
    if (count < std::ssize(all)) left.emplace_back(count, fmt::format("{} = {}", pin.name, value));
  }
  std::ranges::stable_sort(left, {}, [](const auto& one) { return one.first; });
  std::string text;
  for (const auto& [count, pin] : left) {
    text += fmt::format("{}{} leaves {} of {}", text.empty() ? "" : ", ", pin, count, all.size());
  }
  return text;
}

std::string more_text(double other, double best) {
  const double longer = 100 * (other / best - 1);
  return fmt::format(
      "{:.1f}% {}", std::abs(longer),
      longer < 0 ? "less by the model, but not by its programs" : "longer by the model");
}

}  // namespace perigee::search
