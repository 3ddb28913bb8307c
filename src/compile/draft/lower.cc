#include "compile/draft/lower.h"

#include <algorithm>

#include "base/defect.h"
#include "compile/draft/layout.h"
#include "graph/ops.h"

namespace perigee::compile {

using graph::Arg;
using graph::Node;
using graph::TensorType;

namespace {

// Returns whether the op's result is a view of its operand, or the operand itself.
bool passes_on(const std::string& op) {
  return graph::is_view(op) || op == "aten::alias" || op == "aten::detach" ||
         op == "aten::lift_fresh" || op == "perigee::step_average";
}

// Returns whether the op only reshapes: the same elements in row-major order, copied where the
// layout requires it.
bool keeps_order(const std::string& op) {
  return op == "perigee::reshape" || op == "aten::view" || op == "aten::_unsafe_view" ||
         op == "aten::reshape" || op == "aten::_reshape_alias";
}

graph::ValueId first_operand(const Node& node) {
  graph::ValueId first;
  node.each_operand([&](graph::ValueId v) {
    if (!first.defined()) first = v;
  });
  return first;
}

}  // namespace

bool shows_operand(const std::string& op) { return passes_on(op) || keeps_order(op); }
bool may_copy(const std::string& op) { return keeps_order(op); }

Lowering::Lowering(Draft& draft, const graph::Graph& graph, const std::vector<std::string>& names,
                   const mesh::Mesh& mesh, TraceSource& traces)
    : draft_(draft),
      graph_(graph),
      names_(names),
      mesh_(mesh),
      traces_(traces),
      values_(graph.values.size()),
      uses_(graph.values.size()),
      directs_(graph.values.size()) {}

void Lowering::direct(graph::ValueId v, ValueId target, uint8_t when) {
  directs_[v.index] = {target, when, false};
}

ValueId Lowering::operand(const Node& node, graph::ValueId v) const {
  const ValueId value = values_[v.index];
  if (!value.defined()) {
    fail_defect("compile",
                "an operand must be made before it is used, but {} in scope '{}' reads '{}'",
                node.op, node.scope, names_[v.index]);
  }
  return value;
}

void Lowering::run(graph::NodeId id, std::vector<DraftInstruction>& out) {
  const auto& node = graph_.nodes[id];
  if (graph::is_collective(node.op)) return run_collective(node, out);
  if (keeps_order(node.op)) {
    const auto self = first_operand(node);
    const ValueId value = operand(node, self);
    const auto& type = graph_.type(node.outputs[0]);
    auto strides = reshape_strides(draft_.value(value).type.shape, draft_.value(value).strides,
                                   type.shape);
    if (strides) {
      set(node.outputs[0],
          draft_.add_view(value, 0, type, std::move(*strides), names_[node.outputs[0].index]));
      return;
    }
  } else if (passes_on(node.op)) {
    return run_view(node);
  }
  run_op(node, out);
}

void Lowering::run_view(const Node& node) {
  const ValueId self = operand(node, first_operand(node));
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const auto v = node.outputs[k];
    if (!v.defined()) continue;
    const auto& type = graph_.type(v);
    // By value: adding a value invalidates references to others.
    const ProgramValue from = draft_.value(self);
    auto view = view_of_operand(node, static_cast<int32_t>(k), from.type, from.strides, type);
    const auto bytes = view.offset * static_cast<int64_t>(graph::size_of(type.dtype));
    set(v, draft_.add_view(self, bytes, type, std::move(view.strides), names_[v.index]));
  }
}

OpTrace Lowering::trace_of(const OpInstance& instance, bool& recorded) {
  auto [entry, added] = known_.try_emplace(key(instance));
  auto& known = entry->second;
  if (added) {
    if (auto trace = traces_.find(instance)) {
      known.recorded = trace->complete;
      known.trace = std::move(*trace);
      if (known.trace.output_allocation.size() != instance.outputs.size() ||
          known.trace.output_strides.size() != instance.outputs.size()) {
        fail_defect("compile", "a trace must describe all {} results of {}, but describes {}",
                    instance.outputs.size(), instance.op, known.trace.output_allocation.size());
      }
    } else {
      std::vector<Operand> operands;
      for (size_t k = 0; k < instance.operands.size(); ++k) {
        operands.push_back({&instance.operands[k].shape, &instance.operand_strides[k]});
      }
      for (const auto& type : instance.outputs) {
        known.trace.output_allocation.push_back(-1);
        known.trace.output_strides.emplace_back();
        if (!type) continue;
        known.trace.output_allocation.back() = static_cast<int32_t>(known.trace.allocations.size());
        known.trace.allocations.push_back(type->bytes());
        known.trace.output_strides.back() = graph::is_pointwise(instance.op)
                                                ? pointwise_strides(type->shape, operands)
                                                : contiguous_strides(type->shape);
      }
    }
  }
  recorded = known.recorded;
  return known.trace;
}

