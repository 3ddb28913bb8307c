#include "base/terminal/progress.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/terminal/terminal.h"

namespace perigee::log {
namespace {

constexpr int kLeastBar = 10, kMostBar = 32;  // columns

std::string bar_of(double share, int columns, bool colours) {
  const int cells = columns - 2;
  const int full = static_cast<int>(std::floor(std::clamp(share, 0.0, 1.0) * cells));
  std::string done(static_cast<size_t>(full), '=');
  if (full < cells) done += '>';
  const std::string rest(static_cast<size_t>(std::max(0, cells - full - 1)), ' ');
  if (colours) done = std::string(kGreen) + done + std::string(kPlain);
  return "[" + done + rest + "]";
}

// Returns the first details, joined, as many as fit.
std::string joined(const std::vector<std::string>& details, int columns) {
  std::string text;
  for (const auto& detail : details) {
    const auto longer = text.empty() ? detail : text + ", " + detail;
    if (columns_of(longer) > columns) break;
    text = longer;
  }
  return text;
}

}  // namespace

std::string progress_line(const Progress& progress, int columns, bool colours) {
  const int left = columns - columns_of(progress.text);
  if (progress.share >= 0) {
    const auto& details = progress.details;
    const auto beside = joined(details, left - 2 - kLeastBar);
    const int bar = std::min(kMostBar, left - 1 - (beside.empty() ? 0 : 1 + columns_of(beside)));
    if (bar >= kLeastBar && (details.empty() || !beside.empty())) {
      return progress.text + " " + bar_of(progress.share, bar, colours) +
             (beside.empty() ? "" : " " + beside);
    }
  }
  const auto details = joined(progress.details, left - 2);
  return first_columns(progress.text + (details.empty() ? "" : ", " + details), columns);
}

bool progress(const Progress& progress) {
  // The last column stays empty: in some terminals a character there begins a new line.
  return log::progress(progress_line(progress, columns_of_standard_error() - 1,
                                     Terminal::of_standard_error().colours));
}

}  // namespace perigee::log
