// Builds programs by hand: each value has an address of its own, allocations are those of dry runs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compile/program.h"
#include "exec/memory/dry_run.h"
#include "exec/tensor.h"
#include "tests/exec/support.h"

namespace perigee::exec {

struct Builder {
  using Binding = compile::Binding;
  using Instruction = compile::Instruction;
  using SectionKind = compile::SectionKind;

  compile::Program program;
  std::string scope = "block";

  Builder() {
    program.frames = {{compile::Frame::Kind::persistent, "persistent"},
                      {compile::Frame::Kind::scratch, "scratch"},
                      {compile::Frame::Kind::communication, "data"},
                      {compile::Frame::Kind::microbatch, "microbatch"}};
    program.streams = {compile::Stream::compute(), compile::Stream::over("data")};
    section(SectionKind::micro);
  }

  void section(SectionKind kind) { program.sections.push_back({.role = {.kind = kind}}); }

  compile::Address place(int32_t frame, int64_t bytes) {
    auto& size = program.frames[frame].bytes;
    const compile::Address place{frame, size};
    size += (bytes + 63) / 64 * 64;
    return place;
  }

  graph::ValueId value(graph::TensorType type, const std::string& name, int32_t frame = 1,
                       std::vector<int64_t> strides = {}) {
    if (strides.empty()) strides = contiguous_strides(type.shape);
    program.values.push_back({type, strides, place(frame, type.bytes()), {}, name});
    return {static_cast<int32_t>(program.values.size()) - 1};
  }

  graph::ValueId bind(Binding::Kind kind, const std::string& name, graph::TensorType type) {
    const auto v = value(type, name, 0);
    Binding binding{.kind = kind, .name = name, .value = v, .shape = type.shape};
    for (auto size : type.shape) binding.ranges.push_back({0, size});
    program.bindings.push_back(binding);
    return v;
  }

  Instruction& add(Instruction instruction) {
    instruction.scope = scope;
    auto& list = program.sections.back().instructions;
    list.push_back(std::move(instruction));
    return list.back();
  }

  // Loads the microbatch's data tensor.
  graph::ValueId load(const std::string& name, graph::TensorType type, int32_t frame = 1) {
    bind(Binding::Kind::data, name, type);
    const auto v = value(type, name, frame);
    add({.kind = Instruction::Kind::load, .op = name, .outputs = {v}});
    return v;
  }

  // Adds an op with its recorded allocations; its results lie in `frame`.
  std::vector<graph::ValueId> op(const std::string& name, const Args& args,
                                 const std::vector<graph::TensorType>& types, int32_t frame = 1) {
    compile::OpInstance instance{.op = name, .args = args};
    instance.outputs.assign(types.begin(), types.end());
    int32_t next = 0;
    for (auto& [key, arg] : instance.args) {
      if (auto* v = std::get_if<graph::ValueId>(&arg)) {
        instance.operands.push_back(program.values[v->index].type);
        instance.operand_strides.push_back(program.values[v->index].strides);
        v->index = next++;
      }
    }
    const auto trace = record_trace(instance).value();
    Instruction instruction{.op = name, .args = args, .traced = true};
    std::vector<graph::ValueId> outputs;
    for (size_t i = 0; i < types.size(); ++i) {
      outputs.push_back(value(types[i], name, frame, trace.output_strides[i]));
    }
    for (size_t k = 0; k < trace.allocations.size(); ++k) {
      compile::Allocation allocation{trace.allocations[k], {}};
      for (size_t i = 0; i < types.size(); ++i) {
        if (trace.output_allocation[i] == static_cast<int32_t>(k))
          allocation.place = program.values[outputs[i].index].place;
      }
      if (allocation.place.frame < 0) allocation.place = place(frame, allocation.bytes);
      instruction.allocations.push_back(allocation);
    }
    instruction.outputs = outputs;
    add(instruction);
    return outputs;
  }

  void in_place(const std::string& name, const Args& args, std::vector<graph::ValueId> outputs) {
    add({.op = name,
         .args = args,
         .outputs = std::move(outputs),
         .traced = true,
         .in_place = true});
  }

  int32_t all_reduce(graph::ValueId in, graph::ValueId out, const std::string& reduce = "sum") {
    const int32_t event = program.events++;
    add({.kind = Instruction::Kind::collective,
         .op = "comm::all_reduce",
         .args = {{"self", in}, {"axis", std::string("data")}, {"op", reduce}},
         .outputs = {out},
         .stream = 1,
         .event = event});
    return event;
  }

  void wait(int32_t event) { add({.kind = Instruction::Kind::wait, .event = event}); }

  // Returns the program: all sections in order for each microbatch, step sections once at the end.
  compile::Program finish(int64_t rank = 0, int64_t microbatches = 1) {
    program.rank = rank;
    program.microbatches = microbatches;
    for (int32_t m = 0; m < microbatches; ++m) {
      for (size_t s = 0; s < program.sections.size(); ++s) {
        if (program.sections[s].role.kind != SectionKind::step)
          program.order.push_back({static_cast<int32_t>(s), m, 0});
      }
    }
    for (size_t s = 0; s < program.sections.size(); ++s) {
      if (program.sections[s].role.kind == SectionKind::step)
        program.order.push_back({static_cast<int32_t>(s), 0, 0});
    }
    for (const auto& frame : program.frames) program.peak_bytes += frame.bytes * frame.copies;
    return program;
  }
};

}  // namespace perigee::exec
