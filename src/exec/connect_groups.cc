#include "exec/connect_groups.h"

#include <fmt/ranges.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/fail.h"
#include "compile/draft/collective.h"
#include "exec/comm/collective_op.h"
#include "graph/identity/canonical.h"

namespace perigee::exec {

namespace {

using Kind = Collective::Kind;

// Stages list the same streams in different orders, so groups are sorted by name.
using Groups = std::map<std::string, std::shared_ptr<Group>>;

Groups groups_of(const compile::Program& program, Communicator& communicator,
                 const mesh::Mesh& mesh) {
  Groups groups;
  for (const auto& stream : program.streams) {
    if (stream.communicates()) groups[stream.name()];
  }
  for (auto& [name, group] : groups) {
    const auto ranks = compile::ranks_of(mesh, compile::Stream::parse(name), program.rank);
    group = communicator.group(name, ranks);
  }
  return groups;
}

bool communicates(const compile::Instruction& instruction) {
  return instruction.kind == compile::Instruction::Kind::collective &&
         !compile::is_copy(instruction.op);
}

bool is_message(Kind kind) { return kind == Kind::send || kind == Kind::receive; }

// A buffer of a collective.
struct Buffer {
  int64_t offset = kOutside;  // in the memory of collectives
  int64_t bytes = 0;

  static constexpr int64_t kOutside = -1, kOwnPart = -2;
};

// Returns the buffer of a value, which may be undefined. `frames`: addresses of the run's frames.
Buffer buffer_of(const compile::Program& program, graph::ValueId v,
                 const std::vector<std::byte*>& frames, const Arena& arena) {
  if (!v.defined()) return {};
  const auto& value = program.values[v.index];
  Buffer buffer{.bytes = value.type.bytes()};
  const auto [frame, offset] = value.place;
  // Borrowed frames are persistent: they lie in no memory of collectives.
  if (frame < 0 || program.frames[frame].borrowed) return buffer;
  const auto address_of = [](const std::byte* p) { return reinterpret_cast<intptr_t>(p); };
  const auto at = address_of(frames[frame]) + offset - address_of(arena.communication().get());
  if (at >= 0 && at < arena.communication_bytes()) buffer.offset = at;
  return buffer;
}

// The buffers of a group's collectives, in the order in which a step starts them.
struct Layout {
  std::string text;   // kind, and offset and bytes of operand and result, of each collective
  bool used = false;  // a buffer lies in the memory

  // `index`: the rank's position in the group.
  void add(Kind kind, Buffer operand, Buffer result, int64_t index) {
    if (operand.offset < 0 && result.offset < 0) {
      text += "outside\n";
      return;
    }
    used = true;
    // In place, a rank's part of the other buffer is at another offset on each rank. NCCL reads
    // and writes it on its own rank only.
    const auto mark_own_part = [&](Buffer& part, const Buffer& whole) {
      if (whole.offset < 0 || part.offset != whole.offset + index * part.bytes) return;
      part.offset = Buffer::kOwnPart;
    };
    if (kind == Kind::all_gather) mark_own_part(operand, result);
    if (kind == Kind::reduce_scatter) mark_own_part(result, operand);
    text += fmt::format("{} {}:{} {}:{}\n", name_of(kind), operand.offset, operand.bytes,
                        result.offset, result.bytes);
  }
};

// Returns the layouts by group. Messages have NCCL communicators of their own.
std::map<std::string, Layout> layouts_of(const compile::Program& program, const Arena& arena,
                                         const Groups& groups) {
  std::map<std::string, Layout> layouts;
  for (const auto& run : program.order) {
    const auto frames = program.slots.empty() ? arena.bases()
                                              : arena.bases(program.slots[run.slot]);
    for (const auto& instruction : program.sections[run.section].instructions) {
      if (!communicates(instruction)) continue;
      const auto kind = transfer_of(instruction).kind;
      if (is_message(kind)) continue;
      const auto name = axis_of(instruction);
      const auto& outputs = instruction.outputs;
      const auto result = outputs.empty() ? graph::ValueId{} : outputs[0];
      layouts[name].add(kind, buffer_of(program, compile::operand_of(instruction), frames, arena),
                        buffer_of(program, result, frames, arena), groups.at(name)->index());
    }
  }
  return layouts;
}

}  // namespace

void connect_groups(const compile::Program& program, Communicator& communicator,
                    const mesh::Mesh& mesh) {
  const auto groups = groups_of(program, communicator, mesh);
  std::map<std::string, std::set<Group::Pair>> pairs;
  for (const auto& section : program.sections) {
    for (const auto& instruction : section.instructions) {
      if (!communicates(instruction)) continue;
      const auto transfer = transfer_of(instruction);
      if (!is_message(transfer.kind)) continue;
      const bool sends = transfer.kind == Kind::send;
      const auto name = axis_of(instruction);
      const auto own = groups.at(name)->index();
      pairs[name].insert(sends ? Group::Pair{own, transfer.peer} : Group::Pair{transfer.peer, own});
    }
  }
  for (const auto& [name, found] : pairs) {
    groups.at(name)->connect_pairs({found.begin(), found.end()});
  }
}

std::vector<std::shared_ptr<void>> register_memory(const compile::Program& program,
                                                   Communicator& communicator,
                                                   const mesh::Mesh& mesh, const Arena& arena) {
  const auto groups = groups_of(program, communicator, mesh);
  const auto layouts = layouts_of(program, arena, groups);
  std::vector<std::shared_ptr<void>> registrations;
  for (const auto& [name, group] : groups) {
    CollectiveMemory memory{arena.communication(), arena.communication_bytes(), ""};
    const auto layout = layouts.find(name);
    if (layout != layouts.end() && layout->second.used) {
      memory.layout = graph::digest(layout->second.text);
    }
    registrations.push_back(group->register_memory(std::move(memory)));
  }
  return registrations;
}

void place_one_copies(const compile::Program& program, Communicator& communicator,
                      const mesh::Mesh& mesh, const Device& device, Arena& arena) {
  std::map<std::string, size_t> frames;  // by group, in the order in which all ranks call them
  for (size_t f = 0; f < program.frames.size(); ++f) {
    const auto& frame = program.frames[f];
    if (frame.held_by >= 0 && !frame.borrowed) {
      frames[program.streams[frame.held_by].name()] = f;
    }
  }
  for (const auto& [name, f] : frames) {
    const auto ranks = compile::ranks_of(mesh, compile::Stream::parse(name), program.rank);
    std::shared_ptr<std::byte> memory;
    if (device.place().is_cpu()) {
      memory = communicator.group(name, ranks)->one_memory(program.frames[f].bytes);
    }
    if (!memory) {
      fail_run(
          "exec",
          "the plan has ranks {} hold one copy of the weights, so they must map each other's "
          "memory on one host's CPU, but they cannot: set cluster.communicator = \"gloo\", or give "
          "zero1 or zero2 one_copy = false",
          fmt::join(ranks, ","));
    }
    arena.put(f, std::move(memory));
  }
}

}  // namespace perigee::exec
