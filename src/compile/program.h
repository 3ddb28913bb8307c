// A program: all instructions of one rank in one optimizer step, with every address known before
// the first step. compile/ makes it from the graph and the plan; exec/ runs it and has no
// strategy logic.
//
// Guarantees to an executor. Every non-empty value, also a view, has an address that never changes,
// so its tensor (address, shape, strides) can be made once, when the program is loaded; views and
// reshapes that do not copy are no instructions. An op's results are served at their values'
// addresses by `allocations` (or, in place, are the operands): returned tensors are checked
// (address, strides) and dropped. All frames start as zeros.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compile/section_role.h"
#include "compile/stream.h"
#include "compile/value_name.h"
#include "graph/graph.h"
#include "mesh/placement.h"

namespace perigee::compile {

// A contiguous piece of device memory, allocated once, 64-byte aligned.
struct Frame {
  // clang-format off
  enum class Kind : uint8_t {
    // Values that outlive a step: parameters, optimizer state, buffers, constants,
    // scalars, results.
    persistent,
    // Of parts of a pipeline, a copy for each of their microbatches in flight: values that one
    // section of a part makes and another section uses.
    microbatch,
    // Everything else: within one section's run, or from one section to a later one of the step.
    scratch,
    // Operands, results and workspace of one axis group's collectives, but for parameters: the same
    // size and offsets on all its ranks, as large as the largest of uneven parts needs. A value
    // that two groups reduce is in the frame of the first.
    communication,
  };
  // clang-format on
  Kind kind = Kind::scratch;
  std::string name;
  int64_t bytes = 0;
  int64_t copies = 1;  // microbatch: in flight at once
  // persistent: the memory belongs to another program of the process; places have offsets only.
  bool borrowed = false;
  bool host = false;  // in the host's memory, which only copies (host::...) touch
  // persistent: the ranks of this stream's group hold one copy of the frame together, in memory
  // that all of them map; -1: each rank has its own. `holders`: their number.
  int32_t held_by = -1;
  int64_t holders = 1;

  // Returns a rank's share of the frame's memory.
  int64_t share() const { return bytes * copies / holders; }

  bool operator==(const Frame&) const = default;
};

// An address: frame and offset in bytes (64-byte aligned but for views). In a microbatch frame the
// run's slot picks the copy.
struct Address {
  int32_t frame = -1;  // -1: an empty tensor
  int64_t offset = 0;

  bool operator==(const Address&) const = default;
};

using graph::ValueId;  // in a program: an index of Program::values

struct ProgramValue {
  graph::TensorType type;
  std::vector<int64_t> strides;  // in elements; declared layout, checked by the executor
  Address place;                 // of its first element; a view's is within its base
  ValueId view_of;  // the value (itself no view) whose memory this one shares, or undefined
  ValueName name;   // graph::value_names' name, or one of value_name.h
};

// One allocation that the op makes inside LibTorch, in order, and where it is served.
struct Allocation {
  int64_t bytes = 0;
  Address place;
  // Index of the call's allocation before which this one is freed; -1: freed when the call ends.
  int32_t until = -1;
};

struct Instruction {
  // clang-format off
  enum class Kind : uint8_t {
    // Run `op` with `args`.
    op,
    // Copy this rank's part of the running microbatch's data tensor `op` (its binding's
    // name) to outputs[0].
    load,
    // Start a collective (comm::...) or a copy (host::store to the host's memory, host::fetch from
    // it) on `stream`, from its operand to outputs[0], with outputs[1] as workspace where there is
    // one; completes `event`. It sees what earlier instructions of the compute stream and of
    // `stream` wrote.
    collective,
    // The compute stream waits for `event` if it is open (started and not waited for). In sections
    // of a pipeline's part each copy of the frame has events of its own: a backward pass waits for
    // its microbatch's forward sends; a forward pass waits for the sends of the backward pass that
    // used the copy before. Events that are open at the step's end are waited for there.
    wait,
  };
  // clang-format on
  Kind kind = Kind::op;
  std::string op;
  std::vector<std::pair<std::string, graph::Arg>> args;
  // Undefined: a result without a reader; its memory is among `allocations` nevertheless.
  std::vector<ValueId> outputs;
  // All allocations of the call, results included, in order.
  std::vector<Allocation> allocations;
  // Not 0: the first of `allocations` is memory of the op's workers (OpTrace::worker_bytes).
  int64_t worker_bytes = 0;
  // False: `allocations` is an estimate; the call allocates freely, its results are copied
  // to their places.
  bool traced = false;
  // `outputs` name operands (or views that cover them) that the op writes in place.
  bool in_place = false;
  int32_t stream = 0;  // 0: compute; k > 0: communication stream Program::streams[k]
  int32_t event = -1;  // collective: completes it; wait: waits for it
  // Base values that are read or written here for the last time: their memory may be reused
  // afterwards. For the verifier; an executor may ignore it.
  std::vector<ValueId> releases;
  std::string scope;
  graph::Phase phase = graph::Phase::forward;
};

// Returns the value that a collective sends: its first operand.
inline ValueId operand_of(const Instruction& instruction) {
  for (const auto& [name, arg] : instruction.args) {
    if (const auto* value = std::get_if<ValueId>(&arg)) return *value;
  }
  return {};
}

// A straight list of instructions that runs as a whole for one microbatch, or once per step.
// A step of one microbatch has the section "micro", a step of two "micro_first" and "micro_last", a
// longer one all three. In a pipeline, sections of different microbatches alternate in the
// schedule's order.
struct Section {
  SectionRole role;
  std::vector<Instruction> instructions;
  int32_t frame = -1;  // of a part of a pipeline: its microbatch frame

