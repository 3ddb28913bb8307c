#include "train/generate/decode_plan.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "shard/partition.h"
#include "train/generate/decode_graph.h"

namespace perigee::train {
namespace {

using graph::Graph;
using graph::Input;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

bool is_weight(const Graph& graph, const std::string& name) {
  const auto* input = graph.find_input(name);
  return input && (input->kind == Input::Kind::parameter || input->kind == Input::Kind::buffer);
}

// Returns the placements of caches of these keys [b,g,s,d], which have `placements`.
Placements placements_of_caches(const Placements& placements, int64_t heads,
                                const mesh::Mesh& mesh) {
  Placements placed(placements.size());
  int64_t parts = 1;
  for (size_t a = 0; a < placements.size(); ++a) {
    const auto more = parts * mesh.axes[a].size;
    if (placements[a] != Placement::shard(1) || heads % more != 0) continue;
    placed[a] = placements[a];
    parts = more;
  }
  return placed;
}

// Places the caches as the keys are that propagation finds with replicated ones.
void place_caches(const Graph& graph, plan::Plan& plan) {
  const auto sharding = shard::propagate(graph, plan);
  const auto names = graph::value_names(graph);
  for (const auto& node : graph.nodes) {
    if (node.op != "perigee::cached_attention") continue;
    const auto key = node.get<ValueId>("key", {});
    const auto placed = placements_of_caches(sharding.values[key.index],
                                             graph.type(key).shape.at(1), plan.mesh);
    for (const char* cache : {"key_cache", "value_cache"}) {
      plan.placements[names[node.get<ValueId>(cache, {}).index]] = placed;
    }
  }
}

}  // namespace

void require_generating_plan(const plan::Plan& trained) {
  if (trained.pipeline.cuts()) {
    fail(
        "generate",
        "text is not generated with a pipeline, but the plan has {} stages: use tensor_parallel or "
        "fsdp (--strategy), or one rank (neither --strategy nor --nproc)",
        trained.pipeline.starts.size() + 1);
  }
}

plan::Plan decode_plan(const Graph& graph, const plan::Plan& trained) {
  require_generating_plan(trained);
  plan::Plan plan;
  plan.mesh = trained.mesh;
  plan.batch_axes = {};
  plan.rules = trained.rules;
  plan.communication = trained.communication;
  if (plan.mesh.size() == 1) return plan_of_graph(graph, std::move(plan));
  for (const auto& [name, placements] : trained.placements) {
    if (is_weight(graph, name)) plan.placements[name] = placements;
  }
  for (auto unit : trained.units) {
    std::erase_if(unit.parameters, [&](const auto& name) { return !is_weight(graph, name); });
    if (unit.level == 3 && !unit.parameters.empty()) plan.units.push_back(std::move(unit));
  }
  place_caches(graph, plan);
  return plan_of_graph(graph, std::move(plan));
}

plan::Plan plan_of_graph(const Graph& graph, plan::Plan plan) {
  plan.graph_hash = graph::structural_hash(graph);
  if (plan.mesh.size() > 1) {
    const auto* logits = graph.find_output(graph::Output::Kind::result, "logits");
    plan.placements[graph::value_names(graph)[logits->value.index]] = Placements(
        plan.mesh.axes.size());
  }
  plan::verify(plan, graph);
  return plan;
}

}  // namespace perigee::train
