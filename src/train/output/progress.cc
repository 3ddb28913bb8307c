#include "train/output/progress.h"

#include <algorithm>
#include <cmath>

#include "base/log_format.h"

namespace perigee::train {
namespace {

// Returns "0:07", "1:14", "2:03:09".
std::string clock(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(std::clamp(seconds, 0.0, 1e9)));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

// Returns "19980 tokens/s", "64 samples/s", or "" before a time is known.
std::string speed(const StepMetrics& m) {
  if (m.tokens > 0) return fmt::format("{:.0f} tokens/s", m.tokens_per_s);
  return m.step_s > 0 ? fmt::format("{:.0f} samples/s", double(m.samples) / m.step_s) : "";
}

// Returns the loss as text. A value that is not a number has no sign.
std::string loss_text(double loss) {
  return std::isnan(loss) ? "nan" : fmt::format("{:.4f}", loss);
}

}  // namespace

std::string progress_line(const StepMetrics& m, int64_t last, double seconds_left) {
  auto line = fmt::format("step {}/{}, loss {}", m.step, last, loss_text(m.loss));
  if (m.val_loss) line += ", validation loss " + loss_text(*m.val_loss);
  if (const auto of_step = speed(m); !of_step.empty()) line += ", " + of_step;
  return line + fmt::format(", {} left", clock(seconds_left));
}

log::Progress step_progress(const StepMetrics& m, int64_t last, double seconds_left,
                            std::optional<double> val_loss) {
  log::Progress progress;
  progress.text = fmt::format("step {:>{}}/{}", m.step, fmt::formatted_size("{}", last), last);
  progress.share = double(m.step) / double(std::max<int64_t>(1, last));
  progress.details = {"loss " + loss_text(m.loss), fmt::format("{} left", clock(seconds_left))};
  if (const auto of_step = speed(m); !of_step.empty()) progress.details.push_back(of_step);
  if (val_loss) progress.details.push_back("validation loss " + loss_text(*val_loss));
  return progress;
}

Progress::Progress(int64_t first, int64_t last, int64_t log_every, bool terminal)
    : first_(first),
      last_(last),
      log_every_(std::max<int64_t>(1, log_every)),
      terminal_(terminal) {}

void Progress::step(const StepMetrics& metrics) {
  seconds_ += metrics.step_s;
  const auto done = metrics.step - first_ + 1;
  const double left = seconds_ / double(std::max<int64_t>(1, done)) * double(last_ - metrics.step);
  if (metrics.val_loss) val_loss_ = metrics.val_loss;
  if (metrics.step == first_ || metrics.step == last_ || metrics.step % log_every_ == 0) {
    log::info("{}", progress_line(metrics, last_, left));
  }
  if (terminal_) shown_ = log::progress(step_progress(metrics, last_, left, val_loss_));
}

void Progress::end() {
  if (shown_) log::progress("");
  shown_ = false;
}

}  // namespace perigee::train
