#include "compile/stages/frame_pools.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "compile/draft/lower.h"
#include "plan/pipeline.h"

namespace perigee::compile {

namespace {

using graph::Phase;
using graph::ValueId;

// Returns, by part, the bytes that it keeps from its forward to its backward pass, on one device.
std::vector<int64_t> kept_bytes(const graph::Graph& graph, const plan::Plan& plan, int count) {
  const auto parts = plan::parts_of(graph, plan.pipeline);
  std::vector<int32_t> root(graph.values.size());
  std::iota(root.begin(), root.end(), 0);
  std::vector<bool> counted(graph.values.size());
  std::vector<int64_t> bytes(static_cast<size_t>(count));
  for (const auto& node : graph.nodes) {
    ValueId first;
    node.each_operand([&](ValueId v) {
      if (!first.defined()) first = v;
      const auto base = root[v.index];
      const auto producer = graph.values[base].producer;
      if (node.phase != Phase::backward || producer < 0 || counted[base]) return;
      if (graph.nodes[producer].phase == Phase::backward || parts[producer] == plan::kEveryPart) {
        return;
      }
      counted[base] = true;
      bytes[parts[producer]] += graph.values[base].type.bytes();
    });
    if (!first.defined() || !shows_operand(node.op) || node.find("part")) continue;
    for (const auto v : node.outputs) {
      if (v.defined()) root[v.index] = root[first.index];
    }
  }
  return bytes;
}

// Returns the most microbatches that these chunks of a stage have in flight together. A microbatch
// is in flight from the first to the last of its ops.
int64_t most_in_flight(const std::vector<PipelineOp>& order, const std::set<int>& chunks) {
  std::map<std::pair<int, int>, int> left;  // ops, by chunk and microbatch
  for (const auto& op : order) ++left[{op.chunk, op.microbatch}];
  std::set<std::pair<int, int>> open;
  size_t most = 0;
  for (const auto& op : order) {
    if (!chunks.contains(op.chunk)) continue;
    open.insert({op.chunk, op.microbatch});
    most = std::max(most, open.size());
    if (--left[{op.chunk, op.microbatch}] == 0) open.erase({op.chunk, op.microbatch});
  }
  return static_cast<int64_t>(most);
}

}  // namespace

FramePools pool_frames(const graph::Graph& whole, const plan::Plan& plan,
                       const Schedule& schedule) {
  FramePools pools(static_cast<size_t>(schedule.stages * schedule.chunks));
  std::iota(pools.begin(), pools.end(), 0);
  const auto& first = schedule.orders.front();
  const bool training = std::any_of(first.begin(), first.end(), [](const PipelineOp& op) {
    return op.kind != PipelineKind::forward;
  });
  if (schedule.chunks < 2 || !training) return pools;
  const auto bytes = kept_bytes(whole, plan, schedule.stages * schedule.chunks);
  for (int s = 0; s < schedule.stages; ++s) {
    const auto& parts = schedule.parts[s];
    std::vector<int> chunks(parts.size());
    std::iota(chunks.begin(), chunks.end(), 0);
    std::stable_sort(chunks.begin(), chunks.end(),
                     [&](int a, int b) { return bytes[parts[a]] > bytes[parts[b]]; });
    // By n: the fewest bytes for the first n chunks, and the first chunk of their last pool.
    const size_t count = chunks.size();
    std::vector<int64_t> least(count + 1, std::numeric_limits<int64_t>::max());
    std::vector<size_t> begins(count + 1);
    least[0] = 0;
    for (size_t end = 1; end <= count; ++end) {
      std::set<int> pool;
      for (size_t begin = end; begin-- > 0;) {
        pool.insert(chunks[begin]);
        const auto held = least[begin] +
                          bytes[parts[chunks[begin]]] * most_in_flight(schedule.orders[s], pool);
        if (held < least[end]) {
          least[end] = held;
          begins[end] = begin;
        }
      }
    }
    for (size_t end = count; end > 0; end = begins[end]) {
      int owner = std::numeric_limits<int>::max();
      for (size_t k = begins[end]; k < end; ++k) owner = std::min(owner, parts[chunks[k]]);
      for (size_t k = begins[end]; k < end; ++k) pools[parts[chunks[k]]] = owner;
    }
  }
  return pools;
}

}  // namespace perigee::compile
