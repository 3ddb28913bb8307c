#include "cost/schedule_fixed.h"

#include <algorithm>

namespace perigee::schedule {

Orders warm_up_then_alternate(const Shape& shape, const std::vector<int>& in_flight) {
  Orders orders(shape.stages);
  for (int s = 0; s < shape.stages; ++s) {
    const int warm_up = std::min(shape.microbatches, in_flight[s]);
    auto& order = orders[s];
    order.reserve(2 * shape.microbatches);
    for (int m = 0; m < warm_up; ++m) order.push_back({PipelineKind::forward, m, 0});
    for (int m = 0; m < shape.microbatches; ++m) {
      order.push_back({PipelineKind::backward, m, 0});
      if (m + warm_up < shape.microbatches) {
        order.push_back({PipelineKind::forward, m + warm_up, 0});
      }
    }
  }
  return orders;
}

Orders interleaved(const Shape& shape, int group) {
  // The order in which one stage meets (microbatch, chunk); backward meets the chunks from the
  // last.
  std::vector<PipelineOp> forward, backward;
  for (int first = 0; first < shape.microbatches; first += group) {
    const int end = std::min(first + group, shape.microbatches);
    for (int c = 0; c < shape.chunks; ++c) {
      for (int m = first; m < end; ++m) {
        forward.push_back({PipelineKind::forward, m, c});
        backward.push_back({PipelineKind::backward, m, shape.chunks - 1 - c});
      }
    }
  }
  const size_t total = forward.size();
  Orders orders(shape.stages);
  for (int s = 0; s < shape.stages; ++s) {
    const size_t warm_up =
        std::min<size_t>(total, 2 * (shape.stages - 1 - s) + (shape.chunks - 1) * group);
    auto& order = orders[s];
    order.assign(forward.begin(), forward.begin() + warm_up);
    for (size_t i = 0; i < total; ++i) {
      if (i + warm_up < total) order.push_back(forward[i + warm_up]);
      order.push_back(backward[i]);
    }
  }
  return orders;
}

Orders looped_bfs(const Shape& shape) {
  std::vector<PipelineOp> order;
  for (int c = 0; c < shape.chunks; ++c) {
    for (int m = 0; m < shape.microbatches; ++m) order.push_back({PipelineKind::forward, m, c});
  }
  for (size_t i = order.size(); i-- > 0;) {
    order.push_back({PipelineKind::backward, order[i].microbatch, order[i].chunk});
  }
  return Orders(shape.stages, order);
}

}  // namespace perigee::schedule
