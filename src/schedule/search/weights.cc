#include "schedule/search/weights.h"

#include <algorithm>
#include <limits>

namespace perigee::schedule {
namespace {

// Ends of forwards and backwards by part and microbatch, and the arrivals of inputs from them.
class Arrivals {
 public:
  static constexpr double kUnknown = -1;

  explicit Arrivals(const Shape& shape)
      : shape_(shape),
        forward_(static_cast<size_t>(shape.parts()) * shape.microbatches, kUnknown),
        backward_(forward_.size(), kUnknown) {}

  // Returns the arrival of the input of `op` on stage s, or kUnknown.
  double of(int s, const PipelineOp& op) const {
    const int part = shape_.part(s, op.chunk);
    if (op.kind == PipelineKind::weight_grad) return backward_[index(part, op.microbatch)];
    if (op.kind == PipelineKind::forward) {
      return part == 0 ? 0 : across(forward_, part - 1, s, op.microbatch);
    }
    if (part + 1 == shape_.parts()) return forward_[index(part, op.microbatch)];
    return across(backward_, part + 1, s, op.microbatch);
  }

  // Notes the end of `op`. Returns the stage that may have waited for it, or -1.
  int note(int s, const PipelineOp& op, double end) {
    const int part = shape_.part(s, op.chunk);
    if (op.kind == PipelineKind::forward) {
      forward_[index(part, op.microbatch)] = end;
      return part + 1 < shape_.parts() ? shape_.stage_of(part + 1) : -1;
    }
    if (op.kind == PipelineKind::weight_grad) return -1;
    backward_[index(part, op.microbatch)] = end;
    return part > 0 ? shape_.stage_of(part - 1) : -1;
  }

 private:
  size_t index(int part, int microbatch) const {
    return static_cast<size_t>(part) * shape_.microbatches + microbatch;
  }
  double across(const std::vector<double>& ends, int part, int s, int microbatch) const {
    const double end = ends[index(part, microbatch)];
    return end < 0 || shape_.stage_of(part) == s ? end : end + shape_.transfer;
  }

