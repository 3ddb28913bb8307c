#include "search/shortage.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/text/bytes.h"
#include "simulate/report.h"

namespace perigee::search {
namespace {

constexpr double kNearMissing = 0.02;
constexpr double kGrowth = 0.25;  // of all memory, where a guess was too small

}  // namespace

double round_up(double bytes) {
  double unit = 1;
  while (bytes / unit >= 999.5) unit *= 1024;
  const double shown = bytes / unit;
  if (shown <= 0) return bytes;
  const double step = std::pow(10.0, std::floor(std::log10(shown)) - 2);
  // A value that is printed exactly is not changed.
  return std::ceil(shown / step - 1e-9) * step * unit;
}

std::optional<Fitting> least_missing_memory(
    const Missing& missing, double seconds,
    const std::function<std::optional<Fitting>(double extra_bytes)>& attempt) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto begin = Clock::now();
  std::optional<Fitting> best;
  double failed = 0, extra_bytes = round_up(std::max(missing.guess, 1.0));
  for (;;) {
    const auto started = Clock::now();
    auto fitting = attempt(extra_bytes);
    if (!fitting || fitting->extra_bytes > extra_bytes) failed = extra_bytes;
    if (fitting && (!best || fitting->extra_bytes < best->extra_bytes)) best = std::move(fitting);
    // Another attempt would take about as long as the last.
    if (since(begin) + (best ? since(started) : 0) > seconds) return best;
    if (best && best->extra_bytes - failed <= kNearMissing * (missing.limit + best->extra_bytes))
      return best;
    extra_bytes = round_up(best ? (failed + best->extra_bytes) / 2
                                : failed + kGrowth * (missing.limit + failed));
    if (best && extra_bytes >= best->extra_bytes) return best;
  }
}

void fail_none_fits(const Shortage& shortage, const std::optional<Fitting>& fitting) {
  std::string least = shortage.refused.empty() ? "no cut into stages exists for any of them"
                                               : shortage.refused;
  if (shortage.refused.empty() && shortage.balance > 0) {
    least += fmt::format(
        " whose smallest stage has at least {:g} of the arithmetic of the largest (balance)",
        shortage.balance);
  }
  if (fitting || (std::isfinite(shortage.bytes) && shortage.bytes > shortage.limit)) {
    const double extra_bytes = fitting ? fitting->extra_bytes : shortage.bytes - shortage.limit;
    least = fmt::format(
        "the one that {} the least memory ({}) takes {} on a rank, {}{} more than the limit of {}: "
        "use more ranks, a smaller batch.micro, or zero and checkpoint where they are pinned",
        fitting ? "is found to need" : "needs",
        to_string(fitting ? fitting->choice : shortage.choice),
        bytes_text(fitting ? fitting->bytes : shortage.bytes), fitting ? "and fits with " : "",
        bytes_text(extra_bytes), bytes_text(shortage.limit));
  }
  std::string text = "no plan fits:";
  if (fitting && fitting->extra_bytes <= 0) {
    text = "no plan fits by its estimate:";
    least = fmt::format(
        "{} takes {} on a rank by its programs, within the limit of {}: pin it, or use "
        "more ranks or a smaller batch.micro",
        to_string(fitting->choice), bytes_text(fitting->bytes), bytes_text(shortage.limit));
  }
  if (std::isfinite(shortage.time_limit)) {
    text = fmt::format(
        "the time limit of {} s passed before a plan that fits was found: raise time_limit, or pin "
        "more; so far,",
        shortage.time_limit);
  }
  throw Error(Status::infeasible, "auto",
              fmt::format("{} of {} combinations {}", text, shortage.combinations, least));
}

}  // namespace perigee::search
