// The progress of a run, on the terminal and in the log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/terminal/progress.h"
#include "train/output/metrics.h"

namespace perigee::train {

// On a terminal, one line with a bar, which each step replaces, below the log. In the log, a line
// every `log_every` steps, at the first step and at the last.
class Progress {
 public:
  // `first` and `last` are the first and the last step that run. Without `terminal` there are only
  // the log's lines.
  Progress(int64_t first, int64_t last, int64_t log_every, bool terminal = true);
  void step(const StepMetrics& metrics);
  // Removes the terminal's line.
  void end();
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  int64_t first_, last_, log_every_;
  bool terminal_;
  double seconds_ = 0;  // of the steps so far
  std::optional<double> val_loss_;
  bool shown_ = false;
};

// Returns the terminal's line of a step (base/terminal/progress.h). `val_loss`: the newest.
log::Progress step_progress(const StepMetrics& metrics, int64_t last, double seconds_left,
                            std::optional<double> val_loss);

// Returns "step 20/200, loss 4.1700, 19980 tokens/s, 1:14 left".
std::string progress_line(const StepMetrics& metrics, int64_t last, double seconds_left);

}  // namespace perigee::train
