// Spikes: steps whose loss or gradient norm is far above that of the steps before.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "job/job.h"
#include "train/step/rank_trainer.h"

namespace perigee::train {

// Compares a step with the medians of the last good steps. A pure function of the steps that were
// added, so all ranks agree, and a resumed run goes on with the same medians.
class Spikes {
 public:
  static constexpr size_t kWindow = 32;  // steps of a median
  static constexpr size_t kAtLeast = 8;  // fewer steps have no median

  explicit Spikes(const job::TrainConfig& train)
      : loss_factor_(train.spike_loss), norm_factor_(train.spike_norm) {}

  // Returns the largest loss and norm of a step that is no spike: a multiple of the medians,
  // infinite where there is no median, it is not above 0, or the job has no factor.
  StepLimits limits() const;

  // Returns why a step is a spike ("its loss is 9.1, 4.3 times the median 2.1 of 32 steps"); ""
  // for one that is not.
  std::string reason(double loss, double grad_norm) const;

  // Adds a step. Numbers that are not finite are left out.
  void add(double loss, double grad_norm);

  // The window as JSON, for a checkpoint. `read` ignores a text that `text` did not write.
  std::string text() const;
  void read(const std::string& text);

 private:
  double loss_factor_, norm_factor_;
  std::deque<double> losses_, norms_;
};

}  // namespace perigee::train
