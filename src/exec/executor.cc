#include "exec/executor.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/fail.h"
#include "compile/draft/collective.h"
#include "compile/events.h"
#include "exec/borrow.h"
#include "exec/connect_groups.h"
#include "exec/error_text.h"
#include "exec/host_writes.h"
#include "exec/memory/allocator.h"
#include "exec/memory/arena.h"
#include "exec/memory/serving.h"
#include "exec/op_threads.h"
#include "exec/prepared.h"
#include "exec/replay.h"
#include "exec/submitter.h"
#include "exec/tensor.h"

namespace perigee::exec {

using compile::Binding;
using compile::Instruction;
using graph::ValueId;

struct Executor::Impl {
  Impl(compile::Program p, Communicator& c, const mesh::Mesh& m, ExecutorOptions o)
      : program(std::move(p)),
        communicator(c),
        mesh(m),
        options(std::move(o)),
        device(options.device ? *options.device : *(options.device = cpu_device())),
        // A GPU registers frames of communication with NCCL; on the CPU, collectives read any frame.
        arena(program.frames, device,
              device.place().is_cpu() ? frames_of_collectives(program) : std::vector<bool>()),
        submitter(device.submitter()) {}

  compile::Program program;
  Communicator& communicator;
  mesh::Mesh mesh;
  ExecutorOptions options;
  Device& device;
  Arena arena;
  std::vector<std::shared_ptr<void>> registrations;  // of the arena's memory, by group
  Submitter* submitter;  // nullptr: the device runs or submits work within the calls
  std::vector<std::vector<Kernel>> kernels;                               // [section][instruction]
  std::vector<std::vector<std::unique_ptr<PreparedSection>>> sections;    // [section][slot]
  std::vector<const Instruction*> first_updates = find_updates(program);  // by section
  std::map<int32_t, std::byte*> borrowed;  // by value: its address in the lender's memory
  std::vector<std::pair<at::Tensor, std::string>> scalars;
  size_t copies = 1;                                               // largest number of a frame
  std::vector<bool> once;                                          // by event: started_once
  std::vector<std::pair<std::shared_ptr<Work>, Interval>> events;  // [event * copies + copy]
  bool recording = false;
  std::vector<Interval> intervals;  // of the running step: marks of the device
  std::vector<std::pair<std::shared_ptr<Work>, Interval>> finished;  // while recording
  size_t settled = 0;  // intervals before this one hold times, not marks
  std::vector<std::pair<int64_t, int64_t>> waits;  // of the running step: marks of the device
  Executor::StepTimes times;                       // of the last step
  int64_t updates_begun = 0;                       // steps
  bool updates = false;                            // the running step is one of them
  std::optional<Replay> replay;
  HostWrites host_writes;
  RecordedStep* recorded = nullptr;  // while its work is submitted

  [[noreturn]] void fail_instruction(const compile::Run& run, const Instruction& instruction,
                                     const std::exception& error) const {
    fail_run("exec", "{}, microbatch {} must run, but got: {}",
             place_text(program, program.sections[run.section], instruction), run.microbatch,
             error_text(error));
  }

  at::Tensor tensor_of(ValueId v, const std::vector<std::byte*>& bases) const {
    const auto& value = program.values[v.index];
    auto* address = value.place.frame < 0 ? bases[0]
                                          : bases[value.place.frame] + value.place.offset;
    const auto root = value.view_of.defined() ? value.view_of : v;
    if (const auto lent = borrowed.find(root.index); lent != borrowed.end()) {
      // Frames of borrowed values have offsets and no memory.
      address = lent->second + (value.place.offset - program.values[root.index].place.offset);
    }
    const bool host = value.place.frame >= 0 && program.frames[value.place.frame].host;
    return arena.tensor(address, value.type, value.strides, host);
  }

