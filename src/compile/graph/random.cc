#include "compile/graph/random.h"

#include <map>

#include "graph/ops.h"
#include "plan/plan.h"
#include "shard/partition.h"

namespace perigee::compile {

namespace {

constexpr const char* kAxis = "microbatch";

const char* key_name(const graph::Node& node) {
  return node.op.starts_with("perigee::attention") ? "random_key" : "key";
}

}  // namespace

void set_batch_dims(graph::Graph& local, const graph::Graph& whole) {
  bool any = false;
  for (const auto& node : local.nodes) any = any || graph::is_random(node.op);
  if (!any) return;

  // Propagate placements from a batch that is sharded over a probe axis of one rank, which fits
  // every batch size.
  plan::Plan probe;
  probe.mesh.axes = {{kAxis, 1}};
  probe.batch_axes = kAxis;
  const auto sharding = shard::propagate(whole, probe);

  std::vector<bool> from_data(whole.values.size());
  int64_t batch = 0;
  for (const auto& input : whole.inputs) {
    if (input.kind != graph::Input::Kind::data || !input.batched) continue;
    from_data[input.value.index] = true;
    const auto& shape = whole.type(input.value).shape;
    if (!shape.empty()) batch = shape[0];
  }
  std::map<int64_t, int64_t> dims;  // by key
  for (const auto& node : whole.nodes) {
    bool depends = false;
    node.each_operand([&](graph::ValueId v) { depends = depends || from_data[v.index]; });
    for (auto v : node.outputs) {
      if (v.defined()) from_data[v.index] = depends;
    }
    if (!graph::is_random(node.op) || node.phase == graph::Phase::backward) continue;
    if (node.outputs.empty() || !node.outputs[0].defined()) continue;
    const auto& placement = sharding.values[node.outputs[0].index].at(0);
    const auto& shape = whole.type(node.outputs[0]).shape;
    int64_t dim = 0;
    if (placement.is_shard() &&
        batch > 1) {  // with one sample, its dim cannot be told from others of size 1
      dim = placement.dim;
    } else if (!depends && (shape.empty() || shape[0] != batch)) {
      dim = -1;  // noise on weights: the same for every microbatch
    }
    dims[node.get<int64_t>(key_name(node), 0)] = dim;
  }
  for (auto& node : local.nodes) {
    if (!graph::is_random(node.op)) continue;
    const auto found = dims.find(node.get<int64_t>(key_name(node), 0));
    if (found != dims.end() && found->second != 0) {
      node.args.emplace_back("batch_dim", found->second);
    }
  }
}

}  // namespace perigee::compile
