#include "compile/stage_inputs.h"

#include "cost/schedule_plan.h"
#include "plan/pipeline.h"

namespace perigee::compile {

using graph::Graph;
using graph::ValueId;
using plan::kEveryPart;

std::vector<std::set<int64_t>> users_of(const Graph& graph, const std::vector<int>& parts,
                                        const std::vector<int>& stages,
                                        const std::vector<bool>& without) {
  std::vector<std::set<int64_t>> users(graph.values.size());
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

StageInputs::StageInputs(const Graph& graph, const plan::Plan& plan) : plan_(plan) {
  if (!plan.pipeline.cuts()) return;
  const auto stages = stage_of_parts(plan);
  const auto parts = plan::parts_of(graph, plan.pipeline);
  auto users = users_of(graph, parts, stages);
  for (const auto& input : graph.inputs) {
    auto& found = users[input.value.index];
    if (found.empty()) found.insert(0);
    stages_[input.name] = std::move(found);
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

Graph StageInputs::own(const Graph& graph, int64_t rank) const {
  Graph result;
  result.values = graph.values;
  for (const auto& input : graph.inputs) {
    if (!is_shared(input.name) && has(input.name, rank)) result.inputs.push_back(input);
  }
  return result;
}

}  // namespace perigee::compile
