#include "cost/flops.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "graph/flops.h"
#include "graph/ops.h"

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
                           "perigee::attention_backward"};
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

// The operand of which an op reads no more than its result, or nullptr.
const char* read_in_part(std::string_view op) {
  if (op == "aten::embedding") return "weight";
  if (op == "aten::index_select" || op == "aten::gather" || op == "aten::index.Tensor") {
    return "self";
  }
  return nullptr;
}

double bytes_of(const Graph& graph, ValueId v) {
  return v.defined() ? static_cast<double>(graph.type(v).bytes()) : 0;
}

// How many of the operands an op in place writes, by name.
size_t written_in_place(std::string_view op) {
  if (op == "perigee::adamw_" || op == "perigee::adam_") return 3;
  if (op == "perigee::lion_" || op == "perigee::sgd_") return 2;
  return 1;
}

}  // namespace

Work work_of(const Graph& graph, const Node& node) {
  Work work;
  const auto result =
      std::find_if(node.outputs.begin(), node.outputs.end(), [](ValueId v) { return v.defined(); });
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
  double results = 0;
  for (auto v : node.outputs) results += bytes_of(graph, v);
  const auto* part = read_in_part(node.op);
  size_t position = 0;
  for (const auto& [name, arg] : node.args) {
    const auto add = [&](ValueId v) {
      if (!v.defined()) return;
      double bytes = bytes_of(graph, v);
      if (part && name == part) bytes = std::min(bytes, results);
      work.bytes += bytes;
      if (in_place && position < written_in_place(node.op)) {
        // copy_ overwrites what it names, all others read it too.
        if (node.op != "perigee::copy_") work.bytes += bytes;
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
