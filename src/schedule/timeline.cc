#include <algorithm>
#include <stdexcept>

#include "schedule/shape.h"

namespace perigee::schedule {

TimeLine earliest_start(const Shape& shape, const Orders& orders) {
  const int parts = shape.parts();
  const size_t count = static_cast<size_t>(parts) * shape.microbatches;
  const double unknown = -1;
  // Ends of forward and backward passes, by part and microbatch.
  std::vector<double> forward_end(count, unknown), backward_end(count, unknown);
  const auto index = [&](int part, int microbatch) {
    return static_cast<size_t>(part) * shape.microbatches + microbatch;
  };

  TimeLine line;
  line.start.resize(shape.stages);
  std::vector<size_t> next(shape.stages, 0);
  std::vector<double> free(shape.stages, 0);
  std::vector<int> awake(shape.stages);
  std::vector<char> queued(shape.stages, 1);
  for (int s = 0; s < shape.stages; ++s) {
    awake[s] = shape.stages - 1 - s;
    line.start[s].reserve(orders[s].size());
  }

  // Each stage runs until the input of an op is missing; a result wakes the stage that may
  // wait for it.
  while (!awake.empty()) {
    const int s = awake.back();
    awake.pop_back();
    queued[s] = 0;
    for (; next[s] < orders[s].size(); ++next[s]) {
      const PipelineOp op = orders[s][next[s]];
      const int part = shape.part(s, op.chunk);
      const size_t own = index(part, op.microbatch);
      double ready = 0;
      int consumer = -1;
      std::vector<double>* end = &backward_end;
      if (op.kind == PipelineKind::forward) {
        end = &forward_end;
        if (part > 0) {
          ready = forward_end[index(part - 1, op.microbatch)];
          if (ready >= 0 && shape.stage_of(part - 1) != s) ready += shape.transfer;
        }
        consumer = part + 1;
      } else if (op.kind == PipelineKind::weight_grad) {
        ready = backward_end[own];
        end = nullptr;
      } else {
        ready = forward_end[own];
        if (ready >= 0 && part + 1 < parts) {
          double next_part = backward_end[index(part + 1, op.microbatch)];
          if (next_part >= 0 && shape.stage_of(part + 1) != s) next_part += shape.transfer;
          ready = next_part < 0 ? unknown : std::max(ready, next_part);
        }
        consumer = part - 1;
      }
      if (ready < 0) break;
      const double start = std::max(free[s], ready);
      line.start[s].push_back(start);
      free[s] = start + shape.duration(op.kind);
      if (end != nullptr) {
        (*end)[own] = free[s];
        if (consumer >= 0 && consumer < parts) {
          const int other = shape.stage_of(consumer);
          if (other != s && !queued[other]) {
            queued[other] = 1;
            awake.push_back(other);
          }
        }
      }
    }
  }

  for (int s = 0; s < shape.stages; ++s) {
    if (next[s] < orders[s].size()) {
      throw std::logic_error("schedule: orders deadlock at " + std::to_string(s) + ", " +
                             to_text(orders[s][next[s]]));
    }
    line.makespan = std::max(line.makespan, free[s]);
    if (!orders[s].empty()) {
      line.longest_span = std::max(line.longest_span, free[s] - line.start[s].front());
    }
  }
  return line;
}

std::vector<int> peak_chunks(const Orders& orders) {
  std::vector<int> peak;
  for (const auto& order : orders) {
    int held = 0, most = 0;
    for (const auto& op : order) {
      if (op.kind == PipelineKind::forward) most = std::max(most, ++held);
      if (op.kind == PipelineKind::backward || op.kind == PipelineKind::weight_grad) --held;
    }
    peak.push_back(most);
  }
  return peak;
}

}  // namespace perigee::schedule
