// The progress of a run, on the terminal and in the log.
#pragma once

#include <cstdint>
#include <string>

#include "train/output/metrics.h"

namespace perigee::train {

// On a terminal, one line that each step replaces. In the log, a line every `log_every` steps, at
// the first step and at the last.
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
  bool shown_ = false;
};

// Returns "step 20/200, loss 4.1700, 19980 tokens/s, 1:14 left".
std::string progress_line(const StepMetrics& metrics, int64_t last, double seconds_left);

}  // namespace perigee::train
