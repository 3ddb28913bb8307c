#include "search/features.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace perigee::search {
namespace {

struct Feature {
  const char* name;
  bool (*has)(const Choice&);
};

constexpr Feature kFeatures[] = {
    {"tensor parallelism", [](const Choice& c) { return c.tensor > 1; }},
    {"sharing out experts", [](const Choice& c) { return c.expert > 1; }},
    {"sharding the sequence", [](const Choice& c) { return c.context > 1; }},
    {"a pipeline", [](const Choice& c) { return c.pipe > 1; }},
    {"parameters in parts", [](const Choice& c) { return c.zero == 3; }},
    {"optimizer state on the host", [](const Choice& c) { return c.offload; }}};

}  // namespace

void Features::count(const Choice& choice, double seconds, bool bound) {
  static_assert(std::size(kFeatures) == kCount);
  for (size_t f = 0; f < kCount; ++f) {
    auto& least = least_[f][kFeatures[f].has(choice)];
    if (seconds < least.seconds) least = {seconds, bound};
  }
}

std::vector<std::string> Features::sentences(const Choice& best, double seconds) const {
  std::vector<std::string> told;
  for (size_t f = 0; f < kCount; ++f) {
    const bool has = kFeatures[f].has(best);
    const auto& [other, bound] = least_[f][!has];
    const double longer = 100 * (other / seconds - 1);
    if (other == std::numeric_limits<double>::infinity() || (bound && longer <= 0)) continue;
    told.push_back(fmt::format(
        "{} {} a plan takes {}{:.1f}% {}", has ? "without" : "with", kFeatures[f].name,
        bound ? "at least " : "", std::abs(longer),
        longer < 0 ? "less by the model, but not by its programs" : "longer by the model"));
  }
  return told;
}

}  // namespace perigee::search
