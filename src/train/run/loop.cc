#include "train/run/loop.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "base/fail.h"
#include "base/log_format.h"
#include "train/output/best_step.h"
#include "train/run/heartbeat.h"
#include "train/run/state_exchange.h"
#include "train/run/stragglers.h"
#include "train/step/replicas.h"
#include "train/step/step_scalars.h"

namespace perigee::train {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                              begin)
      .count();
}

void keep_largest(std::vector<int64_t>& largest, const std::vector<int64_t>& values) {
  largest.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) largest[i] = std::max(largest[i], values[i]);
}

// Throws Error where some ranks skipped the step and others did not.
void require_agreement(const std::vector<RankReport>& states, int64_t step) {
  std::vector<int64_t> ranks[3];  // by RankReport::Skipped
  for (size_t rank = 0; rank < states.size(); ++rank) {
    ranks[static_cast<size_t>(states[rank].skipped)].push_back(static_cast<int64_t>(rank));
  }
  if (ranks[0].empty() || ranks[1].empty()) return;
  fail_run("train",
           "all ranks skip a step or none does, but step {} is skipped by ranks {} and not by {}: "
           "a fault of a device, its memory or the network",
           step, fmt::join(ranks[1], ", "), fmt::join(ranks[0], ", "));
}

// The times of steps, by rank: who waits for whom.
class Times {
 public:
  Times(const plan::Plan& plan, bool on_gpu) : stragglers_(peers_of(plan)), on_gpu_(on_gpu) {}

  // Adds a step; the log of rank 0 names stragglers.
  void add(StepMetrics& metrics, const StateExchange& exchange, bool root) {
    metrics.compute_s = exchange.computed_seconds();
    const auto paused = exchange.paused_seconds();
    const auto sentences = stragglers_.add(metrics.step,
                                           {metrics.step_s, metrics.compute_s, paused});
    for (const auto computed : metrics.compute_s) {
      metrics.wait_s.push_back(std::max(0.0, metrics.step_s - computed));
    }
    const auto longest = *std::max_element(paused.begin(), paused.end());
    if (longest >= Stragglers::kPause) metrics.pause_s = paused;
    if (on_gpu_) metrics.submit_s = exchange.submitted_seconds();
    seconds_ += metrics.step_s;
    ++steps_;
    for (const auto& sentence : sentences) {
      if (root) log::warn("{}", sentence);
    }
  }

  void finish(LoopResult& result) const {
    for (const auto total : stragglers_.total_computed()) {
      if (steps_ == 0) return;
      result.computed_s.push_back(total / double(steps_));
      result.waited_s.push_back(std::max(0.0, seconds_ - total) / double(steps_));
    }
  }

 private:
  Stragglers stragglers_;
  bool on_gpu_;
  double seconds_ = 0;
  int64_t steps_ = 0;
};

// Runs a step and exchanges the ranks' states; with train.rerun perhaps twice.
struct StepRunner {
  RankTrainer& trainer;
  StateExchange& exchange;
  Heartbeat& heartbeat;
  const LoopHooks& hooks;
  DataSource& data;

  StepResult run(int64_t step, const StepLimits& limits) const {
    const auto begin = std::chrono::steady_clock::now();
    auto outcome = trainer.step(step, data, limits);
    const auto times = trainer.executor().step_times();
    const auto computed = nanoseconds_since(begin) - times.waited;
    exchange.run({.stop = hooks.stop(),
                  .skipped = !trainer.may_skip() ? RankReport::Skipped::unknown
                             : outcome.skipped   ? RankReport::Skipped::yes
                                                 : RankReport::Skipped::no,
                  .peak_bytes = trainer.step_peak(),
                  .library_bytes = trainer.library_bytes(),
                  .computed_ns = std::max<int64_t>(0, computed),
                  .paused_ns = heartbeat.take_longest_pause(),
                  .submitted_ns = times.submitted});
    require_agreement(exchange.states(), step);
    outcome.skipped = exchange.any_skipped();
    return outcome;
  }
};

}  // namespace

double validate(RankTrainer& trainer, const job::Job& job, data::Validation& validation,
                const RankTrainer::Done& done) {
  const auto batches = std::min(validation.batches, job.train.validate_batches);
  const auto& learned = validation.learned;
  const auto most = learned.empty() ? 1 : *std::ranges::max_element(learned);
  double sum = 0, weights = 0;
  for (int64_t i = 1; i <= batches; ++i) {
    done(i - 1, batches);
    const auto labels = learned.empty() ? most : learned[static_cast<size_t>(i - 1)];
    if (labels == 0) continue;  // its loss is 0 / 0
    // Of equal batches: 1, so that the mean is exact.
    const auto weight = double(labels) / double(most);
    sum += weight * trainer.evaluate(i, *validation.data).loss;
    weights += weight;
  }
  done(batches, batches);
  trainer.end_evaluation();
  return sum / weights;
}

