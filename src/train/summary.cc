#include "train/summary.h"

#include <algorithm>

#include "base/log.h"
#include "search/report.h"

namespace perigee::train {
namespace {

constexpr double kSlower = 1.3;    // than predicted
constexpr double kMeasured = 0.9;  // share of a prediction
constexpr double kWaits = 0.3;     // share of a step

// Returns for each stage the most of its ranks, of bytes by rank or by position in the mesh;
// nothing where there are none.
std::vector<int64_t> most_per_stage(const plan::Plan& plan, const std::vector<int64_t>& bytes,
                                    bool by_rank) {
  if (bytes.empty()) return {};
  const int axis = plan.pipeline.cuts() ? plan.mesh.find(plan.pipeline.axis) : -1;
  std::vector<int64_t> most(axis < 0 ? 1 : static_cast<size_t>(plan.mesh.axes[axis].size));
  const auto ranks = mesh::ranks(plan.mesh);
  for (size_t position = 0; position < ranks.size(); ++position) {
    const auto rank = ranks[position];
    const auto stage = axis < 0 ? 0 : mesh::coordinates(plan.mesh, rank)[axis];
    auto& known = most[static_cast<size_t>(stage)];
    known = std::max(known, bytes.at(by_rank ? static_cast<size_t>(rank) : position));
  }
  return most;
}

int64_t most(const std::vector<int64_t>& bytes) {
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

// Says why steps are slow, and what tells more.
void tell_of_speed(const Summary& summary) {
  const double slower = summary.step_s / *summary.predicted_step_s;
  if (slower > kSlower && summary.predicted_measured > kMeasured) {  // an estimate says nothing
    log::info(
        "steps are {:.1f} times as long as predicted: the machine has other work, or had less when "
        "it was measured (`perigee profile --again`)",
        slower);
  }
  if (summary.predicted_waiting > kWaits) {
    log::info(
        "a rank waits for others in {:.0f}% of a step: `perigee simulate` says which changes make "
        "it shorter, and by how much",
        100 * summary.predicted_waiting);
  }
}

double mebibytes(const std::vector<int64_t>& bytes) {
  return static_cast<double>(most(bytes)) / (1 << 20);
}

}  // namespace

Summary summarise(const LoopResult& result, int64_t first, const plan::Plan& plan,
                  const std::optional<Forecast>& forecast) {
  Summary summary;
  summary.steps = result.last_step - first + 1;
  summary.seconds = result.seconds;
  summary.step_s = result.median_step_s;
  summary.peak_bytes = most_per_stage(plan, result.peak_bytes, true);
  summary.library_bytes = most_per_stage(plan, result.library_bytes, true);
  summary.predicted_peak_bytes = most_per_stage(plan, plan.prediction.peak_bytes, false);
  if (forecast) {
    summary.predicted_step_s = forecast->step_seconds;
    summary.predicted_measured = forecast->measured_share;
    summary.predicted_waiting = forecast->waiting;
  }
  return summary;
}

void tell(const Summary& summary, bool stopped) {
  log::info(
      "{} {} steps in {:.1f} s, {:.1f} ms a step; peak memory {:.1f} MiB measured, {:.1f} MiB "
      "predicted",
      stopped ? "stopped after" : "done:", summary.steps, summary.seconds, 1e3 * summary.step_s,
      mebibytes(summary.peak_bytes), mebibytes(summary.predicted_peak_bytes));
  if (summary.predicted_step_s) {
    log::info("a step was predicted to take {:.1f} ms, {}", 1e3 * *summary.predicted_step_s,
              search::measured_text(summary.predicted_measured));
    tell_of_speed(summary);
  }
  if (summary.mfu) log::info("model FLOPs utilisation: {:.1f}%", 100 * *summary.mfu);
  log::info("memory that libraries hold beside: {:.1f} MiB measured",
            mebibytes(summary.library_bytes));
}

}  // namespace perigee::train
