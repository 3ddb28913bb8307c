#include "train/step/check_loss.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/log_format.h"
#include "schedule/description.h"
#include "shard/loss/classify_loss.h"

namespace perigee::train {
namespace {

// Returns the plan with so many microbatches, in a schedule that exists for any number of them.
plan::Plan cut_into(plan::Plan plan, int64_t microbatches, const graph::Graph& graph) {
  plan.microbatches = microbatches;
  plan.recompute = {};
  plan.offload = {};
  plan.graph_hash = graph::structural_hash(graph);
  auto& pipeline = plan.pipeline;
  if (pipeline.cuts()) {
    const bool v_shape = schedule::describe(pipeline.schedule).placement ==
                         schedule::Placement::v_shape;
    pipeline.schedule = v_shape ? "zbv" : pipeline.chunks > 1 ? "looped_bfs" : "gpipe";
    pipeline.group = pipeline.extra = 0;
  }
  return plan;
}

// Returns the relative rounding error of a loss under the plan.
double tolerance(const graph::Graph& graph, const plan::Plan& plan) {
  if (plan.precision.dtype || plan.fp8 || plan.pipeline.dtype) return 3e-2;
  auto widest = graph::DType::float64;
  for (const auto& input : graph.inputs) {
    if (input.kind != graph::Input::Kind::parameter) continue;
    const auto dtype = graph.type(input.value).dtype;
    if (graph::size_of(dtype) < graph::size_of(widest)) widest = dtype;
  }
  const auto bytes = graph::size_of(widest);
  return bytes >= 8 ? 1e-9 : bytes >= 4 ? 1e-4 : 3e-2;
}

}  // namespace

void log_coupling(const graph::Graph& graph, const plan::Plan& plan) {
  if (plan.microbatches == 1) return;
  const auto coupling = shard::classify_loss(graph).coupling;
  if (coupling.empty()) return;
  log::info(
      "samples of a microbatch depend on each other (first through {}): the loss is the mean over "
      "{} microbatches, which differs from that of the whole batch",
      coupling, plan.microbatches);
}

std::optional<graph::Graph> graph_of_two(const ModelSource& source, const graph::Graph& graph,
                                         const plan::Plan& plan, bool evaluation) {
  if (plan.microbatches == 1) return {};
  const auto loss = shard::classify_loss(graph);
  if (loss.kind == shard::LossKind::mixed || !loss.declared) return {};
  int64_t samples = 0;
  for (const auto& input : graph.inputs) {
    if (input.kind != graph::Input::Kind::data || !input.batched) continue;
    const auto& shape = graph.type(input.value).shape;
    if (!shape.empty()) samples = std::max(samples, shape[0]);
  }
  return source.at(2 * samples, evaluation).graph;
}

void check_declared_loss(const graph::Graph& one, const graph::Graph& two, const plan::Plan& plan,
                         const std::function<double(const LossRun&)>& run) {
  const auto loss = shard::classify_loss(one);
  const auto* kind = loss.kind == shard::LossKind::sum ? "sum" : "mean";
  const bool proven = std::ranges::any_of(one.nodes, [](const graph::Node& node) {
    return node.op == "perigee::reduction" && node.get<bool>("proven", false);
  });
  const auto parts = run({one, cut_into(plan, 2, one)});
  const auto whole = run({two, cut_into(plan, 1, two)});
  if (!std::isfinite(whole) && !std::isfinite(parts)) return;  // the step's own checks report it
  const auto allowed = tolerance(one, plan) * std::max(std::abs(whole), std::abs(parts));
  if (!(std::abs(whole - parts) <= allowed)) {
    fail("train",
         "a loss that is {} a {} over samples must be one, but of the first two microbatches "
         "as one batch it is {:.9g}, and the {} of each alone {:.9g}: {} (model.loss, "
         "Result::reduction) or, where samples depend on each other, use one microbatch; there is "
         "no proof after {}",
         proven ? "taken for" : "declared", kind, whole, kind, parts,
         proven ? "declare what it is" : "change the declaration", loss.ended);
  }
}

}  // namespace perigee::train
