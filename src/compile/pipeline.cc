#include "compile/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/fail.h"
#include "compile/draft/keep_casts.h"
#include "compile/gradients/accumulate.h"
#include "compile/gradients/loss_scale.h"
#include "compile/gradients/state.h"
#include "compile/gradients/step.h"
#include "compile/gradients/units.h"
#include "compile/graph/autocast.h"
#include "compile/graph/chunk_loss.h"
#include "compile/graph/fp8.h"
#include "compile/graph/fuse/fold_casts.h"
#include "compile/graph/fuse/fuse_bias.h"
#include "compile/graph/fuse/fuse_rows.h"
#include "compile/graph/fuse/join_parts.h"
#include "compile/graph/fuse/narrow_gradients.h"
#include "compile/graph/fuse/split_gradients.h"
#include "compile/graph/prepare.h"
#include "compile/graph/random.h"
#include "compile/graph/recast_parameters.h"
#include "compile/graph/recompute.h"
#include "compile/graph/widen_loss.h"
#include "compile/memory/finish.h"
#include "compile/memory/memory.h"
#include "compile/overlap/beside.h"
#include "compile/overlap/offload_activations.h"
#include "compile/overlap/offload_state.h"
#include "compile/overlap/order.h"
#include "compile/overlap/slice_products.h"
#include "compile/overlap/waits.h"
#include "compile/products/fuse_activations.h"
#include "compile/products/product_ways.h"
#include "compile/products/sum_products.h"
#include "compile/stages/cut_exchanges.h"
#include "compile/stages/parts.h"
#include "compile/stages/receive_ahead.h"
#include "compile/stages/separate_kept.h"
#include "graph/ops.h"
#include "plan/pipeline.h"
#include "plan/rewrites.h"

