#include "compile/bucket_names.h"

#include <algorithm>
#include <compare>
#include <optional>
#include <string_view>

#include "graph/ops.h"

namespace perigee::compile {
namespace {

// A bucket's name, with one key for its gradients and one for its weights.
struct BucketKey {
  bool gradients;
  std::string_view bucket;
  auto operator<=>(const BucketKey&) const = default;
};

// Returns the bucket whose gradients or weights a value is.
std::optional<BucketKey> bucket_of(const ValueName& name) {
  switch (name.role) {
    case ValueRole::flat_gradients:
      return BucketKey{true, name.subject};
    case ValueRole::flat_parameters:
    case ValueRole::whole_parameters:
    case ValueRole::gathered_parameters:
      return BucketKey{false, name.subject};
    default:
      return std::nullopt;
  }
}

}  // namespace

std::map<ValueId, BucketNames> bucket_names(const Program& program) {
  const auto root = [&](ValueId v) -> const ProgramValue& {
    const auto& value = program.values[v.index];
    return value.view_of.defined() ? program.values[value.view_of.index] : value;
  };
  std::map<BucketKey, std::vector<std::string>> members;
  for (const auto& value : program.values) {
    if (!value.view_of.defined()) continue;
    const auto bucket = bucket_of(program.values[value.view_of.index].name);
    const auto role = value.name.role;
    if (!bucket || (role != ValueRole::parameter && role != ValueRole::gradient)) continue;
    auto& names = members[*bucket];
    const auto& name = value.name.subject;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::map<ValueId, BucketNames> result;
  for (const auto& section : program.sections) {
    for (const auto& instruction : section.instructions) {
      if (instruction.kind != Instruction::Kind::collective) continue;
      if (!graph::is_collective(instruction.op)) continue;
      const auto sent = operand_of(instruction);
      if (!sent.defined() || instruction.outputs.empty()) continue;
      const bool gathers = instruction.op == "comm::all_gather";
      const auto bucket = bucket_of(root(gathers ? instruction.outputs.front() : sent).name);
      if (!bucket || bucket->gradients == gathers) continue;
      const auto found = members.find(*bucket);
      if (found != members.end()) result[sent] = {!gathers, found->second};
    }
  }
  return result;
}

}  // namespace perigee::compile
