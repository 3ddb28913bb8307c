#include "train/run/summary.h"

#include <algorithm>

#include "base/log_format.h"
#include "base/text/bytes.h"
#include "simulate/report.h"

namespace perigee::train {
namespace {

// Limits above which the log says that steps are slow: measured / predicted seconds, the share of
// the prediction that was measured, and the share of a step that a rank waits.
constexpr double kSlower = 1.3, kMeasured = 0.9, kWaits = 0.3;

// Returns the largest bytes of any rank of each stage. `bytes`: by rank, or by position in the
// mesh; an empty list gives an empty result.
std::vector<int64_t> largest_per_stage(const plan::Plan& plan, const std::vector<int64_t>& bytes,
                                       bool by_rank) {
  if (bytes.empty()) return {};
  const int axis = plan.pipeline.cuts() ? plan.mesh.find(plan.pipeline.axis) : -1;
  std::vector<int64_t> largest(axis < 0 ? 1 : static_cast<size_t>(plan.mesh.axes[axis].size));
  const auto ranks = mesh::ranks(plan.mesh);
  for (size_t position = 0; position < ranks.size(); ++position) {
    const auto rank = ranks[position];
    const auto stage = axis < 0 ? 0 : mesh::coordinates(plan.mesh, rank)[axis];
    auto& of_stage = largest[static_cast<size_t>(stage)];
    of_stage = std::max(of_stage, bytes.at(by_rank ? static_cast<size_t>(rank) : position));
  }
  return largest;
}

int64_t largest_of(const std::vector<int64_t>& bytes) {
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

// Logs why steps are slow and which command gives details.
void log_slow_steps(const Summary& summary) {
  const double slower = summary.step_s / *summary.predicted_step_s;
  if (slower > kSlower && summary.predicted_measured > kMeasured) {
    log::info(
        "steps took {:.1f} times as long as predicted: the machine is busier now than when the "
        "profile was measured (`perigee profile --again`)",
        slower);
  }
  if (summary.predicted_waiting > kWaits) {
    log::info(
        "a rank is predicted to wait for others during {:.0f}% of a step: `perigee simulate` lists "
        "changes that shorten the step, with the seconds that each saves",
        100 * summary.predicted_waiting);
  }
}

// Logs the seconds that ranks computed and waited, as measured.
void log_ranks(const Summary& summary) {
  if (summary.compute_s.size() < 2) return;
  const auto [fastest, slowest] = std::minmax_element(summary.compute_s.begin(),
                                                      summary.compute_s.end());
  const auto [shortest, longest] = std::minmax_element(summary.wait_s.begin(),
                                                       summary.wait_s.end());
  log::info(
      "ranks computed {:.1f} to {:.1f} ms a step and waited {:.1f} to {:.1f} ms for each other, "
      "measured; rank {} computed the longest",
      1e3 * *fastest, 1e3 * *slowest, 1e3 * *shortest, 1e3 * *longest,
      slowest - summary.compute_s.begin());
}

// Logs how many steps were bad.
void log_bad_steps(const Summary& summary) {
  if (summary.bad_steps + summary.skipped_steps == 0) return;
  log::warn("{} bad step{} ({} spike{}), {} skipped: \"bad\" in metrics.jsonl says which",
            summary.bad_steps, summary.bad_steps == 1 ? "" : "s", summary.spikes,
            summary.spikes == 1 ? "" : "s", summary.skipped_steps);
}

std::string largest_text(const std::vector<int64_t>& bytes) {
  return bytes_text(static_cast<double>(largest_of(bytes)));
}

}  // namespace

Summary summarise(const LoopResult& result, int64_t first, const plan::Plan& plan,
                  const std::optional<StepPrediction>& prediction) {
  Summary summary;
  summary.steps = result.last_step - first + 1;
  summary.seconds = result.seconds;
  summary.step_s = result.median_step_s;
  summary.peak_bytes = largest_per_stage(plan, result.peak_bytes, true);
  summary.library_bytes = largest_per_stage(plan, result.library_bytes, true);
  summary.predicted_peak_bytes = largest_per_stage(plan, plan.prediction.peak_bytes, false);
  summary.compute_s = result.computed_s;
  summary.wait_s = result.waited_s;
  summary.bad_steps = result.bad_steps.bad;
  summary.spikes = result.bad_steps.spikes;
  summary.skipped_steps = result.bad_steps.skipped;
  summary.transient_steps = result.bad_steps.transient;
  if (prediction) {
    summary.predicted_step_s = prediction->step_seconds;
    summary.predicted_measured = prediction->measured_share;
    summary.predicted_waiting = prediction->waiting;
  }
  return summary;
}

void log_summary(const Summary& summary, bool stopped) {
  log::info("{} {} steps in {:.1f} s, {:.1f} ms a step; peak memory {} measured, {} predicted",
            stopped ? "stopped after" : "done:", summary.steps, summary.seconds,
            1e3 * summary.step_s, largest_text(summary.peak_bytes),
            largest_text(summary.predicted_peak_bytes));
  if (summary.predicted_step_s) {
    log::info("a step was predicted to take {:.1f} ms, {}", 1e3 * *summary.predicted_step_s,
              simulate::measured_text(summary.predicted_measured));
    log_slow_steps(summary);
  }
  log_ranks(summary);
  log_bad_steps(summary);
  if (summary.mfu) log::info("model FLOPs utilisation: {:.1f}%", 100 * *summary.mfu);
  log::info("memory allocated by libraries: {} measured", largest_text(summary.library_bytes));
}

}  // namespace perigee::train
