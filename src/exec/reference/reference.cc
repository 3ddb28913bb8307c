#include "exec/reference/reference.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "base/fail.h"
#include "exec/error_text.h"
#include "exec/reference/ops.h"
#include "exec/tensor.h"

namespace perigee::exec {
namespace {

at::Tensor input_tensor(const graph::Graph& graph, const graph::Input& input,
                        const Tensors& given) {
  const auto& type = graph.type(input.value);
  if (input.kind == graph::Input::Kind::constant) return from_bytes(type, input.data);
  const auto found = given.find(input.name);
  if (found == given.end()) {
    fail("exec", "the graph needs the input \"{}\", but got none of that name", input.name);
  }
  if (type_of(found->second) != type) {
    fail("exec", "the input \"{}\" must be {}, but got {}", input.name, to_string(type),
         to_string(type_of(found->second)));
  }
  return found->second;
}

std::string output_key(const graph::Output& output) {
  switch (output.kind) {
    case graph::Output::Kind::loss:
      return "loss";
    case graph::Output::Kind::gradient:
      return "gradient:" + output.name;
    case graph::Output::Kind::buffer:
      return "buffer:" + output.name;
    case graph::Output::Kind::result:
      return output.name;
  }
  return output.name;
}

void run(const graph::Graph& graph, const graph::Node& node, std::vector<at::Tensor>& values,
         const Draw& draw) {
  std::vector<at::Tensor> operands, outputs(node.outputs.size());
  node.each_operand([&](graph::ValueId v) { operands.push_back(values[v.index]); });
  reference_kernel(op_of(graph, node))(operands, outputs, draw);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto v = node.outputs[i];
    if (!v.defined()) continue;
    if (!outputs[i].defined()) fail("exec", "result {} must be a tensor, but got none", i);
    if (type_of(outputs[i]) != graph.type(v)) {
      fail("exec", "result {} must be {}, but got {}", i, to_string(graph.type(v)),
           to_string(type_of(outputs[i])));
    }
    values[v.index] = outputs[i];
  }
}

}  // namespace

Kernel reference_kernel(const Op& op) {
  if (auto kernel = reference_op(op)) return kernel;
  if (op.name.starts_with("comm::")) {
    fail("exec", "the reference runs whole graphs, but got the collective {}", op.name);
  }
  return dispatcher_kernel(op);
}

Tensors evaluate(const graph::Graph& graph, const Tensors& inputs, const Draw& draw) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> values(graph.values.size());
  for (const auto& input : graph.inputs) {
    values[input.value.index] = input_tensor(graph, input, inputs).detach();
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    try {
      run(graph, node, values, draw);
    } catch (const std::exception& error) {
      fail_run("exec", "node {} {} in scope \"{}\" ({}) must run, but got: {}", n, node.op,
               node.scope, node.phase == graph::Phase::forward ? "forward" : "backward",
               error_text(error));
    }
  }
  Tensors outputs;
  for (const auto& output : graph.outputs) {
    outputs[output_key(output)] = values[output.value.index];
  }
  return outputs;
}

}  // namespace perigee::exec
