#include "schedule/search/blocks.h"

#include <algorithm>
#include <array>

namespace perigee::schedule {
namespace {

// Appends ops in microbatch order of each kind and chunk.
class Writer {
 public:
  explicit Writer(int stages) : orders_(stages), forwards_(stages), backwards_(stages) {}
  void forward(int s, int chunk) {
    orders_[s].push_back({PipelineKind::forward, forwards_[s][chunk]++, chunk});
  }
  void backward(int s, int chunk) {
    orders_[s].push_back({PipelineKind::input_grad, backwards_[s][chunk]++, chunk});
  }
  int forwards(int s, int chunk) const { return forwards_[s][chunk]; }
  int forwards(int s) const { return forwards_[s][0] + forwards_[s][1]; }
  int backwards(int s, int chunk) const { return backwards_[s][chunk]; }
  Orders take() { return std::move(orders_); }

 private:
  Orders orders_;
  std::vector<std::array<int, 2>> forwards_, backwards_;  // done so far, [stage][chunk]
};

}  // namespace

Orders zero_bubble(const Shape& shape, int reach) {
  Orders orders(shape.stages);
  for (int s = 0; s < shape.stages; ++s) {
    auto& order = orders[s];
    const int ahead = std::min(shape.microbatches, reach * (shape.stages - s) - reach + 1);
    const int lag = reach * s;  // of weight gradients after input gradients
    for (int m = 0; m < ahead; ++m) order.push_back({PipelineKind::forward, m, 0});
    for (int m = 0; m < shape.microbatches + lag; ++m) {
      if (m < shape.microbatches) order.push_back({PipelineKind::input_grad, m, 0});
      if (m >= lag) order.push_back({PipelineKind::weight_grad, m - lag, 0});
      if (m + ahead < shape.microbatches) {
        order.push_back({PipelineKind::forward, m + ahead, 0});
      }
    }
  }
  return orders;
}

Orders zbv_rounds(const Shape& shape, int cap) {
  const int stages = shape.stages, count = shape.microbatches;
  Writer writer(stages);

  // Chunk-0 forwards that stage s has time for before the first microbatch returns to it on chunk
  // 1; at least as many as the next stage.
  const double hop = shape.forward + shape.transfer;
  std::vector<int> ahead(stages, 1);
  for (int s = stages - 2; s >= 0; --s) {
    // The fold costs no transfer.
    const double returned = (2 * stages - 1 - s) * hop - shape.transfer;
    const double passed = s * hop;
    const int fit = static_cast<int>((returned - passed) / shape.forward + 1e-9);
    ahead[s] = std::max(ahead[s + 1], std::min({fit, count, cap - 1 - 2 * s}));
  }
  for (int s = 0; s < stages; ++s) {
    for (int i = 0; i < ahead[s]; ++i) writer.forward(s, 0);
    writer.forward(s, 1);
  }
  // All stages get as many forwards as stage 0, alternating between the two chunks.
  for (int s = 1, chunk = 0; s < stages; ++s) {
    while (
        writer.forwards(s) < writer.forwards(s - 1) ||
        (writer.forwards(s, 1) <= writer.forwards(s - 1, 1) && writer.forwards(s - 1, 1) < count)) {
      for (int j = stages - 1; j >= s; --j) {
        if (writer.forwards(j, chunk) < count) writer.forward(j, chunk);
      }
      chunk = 1 - chunk;
    }
  }

  for (int round = 0; round < 2 * count; ++round) {
    // Input gradients: the two chunks alternate, chunk 0 as soon as the next stage has sent one.
    std::vector<int> chunk(stages, 1);
    for (int s = 0; s < stages; ++s) {
      const bool sent = s == stages - 1 || writer.backwards(s, 1) >= count ||
                        writer.backwards(s + 1, 0) > writer.backwards(s, 0);
      if (writer.backwards(s, 0) < writer.backwards(s, 1) && sent) chunk[s] = 0;
    }
    for (int s = stages - 1; s >= 0; --s) {
      if (chunk[s] == 0) writer.backward(s, 0);
    }
    for (int s = 0; s < stages; ++s) {
      if (chunk[s] == 1) writer.backward(s, 1);
    }
    // Forwards: chunk 1 if one has arrived, else chunk 0.
    for (int s = 0; s < stages; ++s) {
      if (writer.forwards(s, 1) >= count) continue;
      const bool own = writer.forwards(s, 1) < writer.forwards(s, 0);
      if (own && (s == stages - 1 || writer.forwards(s + 1, 1) > writer.forwards(s, 1))) {
        writer.forward(s, 1);
      } else if (writer.forwards(s, 0) < count &&
                 (s == 0 || writer.forwards(s - 1, 0) > writer.forwards(s, 0))) {
        writer.forward(s, 0);
      }
    }
  }
  return writer.take();
}

Orders repeat_block(const Shape& shape, RepeatedBlock block) {
  const int p = shape.stages;
  Orders orders(p);
  for (int s = 0; s < p; ++s) {
    // Slots of F chunk 0, F chunk 1, B chunk 1, B chunk 0; all different modulo 6 on every stage.
    std::array<int, 4> slot;
    if (block == RepeatedBlock::v_half) {
      const int shift = p % 2 == 0 ? 3 : 0;
      slot = {2 * s, 3 * p - s - 2, 3 * p + shift + 2 * s - 1, 6 * p + shift - s - 2};
    } else {
      const int shift = p % 3 == 0 ? 2 : 0;
      slot = {s, 2 * p - s - 1, 2 * p + shift + s, 4 * p + shift - s - 1};
    }
    std::vector<std::pair<int, PipelineOp>> ops;
    for (int m = 0; m < shape.microbatches; ++m) {
      ops.push_back({slot[0] + 6 * m, {PipelineKind::forward, m, 0}});
      ops.push_back({slot[1] + 6 * m, {PipelineKind::forward, m, 1}});
      ops.push_back({slot[2] + 6 * m, {PipelineKind::input_grad, m, 1}});
      ops.push_back({slot[3] + 6 * m, {PipelineKind::input_grad, m, 0}});
    }
    std::sort(ops.begin(), ops.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& op : ops) orders[s].push_back(op.second);
  }
  return orders;
}

Orders dualpipe_v(const Shape& shape) {
  const int p = shape.stages;
  Writer writer(p);
  for (int s = 0; s < p; ++s) {
    const int rest = p - 1 - s;
    for (int i = 0; i < 2 * rest; ++i) writer.forward(s, 0);
    for (int i = 0; i < s + 1; ++i) {
      writer.forward(s, 0);
      writer.forward(s, 1);
    }
    for (int i = 0; i < rest; ++i) {
      writer.backward(s, 1);
      writer.forward(s, 1);
    }
    for (int i = 0; i < shape.microbatches - 2 * p + s + 1; ++i) {
      writer.forward(s, 0);
      writer.backward(s, 1);
      writer.forward(s, 1);
      writer.backward(s, 0);
    }
    for (int i = 0; i < rest; ++i) {
      writer.backward(s, 1);
      writer.forward(s, 1);
      writer.backward(s, 0);
    }
    for (int i = 0; i < s + 1; ++i) {
      writer.backward(s, 1);
      writer.backward(s, 0);
    }
    for (int i = 0; i < rest; ++i) writer.backward(s, 0);
  }
  return writer.take();
}

}  // namespace perigee::schedule
