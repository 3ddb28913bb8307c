#include "compile/draft/instance.h"

#include "compile/draft/layout.h"

namespace perigee::compile {

bool set_allocations(Draft& draft, DraftInstruction& part, TraceSource& traces) {
  auto& instruction = part.instruction;
  OpInstance instance{.op = instruction.op,
                      .args = instruction.args,
                      .operands = {},
                      .operand_strides = {},
                      .outputs = {}};
  const auto number = [&](ValueId& v) {
    if (!v.defined()) return;
    instance.operands.push_back(draft.value(v).type);
    instance.operand_strides.push_back(draft.value(v).strides);
    v.index = static_cast<int32_t>(instance.operands.size()) - 1;
  };
  for (auto& [name, arg] : instance.args) {
    if (auto* v = std::get_if<ValueId>(&arg)) {
      number(*v);
    } else if (auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      for (auto& v : *list) number(v);
    }
  }
  if (!instruction.in_place) {
    for (auto v : instruction.outputs) {
      instance.outputs.push_back(v.defined() ? std::optional(draft.value(v).type) : std::nullopt);
    }
  }
  OpTrace trace;
  if (auto known = traces.find(instance)) {
    trace = std::move(*known);
  } else {
    trace.complete = false;
    for (const auto& type : instance.outputs) {
      trace.output_allocation.push_back(-1);
      trace.output_strides.emplace_back();
      if (!type) continue;
      trace.output_allocation.back() = static_cast<int32_t>(trace.allocations.size());
      trace.allocations.push_back(type->bytes());
      trace.output_strides.back() = contiguous_strides(type->shape);
    }
  }
  for (size_t k = 0; k < instance.outputs.size(); ++k) {
    if (!instance.outputs[k]) continue;
    const auto allocation = trace.output_allocation.at(k);
    const auto& type = *instance.outputs[k];
    if (allocation < 0 || trace.allocations[allocation] != type.bytes() ||
        !is_contiguous(type.shape, trace.output_strides.at(k))) {
      return false;
    }
  }
  instruction.allocations.clear();
  for (int64_t bytes : trace.allocations) instruction.allocations.push_back({bytes, {}});
  instruction.worker_bytes = trace.worker_bytes;
  instruction.traced = trace.complete;
  draft.program.exact_memory = draft.program.exact_memory && trace.complete;
  part.freed_before = std::move(trace.freed_before);
  if (instruction.in_place) {
    part.output_allocation.assign(instruction.outputs.size(), -1);
  } else {
    part.output_allocation = std::move(trace.output_allocation);
  }
  return true;
}

}  // namespace perigee::compile