  const Shape& shape_;
  std::vector<double> forward_, backward_;
};

struct Cursor {
  size_t next = 0;  // in the skeleton
  double free = 0;
  double idle = 0;
  int held = 0;
  size_t weights_done = 0;
  std::vector<PipelineOp> weights;  // in the order in which they became ready
  bool queued = true;
};

}  // namespace

std::optional<Placed> place_weights(const Shape& shape, int cap, double patience,
                                    const Orders& skeleton) {
  const double epsilon = 1e-9 * (shape.forward + shape.backward + shape.wgrad + shape.transfer);
  Placed placed;
  placed.orders.resize(shape.stages);
  placed.line.start.resize(shape.stages);
  Arrivals arrivals(shape);
  std::vector<Cursor> cursors(shape.stages);
  std::vector<int> awake;
  for (int s = shape.stages - 1; s >= 0; --s) {
    awake.push_back(s);
    placed.orders[s].reserve(3 * shape.chunks * shape.microbatches);
    placed.line.start[s].reserve(3 * shape.chunks * shape.microbatches);
    cursors[s].weights.reserve(shape.chunks * shape.microbatches);
  }
  const auto put = [&](int s, const PipelineOp& op, double start) {
    Cursor& cursor = cursors[s];
    if (!placed.orders[s].empty()) cursor.idle += start - cursor.free;
    placed.orders[s].push_back(op);
    placed.line.start[s].push_back(start);
    cursor.free = start + shape.duration(op.kind);
    if (op.kind == PipelineKind::forward) ++cursor.held;
    if (op.kind == PipelineKind::weight_grad) --cursor.held;
    if (op.kind == PipelineKind::input_grad) {
      cursor.weights.push_back({PipelineKind::weight_grad, op.microbatch, op.chunk});
    }
    const int waiting = arrivals.note(s, op, cursor.free);
    if (waiting >= 0 && waiting != s && !cursors[waiting].queued) {
      cursors[waiting].queued = true;
      awake.push_back(waiting);
    }
  };
  const auto put_weight = [&](int s) {
    Cursor& cursor = cursors[s];
    put(s, cursor.weights[cursor.weights_done++], cursor.free);
  };

  while (!awake.empty()) {
    const int s = awake.back();
    awake.pop_back();
    Cursor& cursor = cursors[s];
    cursor.queued = false;
    while (cursor.next < skeleton[s].size()) {
      const PipelineOp op = skeleton[s][cursor.next];
      if (op.kind == PipelineKind::weight_grad) {
        ++cursor.next;
        continue;
      }
      const double ready = arrivals.of(s, op);
      if (ready < 0) break;
      const bool full = op.kind == PipelineKind::forward && cursor.held >= cap;
      if (cursor.weights_done < cursor.weights.size()) {
        const double gap = ready - cursor.free;
        if (full || gap >= shape.wgrad - epsilon ||
            (gap > epsilon && cursor.idle + gap > patience + epsilon)) {
          put_weight(s);
          continue;
        }
      } else if (full) {
        return std::nullopt;
      }
      put(s, op, std::max(ready, cursor.free));
      ++cursor.next;
    }
  }
  for (int s = 0; s < shape.stages; ++s) {
    Cursor& cursor = cursors[s];
    if (cursor.next < skeleton[s].size()) return std::nullopt;
    while (cursor.weights_done < cursor.weights.size()) put_weight(s);
    placed.line.makespan = std::max(placed.line.makespan, cursor.free);
    placed.line.longest_span = std::max(placed.line.longest_span,
                                        cursor.free - placed.line.start[s].front());
  }
  return placed;
}

Placed fill_gaps(const Shape& shape, int cap, const Placed& placed) {
  const double never = std::numeric_limits<double>::infinity();
  const double epsilon = 1e-9 * (shape.forward + shape.backward + shape.wgrad + shape.transfer);
  const double shortest = std::min({shape.forward, shape.backward, shape.wgrad});
  const int all_classes = (1 << 3 * shape.chunks) - 1;
  Placed result;
  result.orders.resize(shape.stages);
  result.line.start.resize(shape.stages);
  Arrivals arrivals(shape);
  struct Left {
    std::vector<PipelineOp> ops;  // still to run from `first`, in order; a moved op leaves a hole
    std::vector<char> moved;
    std::vector<int> count;  // ops left of each class
    int used_up = 0;         // classes without ops left, as bits
    size_t first = 0;
    int held = 0;
    double free = 0;
  };
  // Ops of one kind and chunk are in microbatch order: where the first cannot run, none can.
  const auto class_of = [](const PipelineOp& op) {
    const bool forward = op.kind == PipelineKind::forward;
    return 3 * op.chunk + (forward ? 0 : op.kind == PipelineKind::weight_grad ? 1 : 2);
  };
  std::vector<Left> left(shape.stages);
  std::vector<double> wake(shape.stages, 0);  // time of the next decision
  for (int s = 0; s < shape.stages; ++s) {
    left[s].ops = placed.orders[s];
    left[s].moved.assign(left[s].ops.size(), 0);
    left[s].count.assign(3 * shape.chunks, shape.microbatches);
    result.orders[s].reserve(left[s].ops.size());
    result.line.start[s].reserve(left[s].ops.size());
  }

  for (;;) {
    const auto earliest = std::min_element(wake.begin(), wake.end());
    if (*earliest == never) break;
    const int s = static_cast<int>(earliest - wake.begin());
    const double now = *earliest;
    Left& stage = left[s];
    // Finds the first op of the order that can run now without taking time or memory from an op
    // before it.
    double until = never;
    int held = stage.held, most = stage.held;
    size_t found = stage.ops.size();
    double next_arrival = never;
    int seen = stage.used_up;
    for (size_t i = stage.first; i < stage.ops.size() && seen != all_classes; ++i) {
      if (stage.moved[i]) continue;
      const PipelineOp& op = stage.ops[i];
      const bool forward = op.kind == PipelineKind::forward;
      const bool weight = op.kind == PipelineKind::weight_grad;
      const int of_class = 1 << class_of(op);
      const bool fits = now + shape.duration(op.kind) <= until + epsilon;
      if ((seen & of_class) == 0 && fits && (!forward || most + 1 <= cap)) {
        const double ready = arrivals.of(s, op);
        if (ready >= 0 && ready <= now + epsilon) {
          found = i;
          break;
        }
        if (ready >= 0) next_arrival = std::min(next_arrival, ready);
      }
      seen |= of_class;
      until = std::min(until, placed.line.start[s][i]);
      if (until < now + shortest - epsilon) break;
      if (forward) most = std::max(most, ++held);
      if (weight) --held;
    }
    if (found == stage.ops.size()) {
      wake[s] = next_arrival;
      continue;
    }
    const PipelineOp op = stage.ops[found];
    stage.moved[found] = 1;
    if (--stage.count[class_of(op)] == 0) stage.used_up |= 1 << class_of(op);
    while (stage.first < stage.ops.size() && stage.moved[stage.first]) ++stage.first;
    if (op.kind == PipelineKind::forward) ++stage.held;
    if (op.kind == PipelineKind::weight_grad) --stage.held;
    result.orders[s].push_back(op);
    result.line.start[s].push_back(now);
    stage.free = wake[s] = now + shape.duration(op.kind);
    if (stage.first == stage.ops.size()) wake[s] = never;
    const int waiting = arrivals.note(s, op, stage.free);
    if (waiting >= 0 && left[waiting].first < left[waiting].ops.size()) {
      const double arrival = stage.free + (waiting == s ? 0 : shape.transfer);
      wake[waiting] = std::min(wake[waiting], std::max(left[waiting].free, arrival));
    }
  }
  for (int s = 0; s < shape.stages; ++s) {
    result.line.makespan = std::max(result.line.makespan, left[s].free);
    result.line.longest_span = std::max(result.line.longest_span,
                                        left[s].free - result.line.start[s].front());
  }
  return result;
}

}  // namespace perigee::schedule
