// The section "step": the gradients' norm, clipping, the optimizer.
#include "compile/gradients/step.h"

#include <algorithm>
#include <functional>
#include <map>
#include <ranges>

#include "base/fail.h"
#include "compile/draft/collective.h"
#include "compile/draft/layout.h"
#include "compile/draft/source.h"
#include "compile/gradients/elementwise_step.h"
#include "compile/gradients/gradients.h"
#include "compile/gradients/loss_scale.h"
#include "compile/gradients/reduce.h"
#include "compile/gradients/state.h"
#include "compile/gradients/tensor_step.h"
#include "compile/gradients/units.h"

namespace perigee::compile {

using graph::DType;
using graph::TensorType;

namespace {

const TensorType kScalar{DType::float64, {}};

using Args = std::vector<std::pair<std::string, graph::Arg>>;

// Returns the axes of several ranks that shard the batch, in the mesh's order.
mesh::AxisSet data_axes(const Source& source) {
  mesh::AxisSet axes;
  for (const auto& axis : source.plan.batch_axes) {
    if (source.plan.mesh.size_of(axis) > 1) axes.insert(axis);
  }
  return axes.joined({}, source.plan.mesh);
}

// Returns the axes that separate copies of the model.
mesh::AxisSet copies_apart(const Source& source) {
  return plan::copies_of(source.plan) > 1 ? source.plan.copy_axes.joined({}, source.plan.mesh)
                                          : mesh::AxisSet();
}

ValueId scalar(Draft& draft, Binding::Kind kind, const std::string& name) {
  if (const auto* known = draft.program.find(kind, name)) return known->value;
  Binding binding;
  binding.kind = kind;
  binding.name = name;
  binding.value = draft.add(kScalar, name, {Home::Kind::persistent});
  draft.bind(binding);
  return binding.value;
}

// Returns whether this stage counts the parameter in the norm: the first stage that has it.
bool counts(const Source& source, const Gradients::Parameter& parameter) {
  if (!source.stage) return true;
  const auto shared = source.stage->shared.find(source.local.graph.inputs[parameter.input].name);
  return shared == source.stage->shared.end() || shared->second.front() == source.stage->index;
}

// Returns whether this rank contributes for its stage to sums over stages. Stages of unequal
// submeshes have no groups over the pipeline's axis, so all ranks sum and one rank of each
// stage contributes.
bool represents_stage(const Source& source) {
  if (!source.transfers) return true;
  const auto& mesh = source.transfers->mesh;
  return mesh::ranks_of_stage(mesh, mesh::stage_of(mesh, source.rank)).front() == source.rank;
}

Stream over_stages(const Source& source) {
  mesh::AxisSet axes;
  if (!source.transfers) axes.insert(source.plan.pipeline.axis);
  for (const auto& axis : source.plan.mesh.axes) {
    if (source.transfers) axes.insert(axis.name);
  }
  return Stream::over(std::move(axes));
}

// Returns the stream of the stages that have a bucket's parameters.
Stream stages_of(const Source& source, const Bucket& bucket) {
  return Stream::of_stages(source.plan.pipeline.axis, bucket.stages);
}

// Appends the instructions that set a scalar to zero.
void clear(Draft& draft, ValueId v, std::vector<DraftInstruction>& out) {
  const ValueId zero = draft.add(draft.value(v).type, "no " + draft.value(v).name.text);
  out.push_back(plain(draft, "perigee::full", {{"value", 0.0}}, {zero}));
  out.push_back(in_place("perigee::copy_", {{"self", v}, {"source", zero}}, {v}));
}

// Appends the sum of squares of all gradients: units first, then the others by the time at which
// they become ready, in whatever buckets they are, the last ones first, which are in a cache. The
// optimizer's steps then begin with those that the norm has read last. Sums of sharded gradients are
// all-reduced over the axes that shard them.
ValueId squared_norm(Draft& draft, const Source& source, const Gradients& gradients,
                     std::vector<DraftInstruction>& out) {
  std::map<mesh::AxisSet, std::vector<ValueId>, mesh::TextOrder> by_axes;
  for (const auto& bucket : gradients.buckets) {
    if (!bucket.part.defined()) continue;
    const auto& flat = gradients.flats[bucket.flat];
    const TensorType held{bucket.dtype, {flat.held()}};
    by_axes[flat.unit->axes.joined(flat.shard_axes, source.plan.mesh)].push_back(
        draft.add_view(bucket.part, 0, held, {1}, draft.value(bucket.part).name));
  }
  std::vector<const Gradients::Parameter*> newest;
  for (const auto& parameter : gradients.parameters | std::views::reverse) {
    if (gradients.buckets[parameter.bucket].level == 0 && counts(source, parameter)) {
      newest.push_back(&parameter);
    }
  }
  std::ranges::stable_sort(newest, std::greater(), [&](const Gradients::Parameter* parameter) {
    return source.local.graph.values[parameter->gradient.index].producer;
  });
  for (const auto* parameter : newest) {
    by_axes[parameter->shard_axes].push_back(parameter->value);
  }
  ValueId total;
  const ValueName name("squared_norm", ValueRole::squared_norm, "");
  for (auto& [axes, values] : by_axes) {
    const Home home = axes.empty()
                          ? Home{}
                          : Home{Home::Kind::communication, draft.number_of(Stream::over(axes))};
    const ValueId part = draft.add(kScalar, name, home);
    out.push_back(plain(draft, "perigee::squared_norm", {{"tensors", std::move(values)}}, {part}));
    if (!axes.empty()) out.push_back(all_reduce(draft, part, Stream::over(axes), "sum"));
    if (!total.defined()) {
      total = part;
    } else {
      out.push_back(in_place("perigee::accumulate_", {{"self", total}, {"other", part}}, {total}));
    }
  }
  if (!source.plan.pipeline.cuts()) return total;
  if (!total.defined() || !represents_stage(source)) {
    total = draft.add(kScalar, name);
    out.push_back(plain(draft, "perigee::full", {{"value", 0.0}}, {total}));
  }
  out.push_back(all_reduce(draft, total, over_stages(source), "sum"));
  return total;
}

// With a pipeline: sends the loss from the stage that computes it to all others, by a sum
// with zeros.
void share_loss(Draft& draft, const Source& source, std::vector<DraftInstruction>& out) {
  const auto* known = draft.program.find(Binding::Kind::result, "loss");
  ValueId loss = known ? known->value : ValueId{};
  if (!known) {
    const auto* whole = source.whole.find_output(graph::Output::Kind::loss, "");
    for (const auto& output : source.whole.outputs) {
      if (output.kind == graph::Output::Kind::loss) whole = &output;
    }
    if (!whole) return;
    Binding binding{.kind = Binding::Kind::result, .name = "loss"};
    loss = binding.value = draft.add(source.whole.type(whole->value), "loss",
                                     {Home::Kind::persistent});
    draft.bind(std::move(binding));
    clear(draft, loss, out);
  } else if (!represents_stage(source)) {
    clear(draft, loss, out);
  }
  out.push_back(all_reduce(draft, loss, over_stages(source), "sum"));
}

// Sums the contributions of stages of unequal submeshes to a gradient that has a bucket of its own.
// The all-reduce is over the whole gradient: for each box, one rank of each stage contributes.
void add_share(Draft& draft, const Source& source, const Gradients& gradients, const Bucket& bucket,
               std::vector<DraftInstruction>& out) {
  const auto& parameter = gradients.parameters[bucket.parameters.front()];
  const auto& input = source.local.graph.inputs[parameter.input];
  const auto& placements = source.local.inputs[parameter.input];
  const TensorType whole{bucket.gradient_dtype,
                         source.whole.type(source.whole.find_input(input.name)->value).shape};
  const auto box_of = [&](int64_t rank) {
    return mesh::local_ranges(whole.shape, placements, source.plan.mesh, rank);
  };
  const auto own = box_of(source.rank);
  const auto& mesh = source.transfers->mesh;
  const auto peers = mesh::ranks_of_stage(mesh, mesh::stage_of(mesh, source.rank));
  const auto first = *std::find_if(peers.begin(), peers.end(),
                                   [&](int64_t rank) { return box_of(rank) == own; });
  ValueId sum = bucket.gradients, box = bucket.gradients;
  if (bucket.elements != whole.numel()) {
    sum = draft.add(whole, "sum of " + input.name);
    out.push_back(plain(draft, "perigee::full", {{"value", 0.0}}, {sum}));
    const auto strides = contiguous_strides(whole.shape);
    int64_t offset = 0;
    for (size_t d = 0; d < own.size(); ++d) offset += own[d].begin * strides[d];
    box = draft.add_view(sum, offset * static_cast<int64_t>(graph::size_of(whole.dtype)),
                         {whole.dtype, source.local.graph.type(input.value).shape}, strides,
                         "box of " + input.name);
    if (first == source.rank) {
      out.push_back(
          in_place("perigee::copy_", {{"self", box}, {"source", parameter.value}}, {box}));
    }
  } else if (first != source.rank) {
    const ValueId zero = draft.add(kScalar, "nothing");
    out.push_back(plain(draft, "perigee::full", {{"value", 0.0}}, {zero}));
    out.push_back(in_place("perigee::scale_", {{"self", sum}, {"scale", zero}}, {sum}));
  }
  out.push_back(all_reduce(draft, sum, stages_of(source, bucket), "sum"));
  if (sum == bucket.gradients) return;
  out.push_back(
      in_place("perigee::copy_", {{"self", parameter.value}, {"source", box}}, {parameter.value}));
}

// Sums the gradients of parameters that several stages have.
void add_shares(Draft& draft, const Source& source, const Gradients& gradients,
                std::vector<DraftInstruction>& out) {
  std::vector<const Bucket*> shared;
  for (const auto& bucket : gradients.buckets) {
    if (!bucket.stages.empty()) shared.push_back(&bucket);
  }
  // The order in which gradients become ready differs by stage; names give a common order.
  const auto name = [&](const Bucket* bucket) {
    const auto& parameter = gradients.parameters[bucket->parameters.front()];
    return source.local.graph.inputs[parameter.input].name;
  };
  std::stable_sort(shared.begin(), shared.end(),
                   [&](const Bucket* a, const Bucket* b) { return name(a) < name(b); });
  for (const auto* bucket : shared) {
    if (source.transfers) {
      add_share(draft, source, gradients, *bucket, out);
    } else {
      out.push_back(all_reduce(draft, bucket->gradients, stages_of(source, *bucket), "sum"));
    }
  }
}

// Appends the examination of the loss and the gradients' norm, which are the same on all ranks: the
// scale of the gradients becomes NaN where the step must change nothing.
void examine(Draft& draft, ValueId scale, ValueId norm, std::vector<DraftInstruction>& out) {
  Args args{{"scale", scale}, {"norm", norm}};
  if (const auto* loss = draft.program.find(Binding::Kind::result, "loss")) {
    args.emplace_back("loss", loss->value);
  }
  args.emplace_back("most_loss", scalar(draft, Binding::Kind::scalar, "most_loss"));
  args.emplace_back("most_norm", scalar(draft, Binding::Kind::scalar, "most_norm"));
  out.push_back(in_place("perigee::examine_step_", std::move(args), {scale}));
}

// Throws Error where buckets are stepped early (Overlap::step) but the step depends on
// all gradients.
void check_early(const Source& source, const LossScaleState& guard) {
  if (source.spec.clip_norm.value_or(0.0) > 0) {
    fail("overlap",
         "a bucket that is stepped before all gradients are computed cannot be clipped by their "
         "norm, but clip_norm is {}: leave it out, or step = true",
         *source.spec.clip_norm);
  }
  if (guard.value.defined()) {
    fail(
        "overlap",
        "a bucket that is stepped before all gradients are computed cannot be skipped where one of "
        "them is not finite: leave out the loss scale, skip_nonfinite and the keys of the job that "
        "skip steps (train.skip_bad_steps, skip_steps, rerun), or step = true");
  }
  if (steps_by_tensor(source.spec)) {
    fail("overlap", "step = true steps buckets, but {} steps whole parameters: leave it out",
         source.spec.optimizer);
  }
}

std::vector<const Bucket*> all_of(const std::vector<Bucket>& buckets) {
  std::vector<const Bucket*> list;
  for (const auto& bucket : buckets) list.push_back(&bucket);
  return list;
}

// Returns the buckets in the order of their reductions; buckets that are not reduced are first.
std::vector<const Bucket*> by_reduction(const Draft& draft, const std::vector<Bucket>& buckets) {
  std::map<int32_t, int64_t> last;  // by root: the last collective that reads it
  int64_t position = 0;
  for (const auto& section : draft.sections) {
    for (const auto& part : section.instructions) {
      ++position;
      if (part.instruction.kind != Instruction::Kind::collective) continue;
      each_operand(part.instruction, [&](ValueId v) { last[draft.root(v).index] = position; });
    }
  }
  auto list = all_of(buckets);
  const auto reduced = [&](const Bucket* bucket) {
    int64_t at = 0;
    for (const ValueId v : {bucket->gradients, bucket->part, bucket->low}) {
      if (!v.defined()) continue;
      if (const auto found = last.find(draft.root(v).index); found != last.end()) {
        at = std::max(at, found->second);
      }
    }
    return at;
  };
  std::stable_sort(list.begin(), list.end(),
                   [&](const Bucket* a, const Bucket* b) { return reduced(a) < reduced(b); });
  return list;
}

// With copies of the model: averages the loss over them.
void average_loss(Draft& draft, const Source& source, std::vector<DraftInstruction>& out) {
  const auto axes = copies_apart(source);
  const auto* loss = draft.program.find(Binding::Kind::result, "loss");
  if (axes.empty() || !loss) return;
  out.push_back(all_reduce(draft, loss->value, Stream::over(axes), "avg"));
}

struct Scales {
  double factor = 1;  // of gradients summed over microbatches (and ranks, without clip_first)
  std::string reduce = "sum";  // reduction of gradients that each rank has clipped
};

Scales scales_of(const Source& source, double factor) {
  const auto& communication = source.plan.communication;
  Scales scales{factor};
  if (source.loss != shard::LossKind::mean) return scales;
  const auto ranks = static_cast<double>(
      mesh::group_size(source.plan.mesh, source.plan.batch_axes));
  if (communication.sum) scales.factor *= static_cast<double>(source.plan.microbatches);
  if (clips_first(source)) {
    scales.factor *= ranks;  // of the rank's own samples only
    scales.reduce = communication.sum ? "sum" : "avg";
  } else if (communication.sum) {
    scales.factor *= ranks;
  }
  return scales;
}

// Reduces gradients that each rank has multiplied by its own scale.
void reduce_clipped(Draft& draft, const Source& source, const Gradients& gradients, ValueId scale,
                    const std::string& reduce, std::vector<DraftInstruction>& out) {
  const auto axes = data_axes(source);
  for (const auto& bucket : gradients.buckets) {
    if (bucket.axes != axes) {
      const auto& parameter = gradients.parameters[bucket.parameters.front()];
      fail("compile",
           "a rank that clips before the reduction has a gradient of its samples alone, over {}, "
           "but that of {} is {}: clip after the reduction",
           axes.text(), source.local.graph.inputs[parameter.input].name,
           bucket.axes.empty() ? "reduced already" : "a part over " + bucket.axes.text());
    }
    out.push_back(in_place("perigee::scale_", {{"self", bucket.gradients}, {"scale", scale}},
                           {bucket.gradients}));
    start_reduction(draft, source, bucket, reduce, kAlways, out);
  }
  for (const auto& bucket : gradients.buckets) end_reduction(source, bucket, out);
}

}  // namespace

void make_step_section(Draft& draft, const Source& source, const Gradients& gradients,
                       double factor) {
  const auto& spec = source.spec;
  DraftSection section{{.kind = SectionKind::step}, false, {}};
  auto& out = section.instructions;
  const bool first = clips_first(source);
  const auto* optimizer = optimizer_of(spec);
  const bool early = source.plan.overlap.step && optimizer;
  const auto scales = scales_of(source, factor);
  for (const auto& bucket : gradients.buckets) {
    if (!first && (!early || !bucket.stages.empty())) end_reduction(source, bucket, out);
  }
  if (source.plan.pipeline.cuts()) share_loss(draft, source, out);
  average_loss(draft, source, out);
  if (source.stage) add_shares(draft, source, gradients, out);
  if (!any_stage_trains(source)) {
    if (!out.empty()) draft.sections.push_back(std::move(section));
    return;
  }
  const auto& guard = gradients.loss_scale;
  // Appends the gradients' norm; returns the scale of the gradients.
  const auto measure = [&](const char* name) {
    const ValueId squared = squared_norm(draft, source, gradients, out);
    const ValueId norm = scalar(draft, Binding::Kind::result, "grad_norm");
    const ValueId to = draft.add(kScalar, name);
    Args clip{{"squared_norm", squared}};
    if (guard.value.defined()) clip.emplace_back("loss_scale", guard.value);
    clip.emplace_back("max_norm", spec.clip_norm.value_or(0.0));
    clip.emplace_back("factor", scales.factor);
    const ValueId own = first ? draft.add(kScalar, "scale of a rank") : to;
    out.push_back(plain(draft, "perigee::clip_scale", std::move(clip), {norm, own}));
    if (first) {
      reduce_clipped(draft, source, gradients, own, scales.reduce, out);
      out.push_back(plain(draft, "perigee::full", {{"value", 1.0}}, {to}));
    }
    const auto unequal_axes = first ? data_axes(source) : copies_apart(source);
    if (!unequal_axes.empty())
      out.push_back(all_reduce(draft, norm, Stream::over(unequal_axes), "avg"));
    if (guard.value.defined()) {
      if (spec.guarded) examine(draft, to, norm, out);
      const auto& loss_scale = source.plan.precision.loss_scale;
      // Without a loss scale the norm after its average: copies of the model skip the same steps.
      const bool scales = loss_scale.kind != plan::LossScale::Kind::none;
      update_loss_scale(guard, loss_scale, scales ? squared : norm,
                        scalar(draft, Binding::Kind::scalar, "step"), spec.guarded ? to : ValueId{},
                        out);
      for (const auto& [input, kept] : gradients.kept_buffers) {
        out.push_back(in_place("perigee::restore_",
                               {{"self", kept.buffer}, {"source", kept.before}, {"scale", to}},
                               {kept.buffer}));
      }
    }
    return to;
  };
  ValueId scale;
  if (early) {
    check_early(source, guard);
    scale = draft.add(kScalar, "scale");
    out.push_back(plain(draft, "perigee::full", {{"value", scales.factor}}, {scale}));
  } else {
    scale = measure("scale");
  }
  const bool guarded = guard.value.defined();
  const auto learning_rate = [&](int32_t group) {
    return scalar(draft, Binding::Kind::scalar, "lr." + std::to_string(group));
  };
  const auto step_number = [&] {
    return guarded ? guard.applied_step : scalar(draft, Binding::Kind::scalar, "step");
  };
  const auto weight_decay = [&](int32_t group) -> graph::Arg {
    if (spec.weight_decay_varies) {
      return scalar(draft, Binding::Kind::scalar, "weight_decay." + std::to_string(group));
    }
    return group == 0 ? spec.weight_decay
                      : spec.groups[group - 1].weight_decay.value_or(spec.weight_decay);
  };
  const auto step = [&](const Bucket::Share& share) {
    if (!optimizer) {
      out.push_back(in_place("perigee::scale_", {{"self", share.gradients}, {"scale", scale}},
                             {share.gradients}));
      return;
    }
    ElementwiseUpdate update{.weights = share.weights,
                             .states = share.states,
                             .gradients = share.gradients,
                             .learning_rate = learning_rate(share.group),
                             .weight_decay = {},
                             .noise = share.noise};
    const StepValues values{.scale = scale, .step = step_number(), .guarded = guarded};
    update.weight_decay = weight_decay(share.group);
    if (share.noise.defined()) {
      out.push_back(plain(draft, "perigee::random", share.draw, {share.noise}));
    }
    out.push_back(elementwise_update(*optimizer, spec, std::move(update), values));
  };
  if (steps_by_tensor(spec)) {
    const StepValues values{.scale = scale, .step = step_number(), .guarded = guarded};
    make_tensor_step(draft, source, gradients, values, learning_rate, weight_decay, out);
  }
  const auto order = early ? by_reduction(draft, gradients.buckets) : all_of(gradients.buckets);
  for (const auto* in_order : order) {
    const auto& bucket = *in_order;
    if (early && bucket.stages.empty()) end_reduction(source, bucket, out);
    for (const auto& share : bucket.shares) step(share);
    if (bucket.part.defined() && !bucket.gathered.defined() && optimizer &&
        !gradients.flats[bucket.flat].unit->one_copy) {
      out.push_back(gather_stepped(draft, gradients, bucket));
    }
  }
  if (optimizer) end_unit_steps(draft, gradients, out);
  if (early) measure("scale of nothing");
  draft.sections.push_back(std::move(section));
}

}  // namespace perigee::compile
