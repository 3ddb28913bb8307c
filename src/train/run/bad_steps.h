// Bad steps: found, named, skipped, run a second time, counted (train.skip_bad_steps, spike_loss,
// spike_norm, on_spike, rerun).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/data.h"
#include "job/job.h"
#include "job/step_list.h"
#include "train/step/rank_trainer.h"
#include "train/step/spikes.h"

namespace perigee::train {

struct BadStepCounts {
  int64_t bad = 0;        // steps whose loss or gradients were not finite, and spikes
  int64_t spikes = 0;     // of these
  int64_t skipped = 0;    // steps that changed nothing, those of train.skip_steps included
  int64_t transient = 0;  // bad steps whose second run was good
};

// The judgement of a step. All ranks make the same one: they have the same loss and norm.
struct Judgement {
  std::string reason;  // why the step is bad; "": it is good
  bool spike = false;
  bool transient = false;     // it was bad, and its second run was good
  std::optional<Error> ends;  // ends the job, after the step's metrics are written
  std::string warning;        // for the log
};

// Returns "samples 40 to 47, indices 3, 9-12, 40": the samples of a step by their numbers in the
// order of the run, and their places in the data set (at most `shown` ranges of them), if known.
std::string name_samples(Range samples, const std::vector<int64_t>& indices, size_t shown = 16);

class BadSteps {
 public:
  // Runs the step with the limits and returns its result; it may run a step a second time.
  using Run = std::function<StepResult(const StepLimits&)>;

  // `scales_loss`: the plan skips steps by itself that are not finite (a loss scale), which are
  // then not bad. `state`: of a checkpoint, or "{}". `more_samples`: that the run has seen beside
  // those of its steps' present batches.
  BadSteps(const job::Job& job, bool scales_loss, const std::string& state,
           int64_t more_samples = 0);

  // Runs a step, and with train.rerun a bad one a second time after `forget` has made the trainer
  // forget the first run. Returns the result that counts.
  StepResult run(int64_t step, DataSource& data, const Run& run,
                 const std::function<void()>& forget);
  // Returns the judgement of the last step.
  const Judgement& judgement() const { return judgement_; }

  const BadStepCounts& counts() const { return counts_; }
  // Returns the state that a checkpoint keeps, a JSON object.
  std::string state() const;

 private:
  Judgement judge(const StepResult& result) const;
  void decide(int64_t step, const StepResult& result, DataSource& data, bool reran);
  void keep_going(int64_t step, const std::string& what, bool skipped, bool reran);

  const job::Job& job_;
  const bool scales_loss_;
  const int64_t more_samples_;
  std::vector<job::StepRange> left_out_;  // train.skip_steps
  Spikes spikes_;
  BadStepCounts counts_;
  Judgement judgement_;
  int64_t in_a_row_ = 0;
};

}  // namespace perigee::train
