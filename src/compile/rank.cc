#include "compile/rank.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "compile/gradients/tensor_step.h"
#include "compile/graph/recompute.h"
#include "compile/pipeline.h"
#include "graph/ops.h"
#include "plan/pipeline.h"

namespace perigee::compile {

namespace {

void check(const StepSpec& spec, const plan::Plan& plan, const graph::Graph& graph) {
  if (!optimizer_of(spec) && spec.optimizer != kNoOptimizer) {
    auto names = optim::optimizer_names();
    names.emplace_back(kNoOptimizer);
    fail("compile", "the optimizer must be one of {}, but got '{}'{}", fmt::join(names, ", "),
         spec.optimizer, did_you_mean(spec.optimizer, names));
  }
  optim::check_options(spec.options);
  if (plan.microbatches < 1) {
    fail("compile", "a step has at least one microbatch, but the plan has {}", plan.microbatches);
  }
  if (!spec.results.empty() && plan.microbatches > 1) {
    fail("compile", "named results need one microbatch per step, but the plan has {}",
         plan.microbatches);
  }
  const auto losses = std::count_if(
      graph.outputs.begin(), graph.outputs.end(),
      [](const graph::Output& output) { return output.kind == graph::Output::Kind::loss; });
  if (plan.precision.parameters == plan::Precision::Parameters::low && !plan.units.empty()) {
    fail("compile",
         "parameters that are stored in parts (zero1, zero2, fsdp) are float32, but the plan has "
         "them in {} without masters: leave half's masters = false or those methods out",
         graph::name_of(*plan.precision.dtype));
  }
  if (plan.recompute.budget_bytes > 0 && !spec.evaluation) {
    fail(
        "compile",
        "a plan with a budget of memory is fitted to it first (compile::fit_recompute), but got {} "
        "bytes",
        plan.recompute.budget_bytes);
  }
  if (plan.precision.parameters == plan::Precision::Parameters::low && steps_by_tensor(spec)) {
    fail("compile",
         "{} steps float32 parameters, or low ones with masters, but half has them in {} without "
         "masters (masters = true, or another optimizer)",
         spec.optimizer, graph::name_of(*plan.precision.dtype));
  }
  if (!spec.evaluation && losses != 1) {
    fail("compile", "a step needs one loss, but the graph has {}", losses);
  }
}

// Throws Error where the plan wants GELU to be computed by products, but the graph has none that
// may be (compile/products/fuse_activations.h).
void check_activations(const graph::Graph& graph) {
  const bool has_one = std::ranges::any_of(graph.nodes, [&](const graph::Node& node) {
    if (node.op != "aten::gelu" || node.get<std::string>("approximate", "none") != "tanh")
      return false;
    const auto& type = graph.type(node.outputs[0]);
    return graph::is_half(type.dtype) && !type.shape.empty() && type.shape.back() % 8 == 0;
  });
  if (has_one) return;
  fail("overlap",
       "activations lets products of 16 bits compute the tanh form of GELU, but the model has none "
       "in 16 bits whose width is a multiple of 8: use amp_native or half, gelu(approximate = "
       "\"tanh\") and such a width, or leave it out");
}

// `transfers`: with stages of unequal submeshes; `given` is then the plan as one of the stages
// sees it.
Common prepare(const graph::Graph& graph, const plan::Plan& given, const StepSpec& spec,
               StageTransfers* transfers) {
  check(spec, given, graph);
  GraphState state{.spec = spec,
                   .graph = graph,
                   .plan = given,
                   .transfers = transfers,
                   .lowers_precision = given.precision != plan::Precision() || given.fp8};
  run_passes(graph_passes(), state);
  if (given.overlap.activations) check_activations(state.graph);
  Common common{.captured = graph,
                .graph = std::move(state.graph),
                .sharding = std::move(state.sharding),
                .loss = state.loss};
  const auto& plan = given;
  if (has_stages(plan, spec.evaluation)) common.schedule = schedule_of(plan, spec.evaluation);
  if (common.schedule && !spec.evaluation) check_interleaving(plan, *common.schedule);
  if (plan.pipeline.cuts() && !transfers) common.inputs.emplace(common.graph, given);
  return common;
}

}  // namespace

Views::Views(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec)
    : plan_(plan) {
  if (plan.mesh.is_ragged()) {
    see_stages(graph, spec);
  } else {
    views_.push_back({{}, std::make_shared<Common>(prepare(graph, plan, spec, nullptr))});
  }
}

void Views::see_stages(const graph::Graph& graph, const StepSpec& spec) {
  const auto& mesh = plan_.mesh;
  auto transfers = std::make_shared<StageTransfers>();
  std::map<std::vector<int64_t>, std::shared_ptr<Common>> by_sizes;
  std::map<std::vector<int64_t>, StageTransfers> named;  // by submesh: transfers of its graph
  for (int64_t stage = 0; stage < std::ssize(mesh.stages); ++stage) {
    View view{plan::of_stage(plan_, stage), nullptr};
    auto& common = by_sizes[mesh.stages[stage]];
    auto& found = named[mesh.stages[stage]];
    if (!common) {
      common = std::make_shared<Common>(prepare(graph, *view.plan, spec, &found));
      common->inputs.emplace(common->graph, plan_);
    }
    if (stage == 0) {
      *transfers = found;
      transfers->mesh = mesh;
    }
    place_ends(*transfers, found, common->graph, common->sharding, stage);
    view.common = common;
    views_.push_back(std::move(view));
  }
  find_pieces(*transfers);
  for (auto& [sizes, common] : by_sizes) {
    common->transfers = transfers;
    common->slices_elsewhere = plan::splits_more_than_batch(plan_);
  }
}

size_t Views::at(int64_t rank) const {
  return views_.size() == 1 ? 0 : static_cast<size_t>(mesh::stage_of(plan_.mesh, rank));
}

const plan::Plan& Views::plan(int64_t rank) const {
  const auto& own = views_[at(rank)].plan;
  return own ? *own : plan_;
}

plan::Plan Views::plan(const plan::Plan& other, int64_t rank) const {
  auto own = other;
  own.mesh = plan(rank).mesh;
  return own;
}

namespace {

// Returns the rank's graph of all stages.
shard::LocalGraph local_graph(const Common& common, const plan::Plan& plan, int64_t rank,
                              bool recomputes) {
  RankState state{.common = common, .plan = plan, .rank = rank, .recomputes = recomputes};
  const auto& passes = rank_passes();
  passes.front().run(state);  // partition
  auto& local = state.local;
  // Later passes remove unused constants, and these lose their placements.
  std::map<std::pair<graph::Input::Kind, std::string>, mesh::Placements> placements;
  for (size_t i = 0; i < local.inputs.size(); ++i) {
    placements[{local.graph.inputs[i].kind, local.graph.inputs[i].name}] = local.inputs[i];
  }
  for (size_t p = 1; p < passes.size(); ++p) passes[p].run(state);
  local.inputs.clear();
  for (const auto& input : local.graph.inputs) {
    local.inputs.push_back(placements.at({input.kind, input.name}));
  }
  return std::move(local);
}

}  // namespace

const shard::LocalGraph& WholeGraphs::get(bool recomputes) {
  const std::lock_guard lock(making_);
  auto& graph = graphs_[recomputes];
  if (!graph) graph = local_graph(common_, plan_, rank_, recomputes);
  return *graph;
}

const PoolsOfFrames& WholeGraphs::pools() {
  const std::lock_guard lock(making_);
  if (pools_) return *pools_;
  const auto find = [&](graph::Graph graph) {
    return pool_frames(graph, plan_, *common_.schedule);
  };
  pools_.emplace();
  if (plan_.pipeline.cuts() && plan_.pipeline.chunks > 1) {
    pools_->recomputed = find(
        recompute(common_.graph, plan_.recompute, plan::parts_of(common_.graph, plan_.pipeline)));
    if (plan_.recompute.kept_microbatches > 0) pools_->kept = find(common_.graph);
  }
  return *pools_;
}

namespace {

// Throws Error unless microbatches that keep their results have the same messages as the others.
void check_messages(const Stage& recomputed, const Stage& kept) {
  const auto same = [](const graph::Node& a, const graph::Node& b) {
    return a.op == b.op && a.args == b.args;
  };
  if (std::equal(recomputed.messages.begin(), recomputed.messages.end(), kept.messages.begin(),
                 kept.messages.end(), same)) {
    return;
  }
  fail("compile",
       "microbatches that keep their results must send the same messages as the others, but where "
       "checkpoint's scopes are recomputed stage {} has {} messages, not {}: choose scopes that "
       "end with a stage, or leave "
       "kept_microbatches out",
       recomputed.index, recomputed.messages.size(), kept.messages.size());
}

void check_exchanges(const graph::Graph& graph) {
  const bool found = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                 [](const graph::Node& node) { return is_exchange(node.op); });
  if (found) return;
  fail("overlap",
       "experts = true hides the all-to-all of experts, but this plan has none: use "
       "expert_parallel over an axis that the batch is sharded over, or, where tokens are so few "
       "that gathering all of them is cheaper, leave experts out");
}

}  // namespace

