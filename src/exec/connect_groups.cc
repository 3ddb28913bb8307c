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

namespace perigee::exec {

void connect_groups(const compile::Program& program, Communicator& communicator,
                    const mesh::Mesh& mesh) {
  // Stages list the same streams in different orders, so groups are sorted by name.
  std::map<std::string, std::shared_ptr<Group>> groups;
  for (const auto& stream : program.streams) {
    if (stream.communicates()) groups[stream.name()];
  }
  for (auto& [name, group] : groups) {
    const auto ranks = compile::ranks_of(mesh, compile::Stream::parse(name), program.rank);
    group = communicator.group(name, ranks);
  }
  std::map<std::string, std::set<Group::Pair>> pairs;
  for (const auto& section : program.sections) {
    for (const auto& instruction : section.instructions) {
      if (instruction.kind != compile::Instruction::Kind::collective ||
          compile::is_copy(instruction.op)) {
        continue;
      }
      const auto transfer = transfer_of(instruction);
      const bool sends = transfer.kind == Collective::Kind::send;
      if (!sends && transfer.kind != Collective::Kind::receive) continue;
      const auto name = axis_of(instruction);
      const auto own = groups.at(name)->index();
      pairs[name].insert(sends ? Group::Pair{own, transfer.peer} : Group::Pair{transfer.peer, own});
    }
  }
  for (const auto& [name, found] : pairs) {
    groups.at(name)->connect_pairs({found.begin(), found.end()});
  }
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
