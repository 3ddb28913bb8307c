#include <vector>

#include "schedule/search/search.h"

namespace perigee::schedule {
namespace {

// Replaces each weight gradient by the latest one whose input gradient has run: any of these can
// run there.
std::vector<PipelineOp> latest_first(std::vector<PipelineOp> order) {
  std::vector<PipelineOp> waiting;
  for (auto& op : order) {
    if (op.kind == PipelineKind::input_grad) waiting.push_back(op);
    if (op.kind == PipelineKind::weight_grad) {
      op = waiting.back();
      op.kind = PipelineKind::weight_grad;
      waiting.pop_back();
    }
  }
  return order;
}

}  // namespace

Orders join_backwards(const Shape& shape, const Orders& orders) {
  Orders paired;
  for (const auto& order : orders) paired.push_back(latest_first(order));
  const TimeLine line = earliest_start(shape, paired);

  // Start of each input gradient, by part and microbatch.
  std::vector<double> starts(static_cast<size_t>(shape.parts()) * shape.microbatches);
  const auto index = [&](int part, int microbatch) {
    return static_cast<size_t>(part) * shape.microbatches + microbatch;
  };
  for (int s = 0; s < shape.stages; ++s) {
    for (size_t i = 0; i < paired[s].size(); ++i) {
      const auto& op = paired[s][i];
      if (op.kind == PipelineKind::input_grad) {
        starts[index(shape.part(s, op.chunk), op.microbatch)] = line.start[s][i];
      }
    }
  }

  const double epsilon = 1e-9 * (shape.backward + shape.wgrad);
  Orders joined(shape.stages);
  for (int s = 0; s < shape.stages; ++s) {
    for (size_t i = 0; i < paired[s].size(); ++i) {
      PipelineOp op = paired[s][i];
      const PipelineOp own{PipelineKind::weight_grad, op.microbatch, op.chunk};
      if (op.kind == PipelineKind::input_grad && i + 1 < paired[s].size() &&
          paired[s][i + 1] == own) {
        const int part = shape.part(s, op.chunk);
        // The previous part must not wait for the weight gradient.
        const double end = line.start[s][i] + shape.backward + shape.wgrad;
        const bool crosses = part > 0 && shape.stage_of(part - 1) != s;
        if (part == 0 || starts[index(part - 1, op.microbatch)] >=
                             end + (crosses ? shape.transfer : 0) - epsilon) {
          op.kind = PipelineKind::backward;
          ++i;
        }
      }
      joined[s].push_back(op);
    }
  }
  return joined;
}

}  // namespace perigee::schedule
