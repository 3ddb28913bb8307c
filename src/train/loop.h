// The training loop of one rank: steps, validation, checkpoints, and stopping at the same step on
// all ranks.
#pragma once

#include <cstdint>
#include <functional>

#include "exec/communicator.h"
#include "job/job.h"
#include "train/data.h"
#include "train/metrics.h"
#include "train/rank_trainer.h"

namespace perigee::train {

struct LoopHooks {
  // Every rank, before each step.
  std::function<void(int64_t step)> before = [](int64_t) {};
  // Asked on every rank after each step: stop? One yes stops all ranks there.
  std::function<bool()> stop = [] { return false; };
  // Rank 0, after each step.
  std::function<void(const StepMetrics&)> report = [](const StepMetrics&) {};
  // Every rank, when a checkpoint is due.
  std::function<void(int64_t step)> checkpoint = [](int64_t) {};
};

struct LoopResult {
  int64_t last_step = 0;  // the last that ran, or first - 1
  bool stopped = false;   // before job.train.steps
  double seconds = 0;
  double median_step_s = 0;
  std::vector<int64_t> peak_bytes;     // per rank, the most of a step, measured
  std::vector<int64_t> library_bytes;  // per rank: RankTrainer::library_bytes
};

// Runs the steps first, ..., job.train.steps. Throws Error when the loss is not finite and the job
// says that ends it.
LoopResult run_loop(RankTrainer& trainer, exec::Communicator& communicator, const job::Job& job,
                    int64_t first, DataSource& data, Validation& validation,
                    const LoopHooks& hooks);

// Returns the mean loss over the held-back batches (at most job.train.validate_batches).
double validate(RankTrainer& trainer, const job::Job& job, Validation& validation);

}  // namespace perigee::train