  void find_kernels();
  void prepare_bindings();
  PreparedSection& prepare(int32_t section, int32_t slot);
  void run(const StepInputs& inputs);
  void run_section(const compile::Run& run, const StepInputs& inputs, const Draw& draw);
  void run_op(Prepared& prepared, const std::vector<std::byte*>& bases, const Draw& draw);
  void submit(const StepInputs& inputs);
  void submit_replayed(const StepInputs& inputs);
  at::Tensor batch(const Prepared& prepared, const StepInputs& inputs, int64_t microbatch) const;
  void load(const Prepared& prepared, const StepInputs& inputs, int64_t microbatch);
  // Returns the index into `events`: an event has an entry for each copy of the section's frame, or
  // one entry if it starts once a step.
  size_t place_of(int32_t event, const compile::Run& run) const {
    const auto copy = program.copy_of(run.slot, program.sections[run.section].frame);
    return static_cast<size_t>(event) * copies + (once[event] ? 0 : copy);
  }
  bool runs_now(const compile::Run& run, int64_t step) const {
    return step % run.every == 0 && (!run.after_writes || host_writes.possible());
  }
  void begin_update() {
    if (!std::exchange(updates, true)) ++updates_begun;
  }
  void wait(size_t event);
  void settle();
};

void Executor::Impl::find_kernels() {
  for (const auto& section : program.sections) {
    auto& found = kernels.emplace_back();
    for (const auto& instruction : section.instructions) {
      Kernel kernel;
      if (instruction.kind == Instruction::Kind::op) {
        try {
          kernel = device.kernel(op_of(program, instruction));
        } catch (const std::exception& error) {
          fail("exec", "{} must have a kernel, but: {}", place_text(program, section, instruction),
               error_text(error));
        }
      }
      found.push_back(std::move(kernel));
    }
    sections.emplace_back();
  }
}

void Executor::Impl::prepare_bindings() {
  const auto bases = arena.bases();
  for (const auto& binding : program.bindings) {
    const bool begins = binding.kind == Binding::Kind::state && !binding.data.empty();
    if (binding.kind == Binding::Kind::constant || begins) {
      tensor_of(binding.value, bases)
          .copy_(from_bytes(program.values[binding.value.index].type, binding.data));
    } else if (binding.kind == Binding::Kind::scalar) {
      auto tensor = tensor_of(binding.value, bases);
      if (tensor.scalar_type() != at::kDouble || tensor.numel() != 1) {
        fail("exec", "the scalar \"{}\" must be one float64, but is {}", binding.name,
             layout_of(tensor));
      }
      scalars.emplace_back(std::move(tensor), binding.name);
    }
  }
}

PreparedSection& Executor::Impl::prepare(int32_t section, int32_t slot) {
  auto& slots = sections[section];
  if (std::ssize(slots) <= slot) slots.resize(slot + 1);
  if (slots[slot]) return *slots[slot];
  auto made = std::make_unique<PreparedSection>();
  made->bases = program.slots.empty() ? arena.bases() : arena.bases(program.slots[slot]);
  const auto& source = program.sections[section];
  made->instructions.resize(source.instructions.size());
  for (size_t i = 0; i < source.instructions.size(); ++i) {
    auto& prepared = made->instructions[i];
    prepared.source = &source.instructions[i];
    prepared.kernel = &kernels[section][i];
    try {
      exec::prepare(prepared, source.instructions[i], {program, communicator, mesh, [&](ValueId v) {
                                                         return tensor_of(v, made->bases);
                                                       }});
      const auto& allocations = source.instructions[i].allocations;
      if (source.instructions[i].traced && !allocations.empty() && !device.plans_memory()) {
        prepared.served = std::make_unique<ServedAllocations>(allocations, made->bases);
      }
    } catch (const std::exception& error) {
      fail("exec", "{} must fit its program, but: {}",
           place_text(program, source, source.instructions[i]), error_text(error));
    }
  }
  slots[slot] = std::move(made);
  return *slots[slot];
}

void Executor::Impl::run_op(Prepared& prepared, const std::vector<std::byte*>& bases,
                            const Draw& draw) {
  const auto& instruction = *prepared.source;
  if (instruction.traced && device.plans_memory()) {
    PlannedAllocations planned(instruction.allocations, bases, instruction.worker_bytes);
    (*prepared.kernel)(prepared.operands, prepared.results, draw);
    planned.check_all_made();
    for (const auto& [result, value] : prepared.expected) {
      const auto& given = prepared.results[result];
      if (!given.defined() || !same_layout(given, value) ||
          (given.numel() > 0 && given.const_data_ptr() != value.const_data_ptr())) {
        fail_run("exec", "result {} must be {} at its planned address, but is {}{}", result,
                 layout_of(value), given.defined() ? layout_of(given) : "no tensor",
                 given.defined() && same_layout(given, value) ? " elsewhere" : "");
      }
    }
    for (auto& result : prepared.results) result.reset();
    return;
  }
  const Serving serving(device, prepared.served.get());
  (*prepared.kernel)(prepared.operands, prepared.results, draw);
  serving.stop();
  store_results(prepared);
  for (auto& result : prepared.results) result.reset();
  serving.check_all_freed();
}

// Returns the tensor that a load copies.
at::Tensor Executor::Impl::batch(const Prepared& prepared, const StepInputs& inputs,
                                 int64_t microbatch) const {
  const auto& name = prepared.binding->name;
  if (!inputs.data) fail("exec", "the step needs the data tensor \"{}\", but got no data", name);
  return part_of_batch(prepared, inputs.data(name, microbatch));
}

void Executor::Impl::load(const Prepared& prepared, const StepInputs& inputs, int64_t microbatch) {
  if (recorded) return recorded->upload(prepared.target);
  device.upload(prepared.target, batch(prepared, inputs, microbatch));
}

void Executor::Impl::wait(size_t event) {
  auto& [work, interval] = events.at(event);
  if (!work) return;
  if (recorded) {  // a recorded step has no marks
    work->wait();
    work.reset();
    return;
  }
  const auto begin = device.mark();
  work->wait();
  waits.emplace_back(begin, device.mark());
  if (recording) finished.emplace_back(work, interval);
  work.reset();
}

// Converts the step's marks to times.
void Executor::Impl::settle() {
  for (; settled < intervals.size(); ++settled) {
    intervals[settled].begin = device.time(intervals[settled].begin);
    intervals[settled].end = device.time(intervals[settled].end);
  }
  for (auto& [work, interval] : finished) {
    work->settle();
    interval.begin = work->began;
    interval.end = work->ended;
    intervals.push_back(interval);
  }
  settled = intervals.size();
  finished.clear();
}

void Executor::Impl::run_section(const compile::Run& run, const StepInputs& inputs,
                                 const Draw& draw) {
  auto& section = prepare(run.section, run.slot);
  const auto name = program.sections[run.section].name();
  for (auto& prepared : section.instructions) {
    const auto& instruction = *prepared.source;
    if (&instruction == first_updates[run.section]) begin_update();
    const int64_t begin = recording ? device.mark() : 0;
    if (submitter) {
      submitter->begin(
          {program, program.sections[run.section], instruction, run.microbatch, section.bases});
    }
    try {
      switch (instruction.kind) {
        case Instruction::Kind::op:
          if (submitter) {
            submitter->submit(
                [this, &prepared, &section, draw] { run_op(prepared, section.bases, draw); });
          } else {
            run_op(prepared, section.bases, draw);
          }
          break;
        case Instruction::Kind::load:
          load(prepared, inputs, run.microbatch);
          break;
        case Instruction::Kind::wait:
          if (program.sections[run.section].frame >= 0) {
            wait(place_of(instruction.event, run));
          } else {  // outside of parts: started for any copy of the frame
            const auto first = static_cast<size_t>(instruction.event) * copies;
            for (size_t copy = 0; copy < copies; ++copy) wait(first + copy);
          }
          break;
        case Instruction::Kind::collective: {
          auto& event = events.at(place_of(instruction.event, run));
          if (event.first)
            fail_run("exec", "a collective must be waited for before it starts again, but was not");
          if (prepared.rows && submitter) submitter->finish(prepared.rows->counts);
          auto transfer = prepared.rows
                              ? prepared.rows->of(prepared.transfer, prepared.group->index())
                              : prepared.transfer;
          const auto bytes = transfer.input.defined()
                                 ? static_cast<int64_t>(transfer.input.nbytes())
                                 : 0;
          event.first = prepared.group ? prepared.group->start_flat(std::move(transfer))
                                       : device.copy(transfer.output, transfer.input,
                                                     instruction.op == "host::store");
          if (recording) {
            event.second = {instruction.op,
                            instruction.scope,
                            name,
                            instruction.stream,
                            run.microbatch,
                            instruction.phase,
                            bytes,
                            0,
                            0,
                            compile::operand_of(instruction)};
          }
          break;
        }
      }
    } catch (const std::exception& error) {
      fail_instruction(run, instruction, error);
    }
    const bool computes = instruction.kind == Instruction::Kind::op ||
                          instruction.kind == Instruction::Kind::load;
    if (recording && computes) {
      intervals.push_back({instruction.op, instruction.scope, name, 0, run.microbatch,
                           instruction.phase, 0, begin, device.mark()});
    }
  }
}

void Executor::Impl::run(const StepInputs& inputs) {
  set_op_threads(options.threads);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto entered = device.enter();
  const auto started = now();
  for (auto& [tensor, name] : scalars) {
    const auto given = inputs.scalars.find(name);
    if (given == inputs.scalars.end() && name != "step") {
      fail("exec", "the step needs the scalar \"{}\", but got none", name);
    }
    const double value = given != inputs.scalars.end() ? given->second
                                                       : static_cast<double>(inputs.step);
    if (submitter) {
      submitter->fill(tensor, value);
    } else {
      tensor.fill_(value);
    }
  }
  waits.clear();
  updates = false;
  if (replay && !recording) {
    submit_replayed(inputs);
  } else {
    submit(inputs);
  }
  host_writes.stepped();
  times = {.submitted = now() - started};
  device.synchronize([this] { communicator.check(); });
  if (replay && !recording) replay->ended(now() - started);
  for (const auto& [begin, end] : waits) times.waited += device.time(end) - device.time(begin);
  if (recording) settle();
}

void Executor::Impl::submit_replayed(const StepInputs& inputs) {
  Replay::Step step{.number = inputs.step};
  for (const auto& run : program.order) {
    step.runs.push_back(runs_now(run, inputs.step));
    if (step.runs.back() && first_updates[run.section]) begin_update();
  }
  step.batches = [&] {
    std::vector<at::Tensor> batches;
    for (size_t r = 0; r < program.order.size(); ++r) {
      const auto& run = program.order[r];
      if (!step.runs[r]) continue;
      for (const auto& prepared : prepare(run.section, run.slot).instructions) {
        if (prepared.source->kind != Instruction::Kind::load) continue;
        try {
          batches.push_back(batch(prepared, inputs, run.microbatch));
        } catch (const std::exception& error) {
          fail_instruction(run, *prepared.source, error);
        }
      }
    }
    return batches;
  };
  step.submit = [&](RecordedStep* into) {
    recorded = into;
    const std::shared_ptr<void> ended(this, [](Impl* impl) { impl->recorded = nullptr; });
    submit(inputs);
  };
  replay->submit(step);
}

void Executor::Impl::submit(const StepInputs& inputs) {
  // Each copy of the model draws random numbers for its own samples, as each microbatch does.
  Draw draw{.seed = options.seed,
            .step = inputs.step,
            .step_in_memory = recorded ? recorded->step_in_memory() : nullptr,
            .microbatches = program.microbatches * program.model_copies};
  for (auto& event : events) event.first.reset();  // of a step that could not be recorded
  for (const auto& run : program.order) {
    if (!runs_now(run, inputs.step)) continue;
    draw.microbatch = run.microbatch * program.model_copies + program.model_copy;
    run_section(run, inputs, draw);
  }
  for (size_t event = 0; event < events.size(); ++event) wait(event);
}

Executor::Executor(compile::Program program, Communicator& communicator, const mesh::Mesh& mesh,
                   ExecutorOptions options)
    : impl_(std::make_unique<Impl>(std::move(program), communicator, mesh, std::move(options))) {
  const auto entered = impl_->device.enter();
  const auto& p = impl_->program;
  if (p.rank != communicator.rank()) {
    fail("exec", "the program must be that of rank {}, but is that of rank {}", communicator.rank(),
         p.rank);
  }
  impl_->copies = static_cast<size_t>(p.most_copies());
  impl_->once = compile::started_once(p);
  impl_->events.resize(static_cast<size_t>(p.events) * impl_->copies);
  connect_groups(p, communicator, mesh);
  place_one_copies(p, communicator, mesh, impl_->device, impl_->arena);
  impl_->registrations = register_memory(p, communicator, mesh, impl_->arena);
  impl_->borrowed = borrowed_addresses(p, impl_->options.lender, [&](ValueId v) {
    return impl_->tensor_of(v, impl_->arena.bases());
  });
  impl_->find_kernels();
  impl_->prepare_bindings();
  // Finds errors before the first step.
  for (const auto& run : p.order) impl_->prepare(run.section, run.slot);
  impl_->device.synchronize([&] { communicator.check(); });
}

Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;

void Executor::run(const StepInputs& inputs) {
  try {
    impl_->run(inputs);
  } catch (const std::exception& error) {
    impl_->communicator.abort(error.what());
    throw;
  }
}

at::Tensor Executor::tensor(Binding::Kind kind, const std::string& name) const {
  const auto pieces = std::ranges::count_if(
      impl_->program.bindings, [&](const Binding& b) { return b.kind == kind && b.name == name; });
  if (pieces > 1) {
    fail("exec", "\"{}\" must lie in one piece, but rank {} holds {} pieces", name,
         impl_->program.rank, pieces);
  }
  if (const auto* binding = find_binding(impl_->program, kind, name)) return tensor(*binding);
  fail("exec", "the program has no tensor \"{}\" of that kind{}", name,
       did_you_mean(name, names(kind)));
}

at::Tensor Executor::tensor(const Binding& binding) const {
  const auto tensor = impl_->tensor_of(binding.value, impl_->arena.bases());
  return binding.kind == Binding::Kind::parameter ? impl_->host_writes.give(tensor) : tensor;
}

std::vector<std::string> Executor::names(Binding::Kind kind) const {
  return binding_names(impl_->program, kind);
}

const compile::Program& Executor::program() const { return impl_->program; }
int64_t Executor::frame_bytes() const { return impl_->arena.bytes(); }

std::string Executor::unrecordable() const {
  const auto& program = impl_->program;
  for (const auto& run : program.order) {
    for (const auto& prepared : impl_->prepare(run.section, run.slot).instructions) {
      const auto& instruction = *prepared.source;
      const auto why = exec::unrecordable(prepared, op_of(program, instruction));
      if (why.empty()) continue;
      return fmt::format("{} in scope \"{}\" {}", instruction.op, instruction.scope, why);
    }
  }
  return impl_->device.recorder() ? "" : fmt::format("{} records no work", impl_->device.kind());
}

void Executor::replay_steps(bool required) {
  if (const auto why = unrecordable(); !why.empty()) {
    fail("exec", "recorded steps need ops that the host does not wait for, but {}", why);
  }
  impl_->replay.emplace(*impl_->device.recorder(), required);
}

Executor::StepTimes Executor::step_times() const { return impl_->times; }
int64_t Executor::updates_begun() const { return impl_->updates_begun; }

void Executor::record(bool on) {
  impl_->recording = on;
  impl_->intervals.clear();
  impl_->settled = 0;
}

const std::vector<Interval>& Executor::intervals() const { return impl_->intervals; }

}  // namespace perigee::exec
