// The training loop of one rank: steps, validation, checkpoints, and a stop at the same step
// on all ranks.
#pragma once

#include <cstdint>
#include <functional>

#include "data/data.h"
#include "exec/comm/communicator.h"
#include "job/job.h"
#include "train/output/metrics.h"
#include "train/step/rank_trainer.h"

namespace perigee::train {

struct LoopHooks {
  // Every rank, before each step.
  std::function<void(int64_t step)> before = [](int64_t) {};
  // Called on every rank after each step; if it returns true on any, all ranks stop there.
  std::function<bool()> stop = [] { return false; };
  // Rank 0, after each step.
  std::function<void(const StepMetrics&)> report = [](const StepMetrics&) {};
  // Every rank, when a checkpoint is due.
  std::function<void(int64_t step)> checkpoint = [](int64_t) {};
};

struct LoopResult {
  int64_t last_step = 0;  // the last step that ran, or first - 1
  bool stopped = false;   // before job.train.steps
  double seconds = 0;
  double median_step_s = 0;
  std::vector<int64_t> peak_bytes;     // per rank, the largest of any step, measured
  std::vector<int64_t> library_bytes;  // per rank: RankTrainer::library_bytes
};

// Runs the steps first, ..., job.train.steps. Throws Error when the loss is not finite and
// train.stop_if_not_finite is set.
LoopResult run_loop(RankTrainer& trainer, exec::Communicator& communicator, const job::Job& job,
                    int64_t first, DataSource& data, data::Validation& validation,
                    const LoopHooks& hooks);

// Returns the mean loss over the held-out batches (at most job.train.validate_batches).
double validate(RankTrainer& trainer, const job::Job& job, data::Validation& validation);

}  // namespace perigee::train
