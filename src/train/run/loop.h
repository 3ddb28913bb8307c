// The training loop of one rank: steps, validation, checkpoints, and a stop at the same step
// on all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/data.h"
#include "exec/comm/communicator.h"
#include "job/job.h"
#include "train/output/metrics.h"
#include "train/run/bad_steps.h"
#include "train/step/rank_trainer.h"

namespace perigee::train {

struct LoopHooks {
  int64_t tokens_of_sample = 0;  // 0: samples have no tokens
  int64_t more_samples = 0;      // CheckpointOptions::more_samples
  // Every rank, before each step.
  std::function<void(int64_t step)> before = [](int64_t) {};
  // Called on every rank after each step; if it returns true on any, all ranks stop there.
  std::function<bool()> stop = [] { return false; };
  // Rank 0, after each step.
  std::function<void(const StepMetrics&)> report = [](const StepMetrics&) {};
  // Every rank, when a checkpoint is due; `state`: of the loop, a JSON object. Returns the seconds
  // for which the rank did not train; nothing where no checkpoint is written, on all ranks. `last`:
  // no step follows.
  std::function<std::optional<double>(int64_t step, const std::string& state, bool last)>
      checkpoint = [](int64_t, const std::string&, bool) { return 0.0; };
  // Every rank, after the report of a step with a checkpoint, unless the job was stopped there.
  std::function<void(int64_t step)> sample = [](int64_t) {};
  // Every rank, after a step without a checkpoint.
  std::function<void()> between_checkpoints = [] {};
  // Every rank, in a validation: how many of all batches are done.
  RankTrainer::Done validating = [](int64_t, int64_t) {};
  // Every rank, before the loop ends with an error that all ranks have.
  std::function<void()> complete_checkpoint = [] {};
};

struct LoopResult {
  int64_t last_step = 0;  // the last step that ran, or first - 1
  bool stopped = false;   // before job.train.steps
  double seconds = 0;
  double median_step_s = 0;
  std::vector<int64_t> peak_bytes;           // per rank, the largest of any step, measured
  std::vector<int64_t> library_bytes;        // per rank: RankTrainer::library_bytes
  std::vector<double> computed_s, waited_s;  // per rank: means of a step
  BadStepCounts bad_steps;
  int64_t best_step = 0;  // with the lowest validation loss; 0: there was no validation
  double best_loss = 0;
};

// Runs the steps first, ..., job.train.steps. Throws Error, on all ranks, for a bad step that is
// not skipped (bad_steps.h) and for replicas that differ (train.check_replicas). Rank 0 logs bad
// steps and stragglers. `state`: of the checkpoint that training continues from.
LoopResult run_loop(RankTrainer& trainer, exec::Communicator& communicator, const job::Job& job,
                    int64_t first, DataSource& data, data::Validation& validation,
                    const LoopHooks& hooks, const std::string& state = "{}");

// Returns the mean loss over the held-out batches (at most job.train.validate_batches), by the labels
// that are learned in each where these are counted (Validation::learned). `done` is
// told how many of all are done, from 0 to all of them.
double validate(
    RankTrainer& trainer, const job::Job& job, data::Validation& validation,
    const RankTrainer::Done& done = [](int64_t, int64_t) {});

}  // namespace perigee::train
