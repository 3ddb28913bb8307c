#include "exec/prepared.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/fail.h"
#include "compile/draft/collective.h"
#include "exec/comm/collective_op.h"
#include "exec/tensor.h"

namespace perigee::exec {

using compile::Binding;
using compile::Instruction;
using graph::ValueId;

std::string place_text(const compile::Program& program, const compile::Section& section,
                       const Instruction& instruction) {
  const auto* op = instruction.op.empty() ? "the wait for a collective" : instruction.op.c_str();
  return fmt::format(
      "rank {}: {} in scope \"{}\" ({}, section {})", program.rank, op, instruction.scope,
      instruction.phase == graph::Phase::forward ? "forward" : "backward", section.name());
}

Op op_of(const compile::Program& program, const Instruction& instruction) {
  Op op{.name = instruction.op, .args = instruction.args, .outputs = {}};
  int32_t next = 0;
  for (auto& [name, arg] : op.args) {
    if (auto* v = std::get_if<ValueId>(&arg)) {
      if (v->defined()) v->index = next++;
    } else if (auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      for (auto& v : *list) {
        if (v.defined()) v.index = next++;
      }
    }
  }
  if (instruction.in_place) return op;
  for (auto v : instruction.outputs) {
    op.outputs.push_back(v.defined() ? std::optional(program.values[v.index].type) : std::nullopt);
  }
  return op;
}

void prepare(Prepared& prepared, const Instruction& instruction, const PrepareContext& context) {
  const auto& [program, communicator, mesh, tensor_of] = context;
  switch (instruction.kind) {
    case Instruction::Kind::op: {
      graph::Node node{.op = instruction.op, .args = instruction.args};
      node.each_operand([&](ValueId v) { prepared.operands.push_back(tensor_of(v)); });
      if (instruction.in_place) break;
      prepared.results.resize(instruction.outputs.size());
      for (size_t i = 0; i < instruction.outputs.size(); ++i) {
        if (instruction.outputs[i].defined()) {
          prepared.expected.push_back({i, tensor_of(instruction.outputs[i])});
        }
      }
      break;
    }
    case Instruction::Kind::collective: {
      if (!compile::is_copy(instruction.op)) {
        prepared.transfer = transfer_of(instruction);
        const auto axis = axis_of(instruction);
        const auto ranks = compile::ranks_of(mesh, compile::Stream::parse(axis), program.rank);
        prepared.group = communicator.group(axis, ranks);
      }
      if (prepared.transfer.kind == Collective::Kind::barrier) break;  // it moves nothing
      const graph::Node node{.op = instruction.op, .args = instruction.args};
      const auto flat = [&](ValueId v) { return tensor_of(v).view({-1}); };
      auto& transfer = prepared.transfer;
      const auto self = node.get<ValueId>("self", {});
      if (self.defined()) transfer.input = flat(self);
      const auto& outputs = instruction.outputs;
      if (!outputs.empty() && outputs[0].defined()) transfer.output = flat(outputs[0]);
      if (outputs.size() > 1) transfer.workspace = flat(outputs[1]);
      if (instruction.op == "comm::exchange") {
        prepared.rows = {.counts = tensor_of(node.get<ValueId>("counts", {})),
                         .back = node.get<bool>("back", false),
                         .width = tensor_of(self)[0].numel()};
      }
      break;
    }
    case Instruction::Kind::load: {
      prepared.binding = find_binding(program, Binding::Kind::data, instruction.op);
      if (!prepared.binding)
        fail("exec", "the program must bind the data tensor \"{}\", but does not", instruction.op);
      prepared.target = tensor_of(instruction.outputs.at(0));
      break;
    }
    case Instruction::Kind::wait:
      break;
  }
}

void store_results(Prepared& prepared) {
  const auto in_place = [](const at::Tensor& given, const at::Tensor& value) {
    return value.numel() == 0 ||
           (given.const_data_ptr() == value.const_data_ptr() && same_layout(given, value));
  };
  bool all_in_place = true;
  for (const auto& [result, value] : prepared.expected) {
    auto& given = prepared.results[result];
    if (!given.defined() || given.sizes() != value.sizes() ||
        given.scalar_type() != value.scalar_type()) {
      fail_run("exec", "result {} must be {}, but is {}", result, layout_of(value),
               given.defined() ? layout_of(given) : "no tensor");
    }
    if (in_place(given, value)) continue;
    all_in_place = false;
    // It may lie where another result belongs, or at its own address in another layout.
    if (prepared.served && prepared.served->holds(given.storage().data())) given = given.clone();
  }
  if (all_in_place) return;
  for (const auto& [result, value] : prepared.expected) {
    const auto& given = prepared.results[result];
    if (!in_place(given, value)) value.copy_(given);
  }
}

at::Tensor part_of_batch(const Prepared& load, at::Tensor given) {
  const auto& binding = *load.binding;
  const auto& target = load.target;
  if (!given.defined())
    fail("exec", "the step needs the data tensor \"{}\", but got none", binding.name);
  if (given.sizes() != target.sizes() && given.sizes().vec() == binding.shape) {
    for (size_t d = 0; d < binding.ranges.size(); ++d) {
      given = given.narrow(static_cast<int64_t>(d), binding.ranges[d].begin,
                           binding.ranges[d].length);
    }
  }
  if (given.sizes() != target.sizes() || given.scalar_type() != target.scalar_type()) {
    fail("exec", "the data tensor \"{}\" must be {} (or [{}] over all ranks), but is {}",
         binding.name, to_string(type_of(target)), fmt::join(binding.shape, ", "),
         to_string(type_of(given)));
  }
  return given;
}

const Binding* find_binding(const compile::Program& program, Binding::Kind kind,
                            const std::string& name) {
  for (const auto& binding : program.bindings) {
    if (binding.kind == kind && binding.name == name) return &binding;
  }
  return nullptr;
}

std::vector<std::string> binding_names(const compile::Program& program, Binding::Kind kind) {
  std::vector<std::string> names;
  for (const auto& binding : program.bindings) {
    if (binding.kind == kind && (names.empty() || names.back() != binding.name)) {
      names.push_back(binding.name);
    }
  }
  return names;
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

std::string layout_of(const at::Tensor& t) {
  return fmt::format("{} with strides [{}]", to_string(type_of(t)), fmt::join(t.strides(), ", "));
}

std::vector<const compile::Instruction*> find_updates(const compile::Program& program) {
  const auto base = [&](graph::ValueId v) {
    const auto of = program.values[v.index].view_of;
    return of.defined() ? of.index : v.index;
  };
  std::vector<bool> outlives(program.values.size());  // by base value
  for (const auto& binding : program.bindings) {
    const bool kept = binding.kind == compile::Binding::Kind::parameter ||
                      binding.kind == compile::Binding::Kind::buffer ||
                      binding.kind == compile::Binding::Kind::state;
    if (kept) outlives[base(binding.value)] = true;
  }
  std::vector<const compile::Instruction*> first_updates;
  for (const auto& section : program.sections) {
    const auto first = std::ranges::find_if(section.instructions, [&](const auto& instruction) {
      return std::ranges::any_of(
          instruction.outputs, [&](graph::ValueId v) { return v.defined() && outlives[base(v)]; });
    });
    first_updates.push_back(first == section.instructions.end() ? nullptr : &*first);
  }
  return first_updates;
}

}  // namespace perigee::exec
