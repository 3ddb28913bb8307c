// A program: everything one rank does in one optimizer step, with every address known before the first step.
// compile/ makes it from the graph and the plan; exec/ runs it and has no strategy logic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

// A contiguous piece of device memory, allocated once.
struct Frame {
  enum class Kind : uint8_t {
    persistent,     // parameters, optimizer state, buffers, gradients, scalars that vary by step
    microbatch,     // one per in-flight microbatch slot: activations between forward and backward
    scratch,        // within one section's run
    communication,  // operands and results of one axis group's collectives: same size and offsets on all its ranks
  };
  Kind kind = Kind::scratch;
  std::string name;
  int64_t bytes = 0;
  int64_t copies = 1;  // microbatch: slots in flight
};

// An address: frame and offset in bytes (64-byte aligned). In a microbatch frame the running slot picks the copy.
struct Place {
  int32_t frame = -1;  // -1: no memory of its own (a view, or an empty tensor)
  int64_t offset = 0;
};

using graph::ValueId;  // in a program: an index of Program::values

struct ProgramValue {
  graph::TensorType type;
  std::vector<int64_t> strides;  // in elements; declared layout, checked by the executor
  Place place;
  ValueId view_of;               // the value whose memory this one shares, or undefined
  std::string name;              // graph::value_names' name, or "gradient:PARAM", "adamw.exp_avg:PARAM", ...
};

// One allocation that the op makes inside LibTorch, in order, and where it is served.
struct Allocation {
  int64_t bytes = 0;
  Place place;
};

struct Instruction {
  enum class Kind : uint8_t {
    op,          // run `op` with `args`
    collective,  // start a collective (comm::...) on `stream`; completes `event`
    wait,        // the running stream waits for `event`
    release,     // drop the handles of `args`' values (their memory may be reused from here on)
  };
  Kind kind = Kind::op;
  std::string op;
  std::vector<std::pair<std::string, graph::Arg>> args;
  std::vector<ValueId> outputs;
  std::vector<Allocation> allocations;  // the op's allocation trace; empty and !traced: not known, allocate freely
  bool traced = false;
  bool in_place = false;  // the outputs are the operands of the same position, written in place (optimizer ops)
  int32_t stream = 0;     // 0: compute; k > 0: communication stream of Program::streams[k]
  int32_t event = -1;
  std::string scope;
  graph::Phase phase = graph::Phase::forward;
};

// A straight list of instructions that runs as a whole for one microbatch (or once per step).
struct Section {
  std::string name;  // "prologue", "micro", "last_micro", "step"; with pipelines F/B/W per chunk
  std::vector<Instruction> instructions;
};

// One entry of the step's order: run that section for that microbatch in that slot.
struct Run {
  int32_t section = 0;
  int32_t microbatch = 0;
  int32_t slot = 0;
};

// A named tensor the host reads or writes between steps.
struct Binding {
  // parameter, buffer, state: full names; data: per microbatch; constant: bytes given; scalar: float64 written before
  // each step ("lr.0", "step", "microbatch") ; result: loss, grad_norm, named results, read after the step.
  enum class Kind : uint8_t { parameter, buffer, state, data, constant, scalar, result };
  Kind kind = Kind::data;
  std::string name;
  ValueId value;
  std::string data;  // constant: bytes
};

struct Program {
  int64_t rank = 0;
  int64_t microbatches = 1;
  std::vector<Frame> frames;
  std::vector<ProgramValue> values;
  std::vector<Section> sections;
  std::vector<Run> order;               // one optimizer step
  std::vector<std::string> streams;     // [0] "compute", then one per communicating axis group ("data")
  std::vector<Binding> bindings;
  int64_t peak_bytes = 0;               // sum of frames over copies
};

// Throws Error when a happens-before replay of the step finds a value read before it is written, memory reused while an
// instruction or an unwaited collective still reads or writes it, overlapping live places, or a section that leaks.
void verify(const Program& program);

// Text for people and golden tests: frames, sections, one line an instruction; `summary` counts ops and collectives
// per section ("last_micro: 2 all_reduce over data (1.2 MiB)").
std::string print(const Program& program);
std::string summary(const Program& program);

}  // namespace perigee::compile