namespace perigee::compile {
namespace {

// -- Passes of the captured graph

void rewrite(GraphState& state) {
  if (state.plan.rewrites.empty()) return;
  auto rewritten = plan::apply(state.plan.rewrites, state.graph);
  state.plan = with_names_of(std::move(state.plan), state.graph, rewritten);
  state.graph = std::move(rewritten);
}

void write_early(GraphState& state) {
  auto early = write_buffers_early(state.graph);
  state.plan = with_names_of(std::move(state.plan), state.graph, early);
  state.graph = std::move(early);
}

// Throws Error for a loss that is neither a mean nor a sum, where the plan requires one.
void classify_loss(GraphState& state) {
  const auto& communication = state.plan.communication;
  const bool scales = !state.spec.evaluation && (communication.sum || communication.clip_first);
  const bool cuts = state.plan.microbatches > 1;
  if (!cuts && !scales) {
    state.graph = shard::with_shares(shard::without_declaration(std::move(state.graph)), 1);
    return;
  }
  const auto loss = shard::classify_loss(state.graph);
  state.loss = loss.kind;
  if (loss.kind == shard::LossKind::mixed) {
    fail("compile",
         "{} must be a mean or a sum over samples, but the proof ends at {}: where the loss is one "
         "nevertheless, declare it (model.loss in a job, Result::reduction in C++); where samples "
         "depend on each other, {}",
         cuts ? "a loss that is cut into microbatches"
              : "a loss whose gradients are not averaged over ranks",
         loss.ended,
         cuts ? "use one microbatch and no pipeline, which data and tensor parallelism allow"
              : "leave grad_comm's reduce and clip as they are");
  }
  auto averaged = shard::with_shares(shard::average_divisors(state.graph, loss.divisors),
                                     state.plan.microbatches);
  state.plan = with_names_of(std::move(state.plan), state.graph, averaged);
  state.graph = shard::without_declaration(std::move(averaged));
}

// Returns the plan without the parameters of units that its pipeline leaves whole.
plan::Plan without_whole(plan::Plan plan, const graph::Graph& graph) {
  if (!plan.pipeline.cuts() || plan.units.empty()) return plan;
  const StageInputs stages(graph, plan);
  for (auto& unit : plan.units) {
    std::erase_if(unit.parameters,
                  [&](const std::string& name) { return stages.stays_whole(name); });
  }
  return plan;
}

void widen(GraphState& state) {
  auto wide = widen_loss(state.graph);
  state.plan = with_names_of(std::move(state.plan), state.graph, wide);
  state.graph = std::move(wide);
}

void scale(GraphState& state) {
  if (!state.lowers_precision) return;
  state.before_casts = state.graph;
  state.graph = scale_loss(std::move(state.graph), state.plan.precision.loss_scale);
}

void insert_casts(GraphState& state) {
  if (!state.lowers_precision) return;
  state.graph = autocast(state.graph, without_whole(state.plan, state.before_casts));
}

void round_operands(GraphState& state) {
  if (!state.lowers_precision) return;
  state.graph = round_to_fp8(state.graph, state.plan, state.spec);
}

void mark(GraphState& state) {
  auto marked = state.transfers ? mark_transfers(state.graph, state.plan, *state.transfers)
                                : std::optional<graph::Graph>();
  if (state.lowers_precision) {
    state.plan = with_fp8_states(with_names_of(state.plan, state.before_casts, state.graph),
                                 state.graph);
  }
  if (marked) state.graph = std::move(*marked);
}

// -- Passes of a rank's graph

void partition(RankState& state) {
  state.local = shard::partition(state.common.graph, state.common.sharding, state.plan, state.rank);
}

void eliminate_unused(RankState& state) {
  auto& graph = state.local.graph;
  graph = graph::eliminate_common_subexpressions(graph::eliminate_dead_code(std::move(graph)));
}

void draw_by_sample(RankState& state) {
  if (state.plan.microbatches * plan::copies_of(state.plan) > 1) {
    set_batch_dims(state.local.graph, state.common.graph);
  }
}

// Returns the part of a pipeline of every node; nothing where there is none.
std::vector<int> parts_of(const RankState& state) {
  const auto& pipeline = state.plan.pipeline;
  return pipeline.cuts() ? plan::parts_of(state.local.graph, pipeline) : std::vector<int>();
}

void recompute_regions(RankState& state) {
  if (!state.recomputes) return;
  auto& graph = state.local.graph;
  graph = recompute(graph, state.plan.recompute, parts_of(state));
}

void repeat_casts(RankState& state) {
  if (state.plan.pipeline.cuts())
    state.local.graph = recast_parameters(std::move(state.local.graph));
}

// Returns whether gradients that are sums are split: the parts of a pipeline, and ops that wait
// for others, compute the summands in another order than the graph has them.
bool splits_gradients(const plan::Plan& plan) {
  return plan.loss_chunks > 1 || (!plan.pipeline.cuts() && !plan.overlap.weights);
}

void fold_rank_casts(RankState& state) {
  // With a pipeline, casts of summands decide in which type values are sent between stages.
  const auto summands = state.plan.pipeline.cuts()     ? FoldedSummands::none
                        : splits_gradients(state.plan) ? FoldedSummands::of_values
                                                       : FoldedSummands::all;
  state.local.graph = fold_casts(std::move(state.local.graph), summands);
}

// -- Passes to a draft and of a draft

// Changes the rank's graph, and that of the microbatches that keep their results.
void change(DraftState& s, const std::function<void(Local&)>& pass) {
  pass(s.local);
  if (!s.local.kept) return;
  Local kept = *s.local.kept;
  pass(kept);
  s.local.kept = std::make_shared<const Local>(std::move(kept));
}

void accumulate(DraftState& s) {
  // The chunks of a loss have a product each for the same gradient.
  const bool products = s.plan.overlap.accumulate || s.plan.loss_chunks > 1;
  accumulate_in_place(s.draft, products, s.traces);
}

void find_gathers(DraftState& s) {
  s.flats = s.plan.pipeline.cuts()
                ? plan::flats(s.plan, s.common.inputs->own(s.common.captured, s.rank), s.rank)
                : plan::flats(s.plan, s.common.captured, s.rank);
  s.gathers = place_gathers(s.local.graph.graph, s.plan, s.flats, s.stage());
}

void cut_sections(DraftState& s) {
  s.microbatches = cut_microbatches(s.local.graph.graph, s.plan.microbatches, s.common.loss);
  s.sections = make_micro_sections(s.microbatches.micro, s.stage(), false);
  s.source.emplace(Source{s.common.graph, s.local.graph, s.plan, s.spec, s.flats, s.rank,
                          s.sections, s.stage(), s.common.loss, s.common.transfers.get()});
}

void begin_draft(DraftState& s) {
  auto& program = s.draft.program;
  program.rank = s.rank;
  program.microbatches = s.plan.microbatches;
  program.model_copies = plan::copies_of(s.plan);
  if (program.model_copies > 1) {
    const auto copies = mesh::group_of(s.plan.mesh, s.plan.copy_axes, s.rank);
    program.model_copy = std::find(copies.begin(), copies.end(), s.rank) - copies.begin();
  }
  program.streams = {Stream::compute()};
  s.gradients = make_state(s.draft, *s.source, s.inputs);
}

void add_microbatches(DraftState& s) {
  make_microbatch_sections(s.draft, *s.source, s.microbatches, s.gradients, s.gathers, s.inputs,
                           s.accumulated, s.traces);
}

void add_kept_microbatches(DraftState& s) {
  if (!s.local.kept) return;
  auto kept = s.local.kept->graph;
  const auto* stage = &*s.local.kept->stage;
  const auto gathers = place_gathers(kept.graph, s.plan, s.flats, stage);
  const auto micro = cut_microbatches(kept.graph, s.plan.microbatches, s.common.loss);
  const auto sections = make_micro_sections(micro.micro, stage, true);
  const Source source{s.common.graph, kept,     s.plan, s.spec,        s.flats,
                      s.rank,         sections, stage,  s.common.loss, s.common.transfers.get()};
  make_microbatch_sections(s.draft, source, micro, gradients_of(source, *s.source, s.gradients),
                           gathers, s.inputs, s.accumulated, s.traces);
  s.draft.kept = s.stage()->kept;
}

void slice(DraftState& s) {
  if (s.common.slices_elsewhere && !plan::splits_more_than_batch(s.plan)) return;
  slice_products(s.draft, s.plan.mesh, s.plan.overlap, s.traces);
}

void follow_schedule(DraftState& s) {
  const auto* stage = s.stage();
  if (!stage) return;
  s.draft.order = s.common.schedule->orders[stage->index];
  s.draft.interleaved = stage->interleaved;
  s.draft.frames = stage->frames;
  s.draft.copies = stage->copies;
  share_receive_buffers(s.draft);
  s.draft.deferred = stage->deferred;
  wait_for_sends(s.draft);
}

}  // namespace

// clang-format off
const std::vector<Pass<GraphState>>& graph_passes() {
  static const std::vector<Pass<GraphState>> passes = {
      {"select_outputs", "removes the outputs that the step does not need",
       [](GraphState& s) { s.graph = select_outputs(std::move(s.graph), s.spec); }},
      {"rewrite", "replaces layers that the plan rewrites by one op each", rewrite},
      {"write_buffers_early", "makes new values of buffers in the forward pass", write_early},
      {"classify_loss", "finds whether the loss is a mean or a sum over samples, and averages its divisors", classify_loss},
      {"widen_loss", "computes a loss of 16 bits in float32", widen},
      {"scale_loss", "multiplies the gradient of the loss by the loss scale", scale},
      {"autocast", "inserts casts for the plan's precision", insert_casts},
      {"round_to_fp8", "rounds the operands of products to eight bits", round_operands},
      {"mark_transfers", "marks values that cross between stages of unequal submeshes", mark},
      {"propagate", "chooses the placements of all values",
       [](GraphState& s) { s.sharding = shard::propagate(s.graph, s.plan); }},
  };
  return passes;
}

const std::vector<Pass<RankState>>& rank_passes() {
  static const std::vector<Pass<RankState>> passes = {
      {"partition", "makes the graph local to the rank, with its collectives", partition},
      {"eliminate_unused", "removes dead nodes and common subexpressions", eliminate_unused},
      {"simplify_views", "removes views that undo each other",
       [](RankState& s) { s.local.graph = simplify_views(std::move(s.local.graph)); }},
      {"join_parts", "joins gradients of the parts of a tensor instead of padding and adding them",
       [](RankState& s) { s.local.graph = join_parts(s.local.graph); }},
      {"fuse_bias", "lets products add their bias",
       [](RankState& s) { s.local.graph = fuse_bias(s.local.graph, parts_of(s)); }},
      {"set_batch_dims", "makes random numbers independent of the number of microbatches", draw_by_sample},
      {"fold_casts", "lets additions, norms and rotary positions in float32 read and make a low precision",
       fold_rank_casts},
      {"chunk_loss", "computes the loss and its gradients in chunks of rows",
       [](RankState& s) {
         if (s.plan.loss_chunks > 1) s.local.graph = chunk_loss(s.local.graph, s.plan.loss_chunks);
       }},
      {"recompute", "recomputes the plan's regions in the backward pass", recompute_regions},
      {"recast_parameters", "repeats casts of parameters in the backward pass of a pipeline", repeat_casts},
      {"keep_buffers", "copies values of buffers that are read after new ones are written",
       [](RankState& s) { s.local.graph = keep_buffers(s.local.graph, has_stages(s.plan, false)); }},
  };
  return passes;
}

const std::vector<Pass<DraftState>>& draft_passes() {
  static const std::vector<Pass<DraftState>> passes = {
      {"split_gradients", "gives gradients that are sums to the step as their summands",
       [](DraftState& s) { if (splits_gradients(s.plan)) change(s, split_gradients); }},
      {"fuse_rows", "lets norms do additions and casts, GELU's gradient the sum of its rows, and casts magnitudes",
       [](DraftState& s) { change(s, [&](Local& local) { fuse_rows(local, s.plan.offload.activations); }); }},
      {"narrow_gradients", "gives gradients of a low precision to the step as they are",
       [](DraftState& s) { change(s, [&](Local& local) { narrow_gradients(local, s.plan, s.spec); }); }},
      {"place_gathers", "chooses when weights that are stored in parts are gathered", find_gathers},
      {"cut_microbatches", "separates the nodes of a microbatch, by section, from the prologue", cut_sections},
      {"make_state", "adds weights, gradients and optimizer state, in buckets and units", begin_draft},
      {"make_microbatch_sections", "lowers the nodes of a microbatch to instructions", add_microbatches},
      {"make_kept_sections", "does the same for microbatches that keep their activations", add_kept_microbatches},
      {"make_step_section", "adds the gradients' norm, clipping and the optimizer",
       [](DraftState& s) { make_step_section(s.draft, *s.source, s.gradients, s.microbatches.factor); }},
      {"make_average_sections", "adds averages of copies of the model",
       [](DraftState& s) { make_average_sections(s.draft, *s.source, s.gradients); }},
      {"keep_casts", "keeps casts of weights from step to step", [](DraftState& s) { keep_casts(s.draft, *s.source); }},
      {"receive_ahead", "receives a pipeline's messages one run early",
       [](DraftState& s) { if (s.plan.overlap.receives) receive_ahead(s.draft); }},
      {"accumulate_casts", "adds low-precision gradients to their sums without a cast",
       [](DraftState& s) { accumulate_casts(s.draft); }},
      {"accumulate_in_place", "makes products and gradients of embeddings add to gradients themselves", accumulate},
      {"find_waited", "finds collectives that Overlap::bulk does not hide",
       [](DraftState& s) { s.waited = find_waited(s.draft, s.plan.overlap.bulk); }},
      {"slice_products", "cuts products into slices that overlap with their collectives", slice},
      {"fuse_activations", "lets products compute GELU and its gradient",
       [](DraftState& s) { if (s.plan.overlap.activations) fuse_activations(s.draft, s.traces); }},
      {"sum_products", "makes products add to the values that their results are added to",
       [](DraftState& s) { sum_products(s.draft, s.traces); }},
      {"set_product_ways", "states how products are computed where the plan says it",
       [](DraftState& s) { set_product_ways(s.draft, s.plan.products, s.traces); }},
      {"offload_activations", "copies saved activations to host memory and back",
       [](DraftState& s) { offload_activations(s.draft, s.plan.offload); }},
      {"stage_host_state", "copies optimizer state from host memory and back",
       [](DraftState& s) { stage_host_state(s.draft, s.plan.offload); }},
      {"separate_gathers", "gives each all-gather of a unit a value of its own",
       [](DraftState& s) { separate_gathers(s.draft, s.gradients); }},
      {"separate_kept", "gives kept microbatches values of their own",
       [](DraftState& s) { separate_kept(s.draft); }},
      {"put_products_beside", "moves weight gradients to hide collectives",
       [](DraftState& s) { if (s.plan.communication.overlap) put_products_beside(s.draft); }},
      {"order_collectives", "starts collectives early and unpacks their results late",
       [](DraftState& s) { if (s.plan.communication.overlap) order_collectives(s.draft); }},
      {"wait_at_once", "waits for the collectives that find_waited found",
       [](DraftState& s) { wait_at_once(s.draft, s.waited); }},
      {"insert_waits", "waits for every other collective where its result is needed",
       [](DraftState& s) { insert_waits(s.draft); }},
      {"follow_schedule", "sets the order of a stage's sections and waits for its sends", follow_schedule},
      {"cut_exchanges", "cuts sections where interleaved microbatches alternate",
       [](DraftState& s) { if (s.stage() && s.plan.overlap.experts) cut_exchanges(s.draft); }},
      {"assign_memory", "assigns an address to every value",
       [](DraftState& s) { assign_memory(s.draft); }},
      {"finish", "cuts sections by first, middle and last microbatch",
       [](DraftState& s) { s.program = finish(std::move(s.draft)); }},
  };
  return passes;
}
// clang-format on

std::vector<std::string> list_passes() {
  std::vector<std::string> list;
  const auto add = [&](const char* level, const auto& passes) {
    for (const auto& pass : passes) {
      list.push_back(fmt::format("{}: {}: {}", level, pass.name, pass.purpose));
    }
  };
  add("graph", graph_passes());
  add("rank", rank_passes());
  add("draft", draft_passes());
  return list;
}

}  // namespace perigee::compile
