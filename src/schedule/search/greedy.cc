#include "schedule/search/greedy.h"

#include <algorithm>
#include <limits>

namespace perigee::schedule {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Stage {
  int next_forward[2] = {0, 0};  // [chunk] microbatch
  int next_backward[2] = {0, 0};
  int next_weight[2] = {0, 0};
  int held[2] = {0, 0};  // [chunk] activations
  double free = 0;       // end of the last op
  bool last_was_backward = false;
};

class Greedy {
 public:
  Greedy(const Shape& shape, int cap, const Policy& policy)
      : shape_(shape), policy_(policy), cap_(cap), stages_(shape.stages) {
    const size_t count = static_cast<size_t>(shape.parts()) * shape.microbatches;
    forward_at_.assign(count, kNever);
    backward_at_.assign(count, kNever);
    std::fill_n(forward_at_.begin(), shape.microbatches, 0.0);
    weights_.resize(shape.stages);
    orders_.resize(shape.stages);
    wake_.resize(shape.stages);
    for (int s = 0; s < shape.stages; ++s) {
      orders_[s].reserve(3 * shape.chunks * shape.microbatches);
      weights_[s].reserve(shape.chunks * shape.microbatches);
      wake_[s] = s == 0 ? 0 : kNever;
    }
    weight_done_.assign(shape.stages, 0);
    epsilon_ = 1e-9 * (shape.forward + shape.backward + shape.wgrad + shape.transfer);
  }

  Orders run() {
    for (;;) {
      const auto first = std::min_element(wake_.begin(), wake_.end());
      if (*first == kNever) break;
      decide(static_cast<int>(first - wake_.begin()));
    }
    return std::move(orders_);
  }

 private:
  size_t index(int part, int microbatch) const {
    return static_cast<size_t>(part) * shape_.microbatches + microbatch;
  }
  double forward_at(int s, int chunk) const {
    const int m = stages_[s].next_forward[chunk];
    return m < shape_.microbatches ? forward_at_[index(shape_.part(s, chunk), m)] : kNever;
  }
  double backward_at(int s, int chunk) const {
    const int m = stages_[s].next_backward[chunk];
    return m < shape_.microbatches ? backward_at_[index(shape_.part(s, chunk), m)] : kNever;
  }
  // Chunk 0 leaves room for the later chunk of the oldest microbatch, else stages could deadlock.
  bool admits(int s, int chunk) const {
    const Stage& stage = stages_[s];
    const int held = stage.held[0] + stage.held[1];
    if (shape_.chunks == 1 || chunk == 1) return held < cap_ && below_limit(s, chunk);
    return held + (stage.held[1] == 0 ? 1 : 0) < cap_ && below_limit(s, chunk);
  }
  bool below_limit(int s, int chunk) const {
    return chunk != 0 || policy_.first_limit.empty() || stages_[s].held[0] < policy_.first_limit[s];
  }

  void decide(int s) {
    Stage& stage = stages_[s];
    const double now = wake_[s];
    const int last = shape_.chunks - 1;
    int backward = -1, forward = -1;
    bool blocked = false;  // a forward is ready, but memory is not
    double next = kNever;
    for (int i = 0; i <= last; ++i) {
      const int b = policy_.drain ? i : last - i;
      const double at = backward_at(s, b);
      if (at <= now + epsilon_) {
        if (backward < 0) backward = b;
      } else {
        next = std::min(next, at);
      }
      const int f = last - i;
      const double due = forward_at(s, f);
      if (due == kNever) continue;
      if (!admits(s, f)) {
        blocked = blocked || due <= now + epsilon_;
      } else if (due <= now + epsilon_) {
        if (forward < 0) forward = f;
      } else {
        next = std::min(next, due);
      }
    }
    const bool weight = weight_done_[s] < weights_[s].size();

    if (backward >= 0 && forward >= 0) {
      const bool take_forward = policy_.prefer == Policy::Prefer::forward ||
                                (policy_.prefer == Policy::Prefer::alternate &&
                                 stage.last_was_backward);
      (take_forward ? backward : forward) = -1;
    }
    const bool make_room = blocked && forward < 0 && policy_.strict && stage.last_was_backward;
    if (weight && make_room) {
      start(s, now, weights_[s][weight_done_[s]]);
    } else if (backward >= 0) {
      start(s, now, {PipelineKind::input_grad, stage.next_backward[backward], backward});
    } else if (forward >= 0) {
      start(s, now, {PipelineKind::forward, stage.next_forward[forward], forward});
    } else if (weight) {
      start(s, now, weights_[s][weight_done_[s]]);
    } else {
      wake_[s] = next;
    }
  }

  void start(int s, double now, PipelineOp op) {
    Stage& stage = stages_[s];
    const double end = now + shape_.duration(op.kind);
    stage.free = wake_[s] = end;
    orders_[s].push_back(op);
    const int part = shape_.part(s, op.chunk);
    if (op.kind == PipelineKind::forward) {
      ++stage.next_forward[op.chunk];
      ++stage.held[op.chunk];
      stage.last_was_backward = false;
      if (part + 1 < shape_.parts()) {
        arrive(forward_at_, part + 1, op.microbatch, s, end);
      } else {
        arrive(backward_at_, part, op.microbatch, s, end);
      }
    } else if (op.kind == PipelineKind::input_grad) {
      ++stage.next_backward[op.chunk];
      stage.last_was_backward = true;
      weights_[s].push_back({PipelineKind::weight_grad, op.microbatch, op.chunk});
      if (part > 0) arrive(backward_at_, part - 1, op.microbatch, s, end);
    } else {
      --stage.held[op.chunk];
      ++weight_done_[s];
    }
  }

  void arrive(std::vector<double>& at, int part, int microbatch, int from, double end) {
    const int to = shape_.stage_of(part);
    const double time = to == from ? end : end + shape_.transfer;
    at[index(part, microbatch)] = time;
    // Only a stage that sleeps past this arrival has to be woken earlier.
    wake_[to] = std::min(wake_[to], std::max(time, stages_[to].free));
  }

  const Shape& shape_;
  const Policy& policy_;
  const int cap_;
  std::vector<Stage> stages_;
  std::vector<double> wake_;                      // [stage] time of the next decision
  std::vector<double> forward_at_, backward_at_;  // [part][microbatch] arrival of the input
  // [stage] weight gradients in the order in which they became ready.
  std::vector<std::vector<PipelineOp>> weights_;
  std::vector<size_t> weight_done_;  // [stage]
  double epsilon_ = 0;
  Orders orders_;
};

}  // namespace

Orders run_greedy(const Shape& shape, int cap, const Policy& policy) {
  return Greedy(shape, cap, policy).run();
}

}  // namespace perigee::schedule
