#include "train/run/loop.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/fail.h"
#include "train/ranks/share.h"

namespace perigee::train {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Exchanged between ranks after each step.
struct RankState {
  bool stop = false;  // this rank was asked to stop
  int64_t peak_bytes = 0, library_bytes = 0;
};

class Exchange {
 public:
  explicit Exchange(exec::Communicator& communicator)
      : group_(everyone(communicator)),
        mine_(at::zeros({3}, at::kLong)),
        all_(at::zeros({3 * communicator.world()}, at::kLong)) {}

  void run(const RankState& state) {
    auto* mine = mine_.data_ptr<int64_t>();
    mine[0] = state.stop;
    mine[1] = state.peak_bytes;
    mine[2] = state.library_bytes;
    group_->run(
        {.kind = exec::Collective::Kind::all_gather, .input = mine_, .output = all_, .dim = 0});
  }

  bool any_stops() const {
    const auto stops = values(0);
    return std::any_of(stops.begin(), stops.end(), [](int64_t stop) { return stop != 0; });
  }
  std::vector<int64_t> peak_bytes() const { return values(1); }
  std::vector<int64_t> library_bytes() const { return values(2); }

 private:
  // Returns one of the numbers, by rank.
  std::vector<int64_t> values(int64_t which) const {
    std::vector<int64_t> values;
    for (int64_t rank = 0; rank < group_->size(); ++rank) {
      values.push_back(all_.data_ptr<int64_t>()[3 * rank + which]);
    }
    return values;
  }

  std::shared_ptr<exec::Group> group_;
  at::Tensor mine_, all_;
};

void keep_largest(std::vector<int64_t>& largest, const std::vector<int64_t>& values) {
  largest.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) largest[i] = std::max(largest[i], values[i]);
}

}  // namespace

double validate(RankTrainer& trainer, const job::Job& job, data::Validation& validation) {
  const auto batches = std::min(validation.batches, job.train.validate_batches);
  double sum = 0;
  for (int64_t i = 1; i <= batches; ++i) sum += trainer.evaluate(i, *validation.data).loss;
  trainer.end_evaluation();
  return sum / double(batches);
}

LoopResult run_loop(RankTrainer& trainer, exec::Communicator& communicator, const job::Job& job,
                    int64_t first, DataSource& data, data::Validation& validation,
                    const LoopHooks& hooks) {
  Exchange exchange(communicator);
  LoopResult result;
  result.last_step = first - 1;
  std::vector<double> times;
  const auto begin = std::chrono::steady_clock::now();
  const auto steps = job.train.steps;
  for (int64_t step = first; step <= steps && !result.stopped; ++step) {
    const auto step_begin = std::chrono::steady_clock::now();
    hooks.before(step);
    const auto outcome = trainer.step(step, data);
    exchange.run({hooks.stop(), trainer.step_peak(), trainer.library_bytes()});
    result.stopped = exchange.any_stops() && step < steps;
    times.push_back(seconds_since(step_begin));
    result.last_step = step;
    if (!std::isfinite(outcome.loss) && !outcome.skipped && job.train.stop_if_not_finite) {
      fail_run("train",
               "the loss must be finite, but at step {} it is {}: lower optimizer.lr, or look at "
               "the data (train.stop_if_not_finite = false continues)",
               step, std::isnan(outcome.loss) ? "not a number" : "infinite");
    }
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = outcome.loss;
    metrics.lr = step_scalars(job, step).at("lr.0");
    metrics.grad_norm = outcome.grad_norm;
    metrics.loss_scale = outcome.loss_scale;
    metrics.skipped = outcome.skipped;
    metrics.samples = job.batch.global;
    metrics.tokens = job.model.values.contains("vocab") ? job.batch.global * job.data.sequence : 0;
    metrics.step_s = times.back();
    metrics.tokens_per_s = double(metrics.tokens) / times.back();
    metrics.peak_bytes = exchange.peak_bytes();
    keep_largest(result.peak_bytes, metrics.peak_bytes);
    keep_largest(result.library_bytes, exchange.library_bytes());
    const auto due = [&](int64_t every) {
      return every > 0 && (step % every == 0 || step == steps);
    };
    if (due(job.train.validate_every) && validation.batches > 0) {
      metrics.val_loss = validate(trainer, job, validation);
    }
    if (communicator.rank() == 0) hooks.report(metrics);
    if (job.train.forward_only) continue;  // nothing has changed
    if (result.stopped ? job.train.checkpoint_when_stopped
                       : due(job.train.checkpoint_every) || step == steps) {
      hooks.checkpoint(step);
    }
  }
  result.seconds = seconds_since(begin);
  if (!times.empty()) {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    result.median_step_s = times[times.size() / 2];
  }
  return result;
}

}  // namespace perigee::train
