#include "compile/rank.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "compile/fp8.h"
#include "compile/passes.h"
#include "compile/tensor_step.h"
#include "graph/ops.h"
#include "plan/pipeline.h"
#include "plan/rewrites.h"

namespace perigee::compile {

namespace {

void check(const StepSpec& spec, const plan::Plan& plan, const graph::Graph& graph) {
  constexpr std::array known{"sgd", "adam", "adamw", "adafactor", "lion", "muon", "none"};
  if (std::find(known.begin(), known.end(), spec.optimizer) == known.end()) {
    const std::vector<std::string> names(known.begin(), known.end());
    fail("compile",
         "the optimizer must be sgd, adam, adamw, adafactor, lion, muon or none, but got '{}'{}",
         spec.optimizer, did_you_mean(spec.optimizer, names));
  }
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
         "parameters that lie in parts (zero1, zero2, fsdp) are float32, but the plan has them in "
         "{} without masters",
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

// Returns the plan with units of what they cut.
plan::Plan without_whole(plan::Plan plan, const graph::Graph& graph) {
  if (!plan.pipeline.cuts() || plan.units.empty()) return plan;
  const StageInputs stages(graph, plan);
  for (auto& unit : plan.units) {
    std::erase_if(unit.parameters,
                  [&](const std::string& name) { return stages.stays_whole(name); });
  }
  return plan;
}

}  // namespace

namespace {

// `crossings`: of stages of unequal submeshes, of which `given` is one's view.
Common prepare(const graph::Graph& graph, const plan::Plan& given, const StepSpec& spec,
               Crossings* crossings) {
  check(spec, given, graph);
  std::optional<plan::Plan> renamed;
  Common common{.captured = graph};
  common.graph = select_outputs(graph, spec);
  if (!given.rewrites.empty()) {
    auto rewritten = plan::apply(given.rewrites, common.graph);
    renamed = with_names_of(given, common.graph, rewritten);
    common.graph = std::move(rewritten);
  }
  const auto& plan = renamed ? *renamed : given;
  const auto& communication = plan.communication;
  const bool scales = !spec.evaluation && (communication.sum || communication.clip_first);
  if (plan.microbatches > 1 || scales) common.loss = shard::classify_loss(common.graph).kind;
  if (scales && common.loss == shard::LossKind::mixed) {
    fail("compile",
         "gradients of a rank's own are those of a loss that is a mean or a sum over samples, but "
         "this one is neither: leave grad_comm's reduce and clip as they are");
  }
  if (plan.precision == plan::Precision() && !plan.fp8) {
    if (crossings) common.graph = mark_crossings(common.graph, plan, *crossings);
    common.sharding = shard::propagate(common.graph, plan);
  } else {
    const auto cut = without_whole(plan, common.graph);
    auto rounded = round_to_fp8(autocast(scale_loss(common.graph, plan.precision.loss_scale), cut),
                                plan, spec);
    const auto named = with_fp8_states(with_names_of(plan, common.graph, rounded), rounded);
    if (crossings) rounded = mark_crossings(rounded, plan, *crossings);
    common.sharding = shard::propagate(rounded, named);
    common.graph = std::move(rounded);
  }
  if (has_stages(plan, spec.evaluation)) common.schedule = schedule_of(plan, spec.evaluation);
  if (common.schedule && !spec.evaluation) check_turns(plan, *common.schedule);
  if (plan.pipeline.cuts() && !crossings) common.inputs.emplace(common.graph, given);
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
  auto crossings = std::make_shared<Crossings>();
  std::map<std::vector<int64_t>, std::shared_ptr<Common>> by_sizes;
  std::map<std::vector<int64_t>, Crossings> named;  // as each of their graphs has them
  for (int64_t stage = 0; stage < std::ssize(mesh.stages); ++stage) {
    View view{plan::of_stage(plan_, stage), nullptr};
    auto& common = by_sizes[mesh.stages[stage]];
    auto& found = named[mesh.stages[stage]];
    if (!common) {
      common = std::make_shared<Common>(prepare(graph, *view.plan, spec, &found));
      common->inputs.emplace(common->graph, plan_);
    }
    if (stage == 0) {
      *crossings = found;
      crossings->mesh = mesh;
    }
    place_ends(*crossings, found, common->graph, common->sharding, stage);
    view.common = common;
    views_.push_back(std::move(view));
  }
  find_pieces(*crossings);
  for (auto& [sizes, common] : by_sizes) {
    common->crossings = crossings;
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

// The rank's graph of all stages; `again`: with what the plan recomputes.
shard::LocalGraph local_graph(const Common& common, const plan::Plan& plan, int64_t rank,
                              bool again) {
  auto local = shard::partition(common.graph, common.sharding, plan, rank);
  // Unused constants go; what is known about the inputs goes with them.
  std::map<std::pair<graph::Input::Kind, std::string>, mesh::Placements> placements;
  for (size_t i = 0; i < local.inputs.size(); ++i) {
    placements[{local.graph.inputs[i].kind, local.graph.inputs[i].name}] = local.inputs[i];
  }
  local.graph =
      graph::eliminate_common_subexpressions(graph::eliminate_dead_code(std::move(local.graph)));
  local.graph = simplify_views(std::move(local.graph));
  if (plan.microbatches * plan::copies_of(plan) > 1) set_batch_dims(local.graph, common.graph);
  if (again) local.graph = recompute(local.graph, plan.recompute);
  if (plan.pipeline.cuts()) local.graph = cast_again(std::move(local.graph));
  local.inputs.clear();
  for (const auto& input : local.graph.inputs) {
    local.inputs.push_back(placements.at({input.kind, input.name}));
  }
  return local;
}

}  // namespace

const shard::LocalGraph& WholeGraphs::get(bool again) {
  const std::lock_guard lock(making_);
  auto& graph = graphs_[again];
  if (!graph) graph = local_graph(common_, plan_, rank_, again);
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
    pools_->again = find(recompute(common_.graph, plan_.recompute));
    if (plan_.recompute.kept_microbatches > 0) pools_->kept = find(common_.graph);
  }
  return *pools_;
}

namespace {

// Microbatches that keep their results send and receive what the others do.
void check_messages(const Stage& again, const Stage& kept) {
  const auto same = [](const graph::Node& a, const graph::Node& b) {
    return a.op == b.op && a.args == b.args;
  };
  if (std::equal(again.messages.begin(), again.messages.end(), kept.messages.begin(),
                 kept.messages.end(), same)) {
    return;
  }
  fail(
      "compile",
      "microbatches that keep their results send what others do, but where checkpoint's scopes run "
      "again stage {} has {} messages, not {}: choose scopes that end with a stage, or leave "
      "kept_microbatches out",
      again.index, again.messages.size(), kept.messages.size());
}

void check_exchanges(const graph::Graph& graph) {
  const bool found = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                 [](const graph::Node& node) { return is_exchange(node.op); });
  if (found) return;
  fail("overlap",
       "experts = true hides what ranks exchange for experts, but by this plan they exchange "
       "nothing: use expert_parallel over an axis that the batch is sharded over beside it, or, "
       "where tokens are so few that gathering all of them is cheaper, leave experts out");
}

}  // namespace

Local localize(const Common& common, const plan::Plan& plan, WholeGraphs& whole, int64_t rank) {
  if (!common.schedule) return {whole.get(true), {}, {}};
  if (plan.overlap.experts) check_exchanges(whole.get(true).graph);
  const auto kept = kept_on_stage(plan, *common.schedule, rank);
  const auto make = [&](bool again) {
    Local local{whole.get(again), {}, {}};
    local.stage = cut_stage(local.graph, plan, *common.schedule, rank, whole.pools(),
                            *common.rendezvous, common.crossings.get());
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
  auto& local = given.graph;
  const Stage* stage = given.stage ? &*given.stage : nullptr;
  const auto flats = plan.pipeline.cuts()
                         ? plan::flats(plan, common.inputs->own(common.captured, rank), rank)
                         : plan::flats(plan, common.captured, rank);
  const auto gathers = place_gathers(local.graph, plan, flats, stage);
  const auto microbatches = cut_microbatches(local.graph, plan.microbatches, common.loss);
  const Schedule* schedule = common.schedule ? &*common.schedule : nullptr;
  const auto sections = make_micro_sections(microbatches.micro, stage, false);
  const Source source{common.graph, local,    plan,  spec,        flats,
                      rank,         sections, stage, common.loss, common.crossings.get()};
  Draft draft;
  draft.program.rank = rank;
  draft.program.microbatches = plan.microbatches;
  draft.program.model_copies = plan::copies_of(plan);
  if (draft.program.model_copies > 1) {
    const auto copies = mesh::group_of(plan.mesh, mesh::split_axes(plan.copy_axes), rank);
    draft.program.model_copy = std::find(copies.begin(), copies.end(), rank) - copies.begin();
  }
  draft.program.streams = {"compute"};
  std::vector<ValueId> inputs;
  const auto gradients = make_state(draft, source, inputs);
  Accumulated accumulated;
  make_microbatch_sections(draft, source, microbatches, gradients, gathers, inputs, accumulated,
                           traces);
  if (given.kept) {
    auto kept = given.kept->graph;
    const auto kept_gathers = place_gathers(kept.graph, plan, flats, &*given.kept->stage);
    const auto micro = cut_microbatches(kept.graph, plan.microbatches, common.loss);
    const auto kept_sections = make_micro_sections(micro.micro, &*given.kept->stage, true);
    const Source keeping{common.graph,  kept,
                         plan,          spec,
                         flats,         rank,
                         kept_sections, &*given.kept->stage,
                         common.loss,   common.crossings.get()};
    make_microbatch_sections(draft, keeping, micro, gradients_of(keeping, source, gradients),
                             kept_gathers, inputs, accumulated, traces);
    draft.kept = stage->kept;
  }
  make_step_section(draft, source, gradients, microbatches.factor);
  make_average_sections(draft, source, gradients);
  if (plan.overlap.receives) receive_ahead(draft);
  if (plan.overlap.accumulate) accumulate_products(draft, traces);
  accumulate_casts(draft);
  const auto waited = find_waited(draft, plan.overlap.bulk);
  if (!common.slices_elsewhere || plan::splits_more_than_batch(plan)) {
    slice_products(draft, plan.mesh, plan.overlap, traces);
  }
  offload_activations(draft, plan.offload);
  stage_host_state(draft, plan.offload);
  separate_gathers(draft, gradients);
  separate_kept(draft);
  if (plan.communication.overlap) {
    put_products_beside(draft);
    order_collectives(draft);
  }
  wait_at_once(draft, waited);
  insert_waits(draft);
  if (stage) {
    draft.order = schedule->orders[stage->index];
    draft.turns = stage->turns;
    draft.frames = stage->frames;
    draft.copies = stage->copies;
    share_landings(draft);
    draft.deferred = stage->deferred;
    wait_for_sends(draft);
    if (plan.overlap.experts) cut_exchanges(draft);
  }
  assign_memory(draft);
  return finish(std::move(draft));
}

}  // namespace perigee::compile
