#include "compile/bucket_names.h"

#include <algorithm>
#include <string_view>

#include "graph/ops.h"

namespace perigee::compile {
namespace {

constexpr std::string_view kGradients = "gradients.", kParameters = "parameters.",
                           kGradient = "gradient:";

// "gradients.blocks.0 part low" -> "gradients.blocks.0": state.cc and units.cc name what belongs to
// a bucket after it.
std::string_view bucket_of(std::string_view name) { return name.substr(0, name.find(' ')); }

}  // namespace

std::map<ValueId, BucketNames> bucket_names(const Program& program) {
  const auto root = [&](ValueId v) -> const ProgramValue& {
    const auto& value = program.values[v.index];
    return value.view_of.defined() ? program.values[value.view_of.index] : value;
  };
  std::map<std::string_view, std::vector<std::string>> members;
  for (const auto& value : program.values) {
    if (!value.view_of.defined()) continue;
    const auto& base = program.values[value.view_of.index];
    const bool bucket = base.name.starts_with(kGradients) || base.name.starts_with(kParameters);
    if (!bucket || value.name == base.name) continue;
    const auto skipped = value.name.starts_with(kGradient) ? kGradient.size() : 0;
    auto& names = members[bucket_of(base.name)];
    const auto name = value.name.substr(skipped);
    if (name.find('/') != name.npos) continue;  // a view that the graph makes (graph::value_names)
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
      const auto& name = root(gathers ? instruction.outputs.front() : sent).name;
      if (!name.starts_with(gathers ? kParameters : kGradients)) continue;
      const auto found = members.find(bucket_of(name));
      if (found != members.end()) result[sent] = {!gathers, found->second};
    }
  }
  return result;
}

}  // namespace perigee::compile
