// The reports of a run: metrics.jsonl (runtime/runs.md), and progress.
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
  std::optional<double> mfu;        // absent: the devices' peak is unknown
  std::vector<int64_t> peak_bytes;  // per rank
  std::optional<double> val_loss;
  std::optional<double> checkpoint_s;  // for which a checkpoint kept rank 0 from going on
  std::optional<double> loss_scale;
  bool skipped = false;              // the step changed nothing
  std::string bad;                   // why the step is bad; "": it is good
  std::vector<int64_t> bad_samples;  // of a bad step: places in the data set; empty: not known
  bool transient = false;            // the second run of a bad step was good
  // Seconds, by rank: computed, waited for other ranks and transfers; the longest time in which the
  // process stood still, empty where no rank did.
  std::vector<double> compute_s, wait_s, pause_s;
  // Seconds, by rank, in which the host submitted the step's work to its GPU; empty on CPUs.
  std::vector<double> submit_s;
};

// Returns the argument of a strategy's function for the event "step", as JSON: the metrics;
// `sections`, a list of {name, microbatch, begin, end, busy} of the sections that rank 0 ran, in
// the order in which they began, in seconds since the first one, where `busy` is the time of their
// ops; and `collectives`, a list of {what, parameters, op, microbatch, begin, end} of the buckets
// and units that were reduced (`what` is "gradients") or gathered ("parameters"), in the order in
// which they began.
std::string step_report(const StepMetrics& metrics, const std::vector<compile::Interval>& intervals,
                        const std::map<compile::ValueId, compile::BucketNames>& buckets);

// The whole run, measured and predicted.
struct Summary {
  int64_t steps = 0;  // of this process, which may have resumed the run
  double seconds = 0;
  double step_s = 0;                       // median
  std::optional<double> predicted_step_s;  // absent: the devices are unknown
  double predicted_measured = 0;           // share of it that was measured, not estimated
  double predicted_waiting = 0;            // share of it that the rank with the longest waits idles
  // Per stage, the largest of its ranks; predicted: empty where the plan has no prediction.
  std::vector<int64_t> peak_bytes, predicted_peak_bytes;
  // Memory of libraries outside the peak (exec::library_bytes), per stage; empty: not measured.
  std::vector<int64_t> library_bytes;
  std::optional<double> mfu;              // absent: the devices' peak is unknown
  std::vector<double> compute_s, wait_s;  // by rank, means of a step
  // Steps that were bad (spikes included), were skipped, or were good when they ran a second time.
  int64_t bad_steps = 0, spikes = 0, skipped_steps = 0, transient_steps = 0;
  // Of the copy of a checkpoint that the largest rank keeps while it goes on; 0: none does.
  int64_t checkpoint_bytes = 0;
};

// Return one line without its end. Floats have 17 significant digits; NaN and infinity, which JSON
// lacks, are null.
std::string to_json(const StepMetrics& metrics);
std::string to_json(const Summary& summary);

// Returns the step of a line of metrics.jsonl; -1: it is not that of a step.
int64_t step_of_line(std::string_view line);

// metrics.jsonl of one run, opened by rank 0. Each line goes to the system at once; a line
// that cannot be written whole (a full disk) is removed, and Error (failed) names the file
// and the reason.
class MetricsFile {
 public:
  // Opens or creates the file and keeps its lines up to step `last_step`; later steps, summaries,
  // an incomplete last line and damaged parts are removed. 0 keeps none.
  MetricsFile(const std::string& path, int64_t last_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void write(const StepMetrics& metrics);
  void write(const Summary& summary);
  // Returns which of the steps up to `last_step` the file lacked when it was opened ("3 to 7, 9");
  // "" where it lacked none. Steps before its first line count where the file begins with damage
  // or holds no line.
  const std::string& lost_steps() const { return lost_steps_; }

  // Waits until all lines are on the disk; for use before a checkpoint is finished. Any thread may
  // call it.
  void sync();

 private:
  void append(std::string line);

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  std::string lost_steps_;
};

}  // namespace perigee::train
