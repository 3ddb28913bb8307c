#include "cost/flops.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "graph/flops.h"
#include "graph/ops.h"
#include "optim/optimizers.h"

namespace perigee::cost {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueId;

bool on_matrix_units(std::string_view op) {
  constexpr std::array ops{"aten::mm",
                           "aten::bmm",
                           "aten::addmm",
                           "aten::baddbmm",
                           "aten::_scaled_mm",
                           "aten::convolution",
                           "aten::convolution_overrideable",
                           "aten::convolution_backward",
                           "aten::convolution_backward_overrideable",
                           "perigee::attention",
                           "perigee::attention_backward",
                           "perigee::grouped_mm",
                           "perigee::grouped_outer",
                           "perigee::addmm_",
                           "perigee::mm_",
                           "perigee::mm_gelu",
                           "perigee::mm_gelu_backward"};
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

// Returns the operand of which an op reads at most as many bytes as it writes, or writes in place as
// many as it adds, or nullptr.
const char* read_in_part(std::string_view op) {
  if (op == "aten::embedding") return "weight";
  if (op == "perigee::embedding_backward_") return "sum";
  if (op == "aten::index_select" || op == "aten::gather" || op == "aten::index.Tensor") {
    return "self";
  }
  return nullptr;
}

double bytes_of(const Graph& graph, ValueId v) {
  return v.defined() ? static_cast<double>(graph.type(v).bytes()) : 0;
}

// Returns the number of leading operands that an in-place op writes: its first one and, of an
// elementwise optimizer, the states.
size_t written_in_place(const Node& node) {
  const auto* optimizer = optim::find_elementwise(node.op);
  if (!optimizer) return 1;
  const auto is_operand = [&](const optim::State& state) { return node.find(state.name); };
  return 1 + static_cast<size_t>(std::ranges::count_if(optimizer->states, is_operand));
}

}  // namespace

OpWork work_of(const Graph& graph, const Node& node) {
  OpWork work;
  const auto result = std::find_if(node.outputs.begin(), node.outputs.end(),
                                   [](ValueId v) { return v.defined(); });
  if (result != node.outputs.end()) work.dtype = graph.type(*result).dtype;
  bool found = false;
  node.each_operand([&](ValueId v) {
    if (found || !graph::is_floating(graph.type(v).dtype)) return;
    work.dtype = graph.type(v).dtype;
    found = true;
  });
  if (graph::is_view(node.op)) return work;

  work.flops = graph::flops_of(graph, node);
  work.matrix = on_matrix_units(node.op);
  work.attention = node.op.starts_with("perigee::attention");
  const bool in_place = node.op.ends_with('_');
  // A product adds to a sum that may be wider than its factors.
  if (in_place && work.matrix) work.dtype = graph.type(node.get<ValueId>("self", {})).dtype;
  double results = 0;
  for (auto v : node.outputs) results += bytes_of(graph, v);
  const auto* part = read_in_part(node.op);
  const double most = node.op == "perigee::embedding_backward_"
                          ? bytes_of(graph, node.get<ValueId>("grad_output", {}))
                          : results;
  const size_t written = in_place ? written_in_place(node) : 0;
  size_t position = 0;
  for (const auto& [name, arg] : node.args) {
    const auto add = [&](ValueId v) {
      if (!v.defined()) return;
      double bytes = bytes_of(graph, v);
      if (part && name == part) bytes = std::min(bytes, most);
      work.bytes += bytes;
      if (position < written) {
        // copy_ and mm_ only overwrite their operand, other ops also read it.
        if (node.op != "perigee::copy_" && node.op != "perigee::mm_") work.bytes += bytes;
      }
      ++position;
    };
    if (const auto* v = std::get_if<ValueId>(&arg)) {
      add(*v);
    } else if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      for (auto v : *list) add(v);
    }
  }
  if (!in_place) work.bytes += results;
  return work;
}

}  // namespace perigee::cost