void Lowering::run_op(const Node& node, std::vector<DraftInstruction>& out) {
  OpInstance instance;
  instance.op = node.op;
  instance.args = node.args;
  DraftInstruction draft;
  auto& instruction = draft.instruction;
  instruction.op = node.op;
  instruction.args = node.args;
  instruction.scope = node.scope;
  instruction.phase = node.phase;
  std::vector<ValueId> operands;
  auto rename = [&](Arg& arg, auto f) {
    if (auto* v = std::get_if<ValueId>(&arg)) {
      if (v->defined()) f(*v);
    } else if (auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      for (auto& v : *list) {
        if (v.defined()) f(v);
      }
    }
  };
  for (size_t a = 0; a < node.args.size(); ++a) {
    rename(instruction.args[a].second, [&](ValueId& v) {
      v = operand(node, v);
      operands.push_back(v);
      instance.operands.push_back(draft_.value(v).type);
      instance.operand_strides.push_back(draft_.value(v).strides);
    });
    int32_t position = static_cast<int32_t>(instance.operands.size());
    int32_t first = position;
    rename(instance.args[a].second, [&](ValueId&) { --first; });
    rename(instance.args[a].second, [&](ValueId& v) { v.index = first++; });
  }
  for (auto v : node.outputs) {
    const bool wanted = v.defined() && uses_[v.index] > 0;
    instance.outputs.push_back(wanted ? std::optional(graph_.type(v)) : std::nullopt);
  }
  OpTrace trace = trace_of(instance, instruction.traced);
  draft_.program.exact_memory = draft_.program.exact_memory && instruction.traced;
  for (int64_t bytes : trace.allocations) instruction.allocations.push_back({bytes, {}});
  instruction.worker_bytes = trace.worker_bytes;
  draft.freed_before = std::move(trace.freed_before);
  draft.output_allocation = trace.output_allocation;

  uint8_t directed = 0;  // the runs in which outputs are written to their targets
  std::vector<ValueId> direct_outputs;
  std::vector<int32_t> taken(trace.allocations.size(), -1);  // by which output
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const auto v = node.outputs[k];
    const int32_t allocation = trace.output_allocation[k];
    ValueId value, target;
    if (v.defined() && uses_[v.index] > 0) {
      const auto& type = graph_.type(v);
      const auto& name = names_[v.index];
      if (allocation < 0) {
        // The op returned an operand (or a view of its start): the first one that fits.
        const auto same = std::find_if(operands.begin(), operands.end(), [&](ValueId o) {
          return draft_.value(o).type.dtype == type.dtype &&
                 draft_.value(o).type.numel() == type.numel();
        });
        if (same == operands.end() && type.numel() > 0) {
          fail_defect("compile",
                      "a result must lie in memory of its own or of an operand, but {} in scope "
                      "'{}' has one that does neither",
                      node.op, node.scope);
        }
        value = same == operands.end()
                    ? draft_.add(type, name)
                    : draft_.add_view(*same, 0, type, trace.output_strides[k], name);
      } else if (taken[allocation] >= 0) {
        value = draft_.add_view(instruction.outputs[taken[allocation]], 0, type,
                                trace.output_strides[k], name);
      } else {
        auto& direct = directs_[v.index];
        const bool fits = direct.target.defined() &&
                          trace.allocations[allocation] == type.bytes() &&
                          is_contiguous(type.shape, trace.output_strides[k]);
        if (fits) {
          direct.done = true;
          if (direct.when != kAlways) directed = direct.when;
          target = direct.target;
        }
        if (fits && direct.when == kAlways) {
          value = target;
        } else {
          value = draft_.add(type, name, {}, trace.output_strides[k]);
        }
        taken[allocation] = static_cast<int32_t>(k);
      }
      set(v, value);
    }
    instruction.outputs.push_back(value);
    direct_outputs.push_back(target.defined() ? target : value);
  }
  if (directed != 0) {
    DraftInstruction first = draft;
    first.when = directed;
    first.instruction.outputs = direct_outputs;
    draft.when = static_cast<uint8_t>(kAlways & ~directed);
    out.push_back(std::move(first));
  }
  out.push_back(std::move(draft));
}

}  // namespace perigee::compile
