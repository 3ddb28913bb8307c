#include "lua/method/plan_parts.h"

#include "lua/method/part_traits.h"
#include "methods/precision/low_precision.h"
#include "schedule/schedule.h"

namespace perigee::lua {
namespace {

using methods::FieldTable;
using methods::low_dtype_names;

std::vector<std::string> float_names() {
  auto names = low_dtype_names();
  names.insert(names.end(), {"float32", "fp32", "float64"});
  return names;
}

}  // namespace

const FieldTable<plan::Recompute>& recompute_part() {
  using C = plan::Recompute;
  static const FieldTable<C> table(
      {{.name = "regions",
        .member = &C::regions,
        .doc = "a list of lists of scopes; the scopes of each are recomputed together"},
       {.name = "only",
        .member = &C::only,
        .otherwise = "all",
        .doc = "ops that are recomputed (`attention`, `aten::mm`)"},
       {.name = "keep", .member = &C::keep, .doc = "ops whose results are kept"},
       {.name = "keep_in",
        .member = &C::keep_in,
        .doc = "by the first scope of a region: the list that replaces keep there; an empty list: "
               "the whole region is recomputed"},
       {.name = "kept_microbatches",
        .member = &C::kept_microbatches,
        .at_least = 0,
        .doc = "with a pipeline: microbatches in flight on a stage that keep all their results"},
       {.name = "budget_bytes",
        .member = &C::budget_bytes,
        .at_least = 0,
        .doc = "memory limit of a rank, with which only as many regions are recomputed as needed; "
               "0: none"}});
  return table;
}

const FieldTable<plan::Offload>& offload_part() {
  using C = plan::Offload;
  static const FieldTable<C> table(
      {{.name = "activations",
        .member = &C::activations,
        .doc = "scopes or module types whose activations are in host memory until their backward "
               "pass"},
       {.name = "parameters",
        .member = &C::parameters,
        .doc = "offload the rank's parts of units of level 3"},
       {.name = "optimizer", .member = &C::optimizer, .doc = "offload optimizer state"},
       {.name = "prefetch",
        .member = &C::prefetch,
        .at_least = 0,
        .doc = "scopes, or ops that read offloaded memory, before their use at which the copy "
               "back starts"}});
  return table;
}

const FieldTable<plan::Overlap>& overlap_part() {
  using C = plan::Overlap;
  static const FieldTable<C> table(
      {{.name = "accumulate",
        .member = &C::accumulate,
        .doc = "matrix products accumulate into their gradient's buffer"},
       {.name = "activations",
        .member = &C::activations,
        .doc = "products of 16 bits compute the tanh form of GELU after them, and its gradient"},
       {.name = "step",
        .member = &C::step,
        .doc = "a bucket's optimizer step starts when the bucket is reduced"},
       {.name = "receives",
        .member = &C::receives,
        .doc = "a pipeline's messages are received while the preceding section runs"},
       {.name = "slices",
        .member = &C::slices,
        .at_least = 1,
        .doc = "slices of a matrix product that overlap the collectives of its rows"},
       {.name = "sliced",
        .member = &C::sliced,
        .allowed = C::all_sliced(),
        .doc = "products that are sliced: those whose input rows are all-gathered, whose results "
               "are reduced in the forward pass, and in the backward pass"},
       {.name = "whole", .member = &C::whole, .doc = "scopes whose products are not sliced"},
       {.name = "bulk",
        .member = &C::bulk,
        .allowed = C::all_bulk(),
        .doc = "collectives over tensor axes in the backward pass that overlap independent "
               "products, unsliced"},
       {.name = "experts",
        .member = &C::experts,
        .doc = "interleaved microbatches: the expert all-to-all overlaps another's compute"},
       {.name = "weights",
        .member = &C::weights,
        .doc = "weight gradients are computed in the stage's bubble"},
       {.name = "deferred",
        .member = &C::deferred,
        .doc = "parameters whose gradients on the last stage are deferred to the end of its "
               "schedule"},
       {.name = "deferred_limit",
        .member = &C::deferred_limit,
        .at_least = 0,
        .doc = "number of microbatches, from the first, for which it applies; 0: all"}});
  return table;
}

const FieldTable<plan::Communication>& communication_part() {
  using C = plan::Communication;
  static const FieldTable<C> table(
      {{.name = "bucket_bytes",
        .member = &C::bucket_bytes,
        .at_least = 1,
        .doc = "smallest size of a bucket of gradients"},
       {.name = "overlap",
        .member = &C::overlap,
        .doc = "start a bucket as soon as its last gradient is complete"},
       {.name = "buckets",
        .member = &C::buckets,
        .at_least = 0,
        .doc = "the most buckets with the same type and axes; 0: no limit"},
       {.name = "communicators",
        .member = &C::communicators,
        .at_least = 1,
        .at_most = 64,
        .doc = "streams among which the buckets of an axis group alternate"},
       {.name = "reduce_dtype",
        .member = &C::reduce_dtype,
        .otherwise = "the gradients' own type",
        .allowed = low_dtype_names(),
        .doc = "gradients are reduced in this type"},
       {.name = "reduce_scale",
        .member = &C::reduce_scale,
        .above = 0,
        .below = 1e30,
        .doc = "with reduce_dtype: factor of the gradients while they are reduced"},
       {.name = "sum",
        .member = &C::sum,
        .doc = "gradients of a mean loss are summed instead of averaged"},
       {.name = "clip_first",
        .member = &C::clip_first,
        .doc = "each data rank clips its own gradient before the reduction"},
       {.name = "prefetch_forward",
        .member = &C::prefetch_forward,
        .at_least = 0,
        .doc = "units of level 3 that are gathered ahead in the forward pass"},
       {.name = "prefetch_backward",
        .member = &C::prefetch_backward,
        .at_least = 0,
        .doc = "units of level 3 that are gathered ahead in the backward pass"},
       {.name = "prefetch_bytes",
        .member = &C::prefetch_bytes,
        .at_least = 0,
        .doc = "most bytes of prefetched units; 0: no limit"}});
  return table;
}

const FieldTable<plan::Pipeline>& pipeline_part() {
  using C = plan::Pipeline;
  const auto names = schedule_names();
  static const FieldTable<C> table(
      {{.name = "axis",
        .member = &C::axis,
        .doc = "the axis of the mesh whose positions are the stages"},
       {.name = "starts",
        .member = &C::starts,
        .doc = "the scopes at which the parts after the first begin, in forward order: one fewer "
               "than parts"},
       {.name = "chunks",
        .member = &C::chunks,
        .otherwise = "the schedule's: 2 for V schedules, else 1",
        .at_least = 1,
        .doc = "parts of a stage"},
       {.name = "schedule",
        .member = &C::schedule,
        .allowed = {names.begin(), names.end()},
        .doc = "order of forward and backward passes on each stage"},
       {.name = "group",
        .member = &C::group,
        .at_least = 0,
        .doc = "interleaved: microbatches that a chunk runs in a row; 0: as many as stages"},
       {.name = "extra",
        .member = &C::extra,
        .at_least = 0,
        .doc = "1f1b: additional microbatches in flight"},
       {.name = "dtype",
        .member = &C::dtype,
        .otherwise = "the values' own types",
        .allowed = float_names(),
        .doc = "type to which messages between stages are cast"},
       {.name = "forward",
        .member = &C::forward,
        .above = 0,
        .doc = "time of a forward pass of a stage, for schedules that are found by a search"},
       {.name = "backward",
        .member = &C::backward,
        .above = 0,
        .doc = "time of a pass of input gradients, in the same unit"},
       {.name = "weights",
        .member = &C::weights,
        .above = 0,
        .doc = "time of a pass of weight gradients, in the same unit"},
       {.name = "transfer",
        .member = &C::transfer,
        .at_least = 0,
        .doc = "time of a message to the next stage, in the same unit"}});
  return table;
}

const FieldTable<plan::LossScale>& loss_scale_part() {
  using C = plan::LossScale;
  static const FieldTable<C> table(
      {{.name = "kind",
        .member = &C::kind,
        .allowed = {"none", "fixed", "dynamic", "given"},
        .doc = "`fixed`: init_scale; `dynamic`: changes with non-finite steps; `given`: by "
               "events.loss_scale"},
       {.name = "init_scale", .member = &C::init_scale, .above = 0, .doc = "initial scale"},
       {.name = "growth_factor",
        .member = &C::growth_factor,
        .above = 1,
        .doc = "factor after growth_interval finite steps"},
       {.name = "backoff_factor",
        .member = &C::backoff_factor,
        .above = 0,
        .below = 1,
        .doc = "factor after a non-finite step"},
       {.name = "growth_interval",
        .member = &C::growth_interval,
        .at_least = 1,
        .doc = "consecutive finite steps after which the scale grows"},
       {.name = "min_scale", .member = &C::min_scale, .at_least = 0, .doc = "lower limit"},
       {.name = "hysteresis",
        .member = &C::hysteresis,
        .at_least = 1,
        .doc = "non-finite steps from which on each reduces the scale"}});
  return table;
}

const FieldTable<plan::Precision>& precision_part() {
  using C = plan::Precision;
  static const FieldTable<C> table(
      {{.name = "dtype",
        .member = &C::dtype,
        .otherwise = "none: ops compute as captured",
        .allowed = low_dtype_names(),
        .doc = "the low precision"},
       {.name = "parameters",
        .member = &C::parameters,
        .allowed = {"as_captured", "masters", "low"},
        .doc = "how parameters are stored: as captured, in float32 and read in dtype, or in dtype"},
       {.name = "gradients",
        .member = &C::gradients,
        .otherwise = "dtype with one microbatch, float32 with several",
        .allowed = float_names(),
        .doc = "type of gradient buffers where parameters are not as captured"},
       {.name = "allow", .member = &C::allow, .doc = "further ops that compute in dtype"},
       {.name = "deny", .member = &C::deny, .doc = "further ops that compute in float32"},
       {.name = "promote",
        .member = &C::promote,
        .doc = "further ops that compute in the widest type of their operands"},
       {.name = "scopes",
        .member = &C::scopes,
        .otherwise = "all",
        .doc = "scopes or module types; ops outside of them compute as captured"},
       {.name = "keep_weights",
        .member = &C::keep_weights,
        .doc = "keep weights in dtype beside float32 weights from step to step"},
       {.name = "skip_nonfinite",
        .member = &C::skip_nonfinite,
        .doc = "skip the update of a step with a non-finite gradient"},
       {.name = "loss_scale",
        .member = &C::loss_scale,
        .doc = "a perigee.LossScale: factor of the loss in the backward pass"}});
  return table;
}

const FieldTable<plan::Unit>& unit_part() {
  using C = plan::Unit;
  static const FieldTable<C> table(
      {{.name = "name", .member = &C::name, .required = true, .doc = "for messages and reports"},
       {.name = "parameters",
        .member = &C::parameters,
        .required = true,
        .doc = "names or patterns (`blocks.0.**`) of parameters, each in one unit, in this order"},
       {.name = "axes",
        .member = &C::axes,
        .required = true,
        .doc = "the axes over which the unit is cut into parts: `data`, or a list"},
       {.name = "level",
        .member = &C::level,
        .at_least = 1,
        .at_most = 3,
        .doc = "sharded are 1: optimizer state, 2: and gradients, 3: and parameters"},
       {.name = "reshard_after_forward",
        .member = &C::reshard_after_forward,
        .doc = "level 3: free after the forward pass and re-gather for the backward pass"},
       {.name = "one_copy",
        .member = &C::one_copy,
        .doc =
            "levels 1 and 2: the ranks of the axes, on one host, hold one copy of the parameters "
            "in memory that all of them map"}});
  return table;
}

std::vector<PlanPart> plan_parts() {
  return {
      {"perigee.Recompute",
       "Activation checkpointing: forward ops that are recomputed in the backward pass.",
       &recompute_part().fields(),
       "a scope (`blocks.*`) or module type, of which each match is a region; excludes regions"},
      {"perigee.Offload", "Tensors in host memory.", &offload_part().fields(),
       "a scope or module type, as in activations"},
      {"perigee.Overlap", "Overlap of compute and communication.", &overlap_part().fields()},
      {"perigee.Communication", "How gradients are reduced and units gathered.",
       &communication_part().fields()},
      {"perigee.Pipeline", "Pipeline stages.", &pipeline_part().fields()},
      {"perigee.Precision", "Mixed precision.", &precision_part().fields()},
      {"perigee.LossScale", "The scale of the loss, with the names of torch.amp.GradScaler.",
       &loss_scale_part().fields()},
      {"perigee.Unit", "Parameters that are stored together in parts (ZeRO, FSDP).",
       &unit_part().fields()}};
}

}  // namespace perigee::lua