Local localize(const Common& common, const plan::Plan& plan, WholeGraphs& whole, int64_t rank) {
  if (!common.schedule) return {whole.get(true), {}, {}};
  if (plan.overlap.experts) check_exchanges(whole.get(true).graph);
  const auto kept = kept_on_stage(plan, *common.schedule, rank);
  const auto make = [&](bool recomputes) {
    Local local{whole.get(recomputes), {}, {}};
    local.stage = cut_stage(local.graph, plan, *common.schedule, rank, whole.pools(),
                            *common.rendezvous, common.inputs ? &*common.inputs : nullptr,
                            common.transfers.get());
    return local;
  };
  auto local = make(kept != Kept::all);
  if (kept == Kept::some) {
    local.kept = std::make_shared<const Local>(make(false));
    check_messages(*local.stage, *local.kept->stage);
  }
  return local;
}

Local localize(const Common& common, const plan::Plan& plan, int64_t rank) {
  WholeGraphs whole(common, plan, rank);
  return localize(common, plan, whole, rank);
}

Program lower(const Common& common, Local given, const plan::Plan& plan, const StepSpec& spec,
              int64_t rank, TraceSource& traces) {
  DraftState state{.common = common,
                   .plan = plan,
                   .spec = spec,
                   .rank = rank,
                   .traces = traces,
                   .local = std::move(given)};
  run_passes(draft_passes(), state);
  return std::move(state.program);
}

}  // namespace perigee::compile