  std::string name() const { return role.name(); }
};

// One entry of the step's order: a run of a section for a microbatch, on the copies of frames
// in Program::slots[slot].
struct Run {
  int32_t section = 0;
  int32_t microbatch = 0;
  int32_t slot = 0;
  int64_t every = 1;  // runs only in steps whose number is a multiple
  bool after_writes =
      false;  // runs only in steps before which the host may have written parameters

  bool in_every_step() const { return every == 1 && !after_writes; }
};

// A named tensor the host reads or writes between steps.
struct Binding {
  // clang-format off
  enum class Kind : uint8_t {
    parameter,  // named in full
    buffer,     // named in full
    // "exp_avg:PARAM", "exp_avg_sq:PARAM", "momentum_buffer:PARAM", or of
    // compile/gradients/loss_scale.h; zeros at the start, or the bytes given.
    state,
    data,       // named by the batch's tensor, read by `load`
    constant,   // bytes given
    // float64, written by the host before each step: "lr.G" (G: 0 for the default group, k + 1 for
    // StepSpec::groups[k]), "weight_decay.G" where it varies, and "step" (1 in the first step).
    scalar,
    // Read after the step: "loss", "grad_norm", the graph's results by name, "gradient:PARAM".
    result,
  };
  // clang-format on
  Kind kind = Kind::data;
  std::string name;
  ValueId value;
  bool batched = true;  // data: dim 0 is the samples; false: the same tensor for all samples
  std::string data;     // constant, state: its bytes, row-major

  // The whole tensor's shape and this rank's piece of it, one range per dim; data: of one global
  // microbatch. A parameter or state that is stored in parts (plan::Unit) has a binding for each
  // box that this rank holds, which may be none.
  std::vector<int64_t> shape;
  std::vector<mesh::Range> ranges;

  std::string parameter;  // of a state or a gradient: the parameter's name
};

// Copies between the device and its host, in place of collectives.
inline constexpr std::string_view kStore = "host::store", kFetch = "host::fetch";
inline bool is_copy(std::string_view op) { return op == kStore || op == kFetch; }

struct Program {
  int64_t rank = 0;
  int64_t microbatches = 1;
  // Number of copies of the model that the ranks train (plan::Plan::copy_axes), and this rank's
  // copy. The rank reads block microbatch * model_copies + model_copy of the step's data.
  int64_t model_copies = 1;
  int64_t model_copy = 0;
  std::vector<Frame> frames;
  std::vector<ProgramValue> values;
  std::vector<Section> sections;
  std::vector<Run> order;  // one optimizer step
  // By slot: the copy of each frame; empty: there is only slot 0, with the first copies.
  std::vector<std::vector<int32_t>> slots;
  // [0] computes; then one for each communicating group (compile::ranks_of), and those of
  // host copies.
  std::vector<Stream> streams;
  int32_t events = 0;  // event numbers are below this
  std::vector<Binding> bindings;
  // Sum of the rank's shares of frames, without borrowed ones and the host's.
  int64_t peak_bytes = 0;
  int64_t host_bytes = 0;    // sum of host frames over copies
  bool exact_memory = true;  // every op has a recorded allocation trace

  const Binding* find(Binding::Kind kind, std::string_view name) const;
  // Returns the copy of the frame that a run in that slot uses.
  int32_t copy_of(int32_t slot, int32_t frame) const {
    return slots.empty() || frame < 0 ? 0 : slots[slot][frame];
  }
  // Returns the most copies that a frame has.
  int64_t most_copies() const {
    int64_t most = 1;
    for (const auto& frame : frames) most = std::max(most, frame.copies);
    return most;
  }
};

// Throws Error when a happens-before replay of the step finds a value read before it is written,
// memory written that a live value, a running instruction's operand or an unwaited collective still
// needs, overlapping live places, a place outside its frame, or a value that is live after its
// section and never read; and where a frame of one copy is read or written without the barriers
// that its ranks need.
void verify(const Program& program);

// Text for people and golden tests: frames, sections, one line an instruction; `summary` counts ops
// and collectives per section ("micro_last: 2 all_reduce over data (1.2 MiB)").
std::string print(const Program& program);
std::string summary(const Program& program);

}  // namespace perigee::compile
