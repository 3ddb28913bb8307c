// A draft: a program whose values have no addresses yet. Passes (compile/pipeline.h) change it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compile/program.h"
#include "compile/stages/part.h"
#include "compile/trace.h"
#include "schedule/interleave.h"
#include "schedule/schedule.h"

namespace perigee::compile {

// The runs of a section that an instruction belongs to, as bits: the first microbatch's, those
// between, the last one's.
enum When : uint8_t { kFirst = 1, kMiddle = 2, kLast = 4, kAlways = 7 };

// Where order_collectives may move an instruction: nowhere, as early as its operands are ready, or
// as late as the first instruction that needs its result.
enum class Move : uint8_t { none, early, late };

struct DraftInstruction {
  Instruction instruction;
  uint8_t when = kAlways;
  Move move = Move::none;
  bool ahead = false;  // of a pipeline's part: starts in the run before its section's
  // From the op's trace: the allocations freed before allocation k, whose memory k may reuse; and
  // by output the allocation that holds it (-1: none of its own).
  std::vector<std::vector<int32_t>> freed_before;
  std::vector<int32_t> output_allocation;
};

// The kind of memory that a base value will have.
struct Home {
  enum class Kind : uint8_t { scratch, persistent, communication };
  Kind kind = Kind::scratch;
  int32_t stream = 0;  // communication, one copy: the axis group's stream
  // Is read after the step or by every microbatch: keeps its memory until the step's end.
  bool outlives = false;
  bool borrowed = false;  // persistent: its memory is another program's
  int64_t holders = 1;  // persistent, above 1: so many ranks, the stream's, hold one copy together
  bool host = false;    // persistent or scratch: in the host's memory
  bool received_early = false;  // communication: receives a message before its section runs
  int64_t bytes = 0;            // minimum size: that of the group's largest rank
};

struct DraftSection {
  SectionRole role;
  bool repeats = false;  // runs once for every microbatch, else once for the step
  std::vector<DraftInstruction> instructions;
  int64_t every = 1;          // of the step's sections: runs in steps whose number is a multiple
  bool after_writes = false;  // Run::after_writes
};

struct Draft {
  Program program;          // values, streams, bindings; frames, sections and order come last
  std::vector<Home> homes;  // like program.values; of a view: unused
  std::vector<int64_t> view_offset;    // like program.values: bytes from the base's start, or 0
  std::vector<DraftSection> sections;  // in the order they run, of one microbatch
  // With a pipeline: the order in which the stage runs the sections of its parts. An op's chunk is
  // the part's position on the stage.
  std::vector<PipelineOp> order;
  std::vector<InterleavedRange> interleaved;  // by position in `order`: find_interleaved_ops
  std::map<PartId, PartId> frames;   // the owner of a part's frame, where that is another part
  std::map<PartId, int64_t> copies;  // minimum copies of each frame, by its owner
  std::vector<bool> kept;  // by microbatch: runs the sections of kept parts; empty: none does
  // The sections of deferred weight gradients of the first `deferred` microbatches run after
  // `order`, those of the others after their backward passes.
  int64_t deferred = 0;

  // Appends a value that holds memory of its own. Strides default to contiguous.
  ValueId add(graph::TensorType type, ValueName name, Home home = {},
              std::vector<int64_t> strides = {});
  // Appends a view of a value (of its base, if it is a view itself), `offset` bytes after its
  // first element.
  ValueId add_view(ValueId of, int64_t offset, graph::TensorType type, std::vector<int64_t> strides,
                   ValueName name);
  void bind(Binding binding) { program.bindings.push_back(std::move(binding)); }

  // Returns the value that holds the memory.
  ValueId root(ValueId v) const {
    return program.values[v.index].view_of.defined() ? program.values[v.index].view_of : v;
  }
  // Returns the range of bytes of its memory that the value takes: begin, end.
  std::pair<int64_t, int64_t> bytes_of(ValueId v) const;
  // Returns whether the value covers all of its memory, in row-major order.
  bool is_plain(ValueId v) const;
  ProgramValue& value(ValueId v) { return program.values[v.index]; }
  const ProgramValue& value(ValueId v) const { return program.values[v.index]; }
  Home& home(ValueId v) { return homes[root(v).index]; }
  bool has_parts() const { return !order.empty(); }
  // Returns the part that owns the part's frame. Each part has its own copies of it.
  PartId frame_of(const PartId& part) const {
    const auto shared = frames.find(part);
    return shared == frames.end() ? part : shared->second;
  }
  // Returns the number of the stream, adding it where it is new.
  int32_t number_of(const Stream& stream);
};

// Returns an instruction of one of Perigee's in-place ops: `outputs` are the operands it writes.
DraftInstruction in_place(std::string op, std::vector<std::pair<std::string, graph::Arg>> args,
                          std::vector<ValueId> outputs);

// Returns an instruction of an op that allocates its results and nothing else.
DraftInstruction plain(const Draft& draft, std::string op,
                       std::vector<std::pair<std::string, graph::Arg>> args,
                       std::vector<ValueId> outputs);

// Returns an all-reduce in place over the stream's ranks, with an event of its own.
DraftInstruction all_reduce(Draft& draft, ValueId self, const Stream& stream,
                            std::string reduce_op);

// Returns a wait for a collective's event, for memory that is reused before anything reads the
// result (insert_waits adds the waits for results).
DraftInstruction wait_for(int32_t event);

// Returns a copy of all bytes between a value on the device and one of equal size on the host, with
// an event of its own.
DraftInstruction copy_bytes(Draft& draft, ValueId from, ValueId to, bool to_host);

// Calls f(ValueId) for each defined operand of an instruction, in order.
template <class F>
void each_operand(const Instruction& instruction, F f) {
  for (const auto& [name, arg] : instruction.args) {
    if (const auto* v = std::get_if<ValueId>(&arg)) {
      if (v->defined()) f(*v);
    } else if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
      for (auto v : *list) {
        if (v.defined()) f(v);
      }
    }
  }
}

// Returns, by root, how many operands of all instructions are the root or a view of it.
std::vector<int> count_reads(const Draft& draft);

// Returns how many of the first operands the op overwrites without reading them.
int overwritten_operands(std::string_view op);

// Calls f(ValueId) for each operand that the instruction reads, in order.
template <class F>
void each_read(const Instruction& instruction, F f) {
  int left = overwritten_operands(instruction.op);
  each_operand(instruction, [&](ValueId v) {
    if (left-- <= 0) f(v);
  });
}

}  // namespace perigee::compile
