#include "exec/connect_groups.h"

#include <map>
#include <memory>
#include <set>
#include <string>

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

}  // namespace perigee::exec
