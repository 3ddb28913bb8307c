// What a run reports: metrics.jsonl (runtime/README.md section 3), and progress.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compile/bucket_names.h"
#include "compile/timeline.h"

namespace perigee::train {

// One optimizer step.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0;
  double lr = 0;
  double grad_norm = 0;  // before clipping
  int64_t samples = 0;   // of this step
  int64_t tokens = 0;    // of this step; 0 where samples have none
  double step_s = 0;
  double tokens_per_s = 0;
  std::vector<int64_t> peak_bytes;  // per rank
  std::optional<double> val_loss;
  std::optional<double> loss_scale;
  bool skipped = false;  // the step changed nothing because of its gradients
};

// Returns what a strategy's function for the event "step" gets, as JSON: the line of metrics, and
// `sections`, a list of {name, microbatch, begin, end, busy}: what rank 0 ran of the program's
// sections, in the order in which they began, in seconds from the first on; `busy` is what ops
// took; and `collectives`, a list of {what, parameters, op, microbatch, begin, end}: buckets and
// units that were reduced (`what` is "gradients") or gathered ("parameters"), as their transfers
// began.
std::string step_report(const StepMetrics& metrics, const std::vector<compile::Interval>& intervals,
                        const std::map<compile::ValueId, compile::BucketNames>& buckets);

// The whole run, measured beside predicted.
struct Summary {
  int64_t steps = 0;  // of this process, which may have resumed the run
  double seconds = 0;
  double step_s = 0;                          // median
  std::optional<double> predicted_step_s;     // absent: nothing is known of the devices
  double predicted_measured = 0;              // share of it that was measured, not estimated
  double predicted_waiting = 0;               // share of it in which a rank waits, at most
  std::vector<int64_t> peak_bytes;            // per stage, the largest of its ranks
  std::vector<int64_t> predicted_peak_bytes;  // per stage; empty: the plan has none
  // Per stage, the largest of its ranks: what libraries hold beside (exec::library_bytes); empty:
  // not measured.
  std::vector<int64_t> library_bytes;
  std::optional<double> mfu;  // absent: the devices' peak is not known
};

// Return one line without its end. Floats have 17 significant digits; NaN and infinity, which JSON
// lacks, are null.
std::string to_json(const StepMetrics& metrics);
std::string to_json(const Summary& summary);

// metrics.jsonl of one run, opened by rank 0. Every line is handed to the system whole as it is
// written; a line that cannot be written whole (a full disk) is taken back, and Error (failed)
// names the file and the reason.
class MetricsFile {
 public:
  // Opens or creates the file and keeps its lines up to `last_step`: later steps, a summary and a
  // torn last line are cut off. 0 keeps none.
  MetricsFile(const std::string& path, int64_t last_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void write(const StepMetrics& metrics);
  void write(const Summary& summary);
  // Waits until all lines are on the disk; for use before a checkpoint is finished.
  void sync();

 private:
  void append(std::string line);

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// Tells how far a run is: where the log's sink has a terminal, one line that each step replaces;
// otherwise a line of the log every `log_every` steps, at the first step and at the last.
class Progress {
 public:
  // `first` is the first step that runs, `last` the last. Without `terminal` there are lines of the
  // log alone.
  Progress(int64_t first, int64_t last, int64_t log_every, bool terminal = true);
  void step(const StepMetrics& metrics);
  // Removes the terminal's line.
  ~Progress();

 private:
  int64_t first_, last_, log_every_;
  bool terminal_;
  double seconds_ = 0;  // of the steps so far
  bool shown_ = false;
};

// Returns "step 20/200, loss 4.1700, 19980 tokens/s, 1:14 left".
std::string progress_line(const StepMetrics& metrics, int64_t last, double seconds_left);

}  // namespace perigee::train
