#include "search/shortage.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace perigee::search {
namespace {

constexpr double kNear = 0.02;
constexpr double kGrowth = 0.25;  // of all memory, where a guess was too small

}  // namespace

double round_up(double bytes) {
  double unit = 1;
  while (bytes / unit >= 999.5) unit *= 1024;
  const double shown = bytes / unit;
  if (shown <= 0) return bytes;
  const double step = std::pow(10.0, std::floor(std::log10(shown)) - 2);
  // What is written already stays as it is.
  return std::ceil(shown / step - 1e-9) * step * unit;
}

std::optional<Fitting> least_more(
    const Missing& missing, double seconds,
    const std::function<std::optional<Fitting>(double more)>& attempt) {
  const auto begin = std::chrono::steady_clock::now();
  std::optional<Fitting> best;
  double failed = 0, more = round_up(std::max(missing.guess, 1.0));
  for (;;) {
    auto fitting = attempt(more);
    if (fitting) {
      best = std::move(fitting);
      best->more = more;
    } else {
      failed = more;
    }
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (passed.count() + (best ? missing.attempt_seconds : 0) > seconds) return best;
    if (best && best->more - failed <= kNear * (missing.limit + best->more)) return best;
    more = round_up(best ? (failed + best->more) / 2 : failed + kGrowth * (missing.limit + failed));
    if (best && more >= best->more) return best;
  }
}

}  // namespace perigee::search
