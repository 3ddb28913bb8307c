#include "compile/stages/stage_inputs.h"

#include <fmt/ranges.h>

#include <numeric>

#include "base/fail.h"
#include "compile/graph/prepare.h"
#include "plan/pipeline.h"
#include "schedule/of_plan.h"

namespace perigee::compile {

using graph::Graph;
using graph::ValueId;
using plan::kEveryPart;

std::vector<std::set<int64_t>> users_of(const Graph& graph, const std::vector<int>& parts,
                                        const std::vector<int>& stages,
                                        const std::vector<bool>& without) {
  std::vector<std::set<int64_t>> users(graph.values.size());
  for (const auto& output : graph.outputs) {
    if (output.kind != graph::Output::Kind::buffer || !output.value.defined()) continue;
    const auto producer = graph.values[output.value.index].producer;
    if (producer < 0 || parts[producer] == kEveryPart) continue;
    users[graph.find_input(output.name)->value.index].insert(stages[parts[producer]]);
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (!without.empty() && without[n]) continue;
    const auto& node = graph.nodes[n];
    std::set<int64_t> here;
    if (parts[n] != kEveryPart) {
      here.insert(stages[parts[n]]);
    } else {
      for (auto v : node.outputs) {
        if (v.defined()) here.insert(users[v.index].begin(), users[v.index].end());
      }
    }
    node.each_operand([&](ValueId v) { users[v.index].insert(here.begin(), here.end()); });
  }
  return users;
}

namespace {

// Returns the part itself, by part.
std::vector<int> each_part(size_t count) {
  std::vector<int> parts(count);
  std::iota(parts.begin(), parts.end(), 0);
  return parts;
}

}  // namespace

void require_buffers_of_one_part(const Graph& graph, const std::vector<int>& parts,
                                 const std::vector<int>& stages) {
  const auto users = users_of(graph, parts, each_part(stages.size()));
  for (const auto& output : graph.outputs) {
    if (output.kind != graph::Output::Kind::buffer || !output.value.defined()) continue;
    const auto& used = users[graph.find_input(output.name)->value.index];
    if (used.size() < 2) continue;
    std::set<int64_t> on;
    for (const auto part : used) on.insert(stages[static_cast<size_t>(part)]);
    if (on.size() > 1) {
      fail("pipeline_parallel",
           "a buffer that the model changes must be used in one stage alone, but \"{}\" is used in "
           "stages {}: begin the stages elsewhere, or give each of them a buffer of its own",
           output.name, fmt::join(on, ", "));
    }
    fail("pipeline_parallel",
         "a buffer that the model changes must be used in one part of a stage alone, since parts "
         "alternate over microbatches, but \"{}\" is used in parts {} of stage {}: use one chunk, "
         "begin the parts elsewhere, or give each of them a buffer of its own",
         output.name, fmt::join(used, ", "), *on.begin());
  }
}

StageInputs::StageInputs(const Graph& captured, const plan::Plan& plan) : plan_(plan) {
  if (!plan.pipeline.cuts()) return;
  const auto graph = keep_buffers(write_buffers_early(captured), true);  // as a rank's graph
  const auto stages = stage_of_parts(plan);
  const auto parts = plan::parts_of(graph, plan.pipeline);
  const auto users = users_of(graph, parts, each_part(stages.size()));
  std::set<std::string> reduced_each_time;
  for (const auto& unit : plan.units) {
    if (unit.level >= 2) reduced_each_time.insert(unit.parameters.begin(), unit.parameters.end());
  }
  for (const auto& input : graph.inputs) {
    const auto& found = users[input.value.index];
    auto& own = stages_[input.name];
    for (const auto part : found) own.insert(stages[static_cast<size_t>(part)]);
    if (found.empty()) own.insert(0);
    if (own.size() > 1 || (found.size() > 1 && reduced_each_time.contains(input.name))) {
      whole_.insert(input.name);
    }
  }
}

bool StageInputs::has(const std::string& name, int64_t rank) const {
  if (!plan_.pipeline.cuts()) return true;
  const auto axis = plan_.mesh.find(plan_.pipeline.axis);
  return stages_.at(name).contains(mesh::coordinates(plan_.mesh, rank)[axis]);
}

bool StageInputs::is_shared(const std::string& name) const {
  return plan_.pipeline.cuts() && stages_.at(name).size() > 1;
}

bool StageInputs::stays_whole(const std::string& name) const { return whole_.contains(name); }

Graph StageInputs::own(const Graph& graph, int64_t rank) const {
  Graph result;
  result.values = graph.values;
  for (const auto& input : graph.inputs) {
    if (!stays_whole(input.name) && has(input.name, rank)) result.inputs.push_back(input);
  }
  return result;
}

}  // namespace perigee::compile
