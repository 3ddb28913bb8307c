#include "compile/graph/random.h"

#include <map>
#include <string_view>

#include "graph/ops.h"
#include "plan/plan.h"
#include "shard/partition.h"

namespace perigee::compile {

namespace {

constexpr const char* kAxis = "microbatch";

const char* key_name(const graph::Node& node) {
  return node.op.starts_with("perigee::attention") ? "random_key" : "key";
}

// The samples of a tensor: all of a dim, or all of each of its runs; dim -1: of none.
struct BatchDim {
  int64_t dim = 0, run = 0;
  std::vector<int64_t> shape;
};

// Returns the samples' dim in the view that sharding made of the tensor, in which dims that are cut in
// runs are two: [runs, run]. `view`: its shape; empty: there is none.
BatchDim in_view(const BatchDim& batch, const std::vector<int64_t>& view) {
  auto result = batch;
  if (batch.dim < 0 || view.size() <= batch.shape.size()) return result;
  size_t at = 0;
  for (int64_t d = 0; d <= batch.dim && at < view.size(); ++d) {
    const bool two = view[at] != batch.shape[static_cast<size_t>(d)];
    if (d < batch.dim) {
      at += two ? 2 : 1;
      continue;
    }
    result.dim = static_cast<int64_t>(at);
    if (!two || batch.run == 0 || at + 1 >= view.size()) continue;
    const auto inner = view[at + 1];
    if (batch.run > inner) {
      result.run = batch.run / inner;
    } else {
      ++result.dim;
      if (batch.run == inner) result.run = 0;
    }
  }
  return result;
}

// Returns whether the operand is the factor of a product that weights usually are.
bool is_weight(const graph::Node& node, graph::ValueId operand) {
  const auto is = [&](std::string_view op, std::string_view name) {
    return node.op == op && node.get<graph::ValueId>(name, {}) == operand;
  };
  return is("aten::mm", "mat2") || is("aten::addmm", "mat2") || is("aten::bmm", "mat2") ||
         is("aten::baddbmm", "batch2") || is("aten::convolution", "weight");
}

// Returns whether numbers that node `drawn` draws without an operand are of samples: an op
// combines them, row by row, with values that depend on data. Otherwise they are of weights.
bool joins_data(const graph::Graph& graph, size_t drawn, const std::vector<bool>& from_data) {
  std::vector<bool> noise(graph.values.size());
  noise[graph.nodes[drawn].outputs[0].index] = true;
  for (size_t n = drawn + 1; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    if (node.outputs.empty() || !node.outputs[0].defined()) continue;
    const auto& result = graph.type(node.outputs[0]).shape;
    bool reads = false, same = false, of_data = false;
    node.each_operand([&](graph::ValueId v) {
      const bool drawn_rows = noise[v.index] && !is_weight(node, v);
      reads |= drawn_rows;
      const auto& shape = graph.type(v).shape;
      same |= drawn_rows && !shape.empty() && shape.size() == result.size() &&
              shape[0] == result[0];
      of_data |= from_data[v.index];
    });
    if (!reads) continue;
    if (of_data && same) return true;
    for (const auto v : node.outputs) {
      if (v.defined() && !of_data) noise[v.index] = true;
    }
  }
  return false;
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
  for (const auto& node : whole.nodes) {
    bool depends = false;
    node.each_operand([&](graph::ValueId v) { depends = depends || from_data[v.index]; });
    for (auto v : node.outputs) {
      if (v.defined()) from_data[v.index] = depends;
    }
  }
  std::map<int64_t, BatchDim> dims;  // by key
  for (size_t n = 0; n < whole.nodes.size(); ++n) {
    const auto& node = whole.nodes[n];
    if (!graph::is_random(node.op) || node.phase == graph::Phase::backward) continue;
    if (node.outputs.empty() || !node.outputs[0].defined()) continue;
    const auto& placement = sharding.values[node.outputs[0].index].at(0);
    const auto& shape = whole.type(node.outputs[0]).shape;
    BatchDim at{.shape = shape};
    // With one sample, its dim cannot be told from others of size 1: microbatches
    // are consecutive in dim 0.
    if (placement.is_shard() && batch > 1) {
      at.dim = placement.dim;
      at.run = placement.run;
    } else if (!from_data[node.outputs[0].index]) {
      const bool fits = !shape.empty() && shape[0] == batch;
      const bool of_samples = batch == 1 ? fits || joins_data(whole, n, from_data)
                                         : fits && joins_data(whole, n, from_data);
      if (!of_samples) at.dim = -1;  // the same for every microbatch
    }
    dims[node.get<int64_t>(key_name(node), 0)] = std::move(at);
  }
  for (auto& node : local.nodes) {
    if (!graph::is_random(node.op)) continue;
    const auto found = dims.find(node.get<int64_t>(key_name(node), 0));
    if (found == dims.end()) continue;
    const auto at = in_view(found->second, node.get<std::vector<int64_t>>("global", {}));
    if (at.dim != 0) node.args.emplace_back("batch_dim", at.dim);
    if (at.run != 0) node.args.emplace_back("batch_run", at.run);
  }
}

}  // namespace perigee::compile