LoopResult run_loop(RankTrainer& trainer, exec::Communicator& communicator, const job::Job& job,
                    int64_t first, DataSource& data, data::Validation& validation,
                    const LoopHooks& hooks, const std::string& state) {
  const auto& plan = trainer.blueprint().plan;
  const bool root = communicator.rank() == 0;
  if (job.train.rerun && plan::copies_of(plan) > 1) {
    fail("train",
         "train.rerun runs a step a second time from the same state, but the plan averages copies "
         "of the model between steps: leave train.rerun out");
  }
  StateExchange exchange(communicator);
  Heartbeat heartbeat;
  BadSteps bad_steps(job, plan.precision.guards(), state, hooks.more_samples);
  BestStep best(job, state);
  Times ranks(plan, trainer.on_gpu());
  const StepRunner runner{trainer, exchange, heartbeat, hooks, data};
  LoopResult result;
  result.last_step = first - 1;
  auto replicas_equal_at = first - 1;
  std::vector<double> times;
  const auto begin = std::chrono::steady_clock::now();
  const auto steps = job.train.steps;
  const auto ends = [&](int64_t step) { return step == steps || best.ends_training(); };
  for (int64_t step = first; step <= steps && !result.stopped && !best.ends_training(); ++step) {
    const auto step_begin = std::chrono::steady_clock::now();
    hooks.before(step);
    const auto outcome = bad_steps.run(
        step, data, [&](const StepLimits& limits) { return runner.run(step, limits); },
        [&] { trainer.forget_skipped(); });
    const auto& judgement = bad_steps.judgement();
    result.stopped = exchange.any_stops() && step < steps;
    times.push_back(seconds_since(step_begin));
    result.last_step = step;
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = outcome.loss;
    metrics.lr = step_scalars(job, step).at("lr.0");
    metrics.grad_norm = outcome.grad_norm;
    metrics.loss_scale = outcome.loss_scale;
    metrics.skipped = outcome.skipped;
    metrics.bad = judgement.reason;
    metrics.transient = judgement.transient;
    if (!judgement.reason.empty()) metrics.bad_samples = data.indices(step, {0, job.batch.global});
    metrics.samples = job.batch.global;
    metrics.tokens = job.batch.global * hooks.tokens_of_sample;
    metrics.step_s = times.back();
    metrics.tokens_per_s = double(metrics.tokens) / times.back();
    metrics.peak_bytes = exchange.peak_bytes();
    ranks.add(metrics, exchange, root);
    keep_largest(result.peak_bytes, metrics.peak_bytes);
    keep_largest(result.library_bytes, exchange.library_bytes());
    if (root && !judgement.warning.empty()) log::warn("{}", judgement.warning);
    bool is_best = false;
    const auto due = [&](int64_t every) {
      return every > 0 && (step % every == 0 || step == steps);
    };
    if (!judgement.ends && due(job.train.validate_every) && validation.batches > 0) {
      metrics.val_loss = validate(trainer, job, validation, hooks.validating);
      is_best = best.add(step, *metrics.val_loss);
    }
    const bool changes = !job.train.forward_only;
    if (changes && !judgement.ends && job.train.check_replicas > 0 &&
        step % job.train.check_replicas == 0) {
      check_replicas(trainer, communicator, step, replicas_equal_at);
      replicas_equal_at = step;
    }
    // A transient fault: the second run was good and its update was made, so it is saved.
    const bool wanted = judgement.ends   ? judgement.transient
                        : result.stopped ? job.train.checkpoint_when_stopped
                        : job.train.keep_best && is_best
                            ? true
                            : due(job.train.checkpoint_every) || ends(step);
    if (wanted && changes) {
      const bool last = judgement.ends || result.stopped || ends(step);
      metrics.checkpoint_s = hooks.checkpoint(step, best.with_state(bad_steps.state()), last);
    } else {
      hooks.between_checkpoints();
    }
    if (root) hooks.report(metrics);
    if (metrics.checkpoint_s && !judgement.ends && !result.stopped) hooks.sample(step);
    if (judgement.ends) {
      hooks.complete_checkpoint();
      throw *judgement.ends;
    }
  }
  result.seconds = seconds_since(begin);
  result.bad_steps = bad_steps.counts();
  result.best_step = best.step();
  result.best_loss = best.loss();
  if (root && best.ends_training()) {
    log::info(
        "training ends after step {} of {}: {} validations in a row were no better "
        "(train.early_stop_patience)",
        result.last_step, steps, best.in_a_row());
  }
  ranks.finish(result);
  if (!times.empty()) {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    result.median_step_s = times[times.size() / 2];
  }
  return result;
}

}  // namespace perigee::train
