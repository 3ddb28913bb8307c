#include "shard/loss/sample_dim.h"

#include <algorithm>

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueId;
using Operands = std::vector<std::optional<SampleDim>>;

std::vector<ValueId> values_of(const Node& node) {
  std::vector<ValueId> values;
  node.each_operand([&](ValueId v) { values.push_back(v); });
  return values;
}

int64_t dim_of(const Node& node, size_t rank) {
  const auto dim = node.get<int64_t>("dim", 0);
  return dim < 0 ? dim + static_cast<int64_t>(rank) : dim;
}

// Returns whether `length` elements from `begin` on are whole sets of the samples.
bool is_whole(int64_t begin, int64_t length, SampleDim samples, int64_t count) {
  const auto set = samples.inner * count;
  return length > 0 && begin % set == 0 && length % set == 0;
}

std::optional<SampleDim> cat(const Graph& graph, const Node& node, const Operands& operands,
                             int64_t count) {
  const auto& first = operands.front();
  if (!first || first->dim != dim_of(node, graph.type(node.outputs[0]).shape.size())) return {};
  const auto values = values_of(node);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] != first) return {};
    if (!is_whole(0, graph.type(values[i]).shape[first->dim], *first, count)) return {};
  }
  return first;
}

std::optional<SampleDim> slice(const Graph& graph, const Node& node, size_t r, SampleDim samples,
                               int64_t count) {
  const auto& from = graph.type(values_of(node).front()).shape;
  if (samples.dim != dim_of(node, from.size())) return {};
  const auto length = [&](size_t result) {
    return graph.type(node.outputs[result]).shape[samples.dim];
  };
  int64_t begin = 0;
  if (node.op == "aten::slice.Tensor") {
    if (node.get<int64_t>("step", 1) != 1) return {};
    begin = node.get<int64_t>("start", 0);
    if (begin < 0) begin += from[samples.dim];
  } else {
    for (size_t before = 0; before < r; ++before) {
      if (!node.outputs[before].defined()) return {};
      begin += length(before);
    }
  }
  if (!is_whole(begin, length(r), samples, count)) return {};
  return samples;
}

// Returns whether the value is first, first + step, first + 2 step, ...
bool counts_up(const Graph& graph, ValueId value, int64_t step) {
  const auto producer = graph.values[value.index].producer;
  if (producer < 0) return false;
  const auto& node = graph.nodes[producer];
  if (node.op == "aten::arange") return step == 1;
  return node.op.starts_with("aten::arange.start") && node.get<int64_t>("start", 0) == 0 &&
         node.get<int64_t>("step", 1) == step;
}

// Offsets that are multiples of a number of indices divide them into bags of that size.
std::optional<SampleDim> bags(const Graph& graph, const Node& node, size_t r,
                              const Operands& operands, int64_t count) {
  const auto values = values_of(node);
  const auto* offsets = node.find("offsets");
  const auto* indices = node.find("indices");
  if (r > 1 || !offsets || !indices || node.get<bool>("include_last_offset", false)) return {};
  std::optional<SampleDim> samples;
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool of_weights = values[i] == std::get<ValueId>(*node.find("weight"));
    const bool of_offsets = values[i] == std::get<ValueId>(*offsets);
    if (operands[i] && (of_weights || of_offsets)) return {};
    if (values[i] == std::get<ValueId>(*indices)) samples = operands[i];
  }
  for (const auto& operand : operands) {  // weights of the samples' indices
    if (operand && operand != samples) return {};
  }
  if (!samples) return {};
  if (r == 1) return samples;  // the bag of each index
  const auto length = graph.type(std::get<ValueId>(*indices)).numel();
  const auto number = graph.type(std::get<ValueId>(*offsets)).numel();
  if (number == 0 || length % number != 0) return {};
  const auto size = length / number;
  if (samples->inner % size != 0 || length != samples->inner * count) return {};
  if (!counts_up(graph, std::get<ValueId>(*offsets), size)) return {};
  return SampleDim{0, samples->inner / size};
}

std::optional<SampleDim> element_of_each(const Graph& graph, const Node& node,
                                         const Operands& operands, int64_t count) {
  const auto* arg = node.find("indices");
  const auto* list = arg ? std::get_if<std::vector<ValueId>>(arg) : nullptr;
  if (!list || !operands[0] || operands[0]->inner != 1) return {};
  const auto values = values_of(node);
  const auto dim = static_cast<size_t>(operands[0]->dim);
  if (graph.type(values[0]).shape[dim] != count || dim >= list->size()) return {};
  // Every index has one dim, along which are the samples.
  int first = -1, last = -1, indices = 0;
  for (size_t d = 0; d < list->size(); ++d) {
    if (!(*list)[d].defined()) continue;
    const auto& type = graph.type((*list)[d]);
    if (graph::is_floating(type.dtype) || type.dtype == graph::DType::boolean) return {};
    if (type.shape != std::vector<int64_t>{count}) return {};
    const auto& samples = operands[++indices];
    if (d == dim ? !counts_up(graph, (*list)[d], 1) : samples != SampleDim{0, 1}) return {};
    if (first < 0) first = static_cast<int>(d);
    last = static_cast<int>(d);
  }
  if (indices < 2 || !(*list)[dim].defined()) return {};
  return SampleDim{last - first + 1 == indices ? first : 0, 1};
}

}  // namespace

std::optional<SampleDim> reshaped(const std::vector<int64_t>& from, const std::vector<int64_t>& to,
                                  SampleDim samples, int64_t count) {
  const auto is_empty = [](const std::vector<int64_t>& shape) {
    return std::ranges::find(shape, 0) != shape.end();
  };
  if (is_empty(from) || is_empty(to)) return std::nullopt;
  int64_t stride = samples.inner;  // elements from one sample to the next
  for (size_t d = samples.dim + 1; d < from.size(); ++d) stride *= from[d];
  std::optional<SampleDim> found;
  int64_t below = 1;  // elements of one index of dim d of the result
  for (size_t d = to.size(); d-- > 0; below *= to[d]) {
    if (stride % below != 0) break;
    const auto inner = stride / below;
    if (to[d] % (inner * count) != 0) continue;
    const SampleDim here{static_cast<int>(d), inner};
    if (count > 1 || (to[d] == 1 && inner == 1)) return here;
    found = here;
  }
  return found;
}

std::optional<SampleDim> moved(const Graph& graph, const Node& node, size_t r,
                               const Operands& operands, int64_t count) {
  if (node.op == "aten::cat") return cat(graph, node, operands, count);
  if (node.op == "aten::slice.Tensor" || node.op.starts_with("aten::split")) {
    return slice(graph, node, r, *operands.front(), count);
  }
  if (node.op.starts_with("aten::_embedding_bag")) return bags(graph, node, r, operands, count);
  if (node.op == "aten::index.Tensor") return element_of_each(graph, node, operands, count);
  return {};
}

}  // namespace perigee::shard
