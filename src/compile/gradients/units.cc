// Units (plan::Unit), parameters that are stored in parts: a rank's part of weights, gradients and
// optimizer state, and the collectives that gather and reduce the parts.
#include "compile/gradients/units.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/fail.h"
#include "compile/draft/collective.h"
#include "compile/draft/layout.h"
#include "compile/draft/source.h"
#include "compile/gradients/gathers.h"
#include "compile/gradients/gradients.h"
#include "compile/gradients/reduce.h"
#include "compile/gradients/state.h"
#include "compile/gradients/tensor_step.h"

namespace perigee::compile {

using graph::Input;
using graph::Output;
using graph::TensorType;

namespace {

int64_t item_bytes(graph::DType dtype) { return static_cast<int64_t>(graph::size_of(dtype)); }

ValueId elements_of(Draft& draft, ValueId flat, int64_t begin, int64_t count) {
  const auto dtype = draft.value(flat).type.dtype;
  return draft.add_view(flat, begin * item_bytes(dtype), {dtype, {count}}, {1},
                        draft.value(flat).name);
}

// Returns a collective between a unit's flat buffer and its equal parts, with its workspace, on a
// stream over its axes.
DraftInstruction collective(Draft& draft, const plan::FlatUnit& flat, const Stream& stream,
                            std::string op, std::vector<std::pair<std::string, graph::Arg>> args,
                            ValueId output) {
  args.emplace_back("axis", stream.name());
  args.emplace_back("dim", int64_t{0});
  const std::vector<int64_t> counts(static_cast<size_t>(flat.parts), flat.part);
  args.emplace_back("counts", counts);
  std::vector<ValueId> outputs{output};
  if (const int64_t elements = workspace_elements(op, counts); elements > 0) {
    outputs.push_back(draft.add({draft.value(output).type.dtype, {elements}},
                                flat.name + " workspace",
                                {Home::Kind::communication, draft.number_of(stream)}));
  }
  DraftInstruction result = in_place(std::move(op), std::move(args), std::move(outputs));
  result.instruction.in_place = false;
  result.instruction.kind = Instruction::Kind::collective;
  result.instruction.stream = draft.number_of(stream);
  result.instruction.event = draft.program.events++;
  return result;
}

// Cuts the rank's part into runs of trained parameters of one optimizer group.
std::vector<Bucket::Share> shares_of(Draft& draft, const Source& source, const Gradients& gradients,
                                     const Bucket& bucket) {
  const auto& flat = gradients.flats[bucket.flat];
  struct Run {
    int32_t group;
    int64_t begin, end;
  };
  std::vector<Run> runs;
  for (size_t k = 0; k < flat.members.size(); ++k) {
    const auto& member = flat.members[k];
    if (!gradients.parameters[bucket.parameters[k]].gradient.defined()) continue;
    const int64_t begin = std::max(member.offset, flat.begin) - flat.begin;
    const int64_t end = std::min(member.offset + member.elements, flat.begin + flat.part) -
                        flat.begin;
    if (begin >= end) continue;
    const int32_t group = group_of(source.spec, member.name);
    if (!runs.empty() && runs.back().group == group && runs.back().end == begin) {
      runs.back().end = end;
    } else {
      runs.push_back({group, begin, end});
    }
  }
  std::vector<Bucket::Share> shares;
  for (const auto& run : runs) {
    const auto piece = [&](ValueId of) {
      return of.defined() ? elements_of(draft, of, run.begin, run.end - run.begin) : ValueId{};
    };
    auto& share = shares.emplace_back(
        Bucket::Share{run.group, piece(bucket.own), piece(bucket.part), {}, {}, {}});
    for (const auto state : bucket.states) share.states.push_back(piece(state));
  }
  return shares;
}

}  // namespace

void collect_units(const Source& source, Gradients& gradients) {
  const auto& graph = source.local.graph;
  const auto& mesh = source.plan.mesh;
  gradients.flats = source.flats;
  for (size_t f = 0; f < gradients.flats.size(); ++f) {
    const auto& flat = gradients.flats[f];
    Bucket bucket;
    bucket.dtype = flat.dtype;
    bucket.flat = static_cast<int32_t>(f);
    bucket.level = flat.unit->level;
    bucket.elements = flat.parts * flat.part;
    bool trained = false;
    std::vector<mesh::AxisSet> rests;  // Partial axes other than the unit's, per member
    for (const auto& member : flat.members) {
      if (source.stage && source.stage->shared.contains(member.name)) {
        fail("compile",
             "a parameter that several stages of a pipeline have must be in no unit, but {} is in "
             "the unit {}",
             member.name, flat.name);
      }
      Gradients::Parameter parameter;
      parameter.bucket = static_cast<int32_t>(gradients.buckets.size());
      parameter.offset = member.offset;
      parameter.shard_axes = flat.shard_axes;
      for (size_t i = 0; i < graph.inputs.size(); ++i) {
        const auto& input = graph.inputs[i];
        if (input.kind == Input::Kind::parameter && input.name == member.name) {
          parameter.input = static_cast<int32_t>(i);
        }
      }
      mesh::AxisSet rest;
      for (size_t o = 0; o < graph.outputs.size(); ++o) {
        const auto& output = graph.outputs[o];
        if (output.kind != Output::Kind::gradient || output.name != member.name) continue;
        if (!output.value.defined()) continue;
        parameter.add(output.value);
        bucket.section = std::max(bucket.section, source.section_of(output.value));
        const auto& placements = source.local.outputs[o];
        rest =
            axes_where(mesh, placements, mesh::Placement::Kind::partial).without(flat.unit->axes);
        const auto reduce = reduce_name(mesh, placements, member.name);
        if (trained && reduce != bucket.reduce) {
          fail("compile",
               "gradients of a unit must all be summed or all be averaged, but those of '{}' are "
               "not",
               flat.name);
        }
        bucket.reduce = reduce;
        if (!trained) bucket.axes = rest;
        bucket.axes = bucket.axes.intersection(rest);
        trained = true;
      }
      rests.push_back(std::move(rest));
      bucket.parameters.push_back(static_cast<int32_t>(gradients.parameters.size()));
      gradients.parameters.push_back(std::move(parameter));
    }
    for (size_t k = 0; k < rests.size(); ++k) {
      gradients.parameters[bucket.parameters[k]].early_axes = rests[k].without(bucket.axes);
    }
    // A small reduction over the other axes goes first: after the unit's own it would wait for all
    // reductions in flight over the unit's axes, and collectives of ops over the other axes would
    // wait for it. Gradients that are reduced in a lower precision are rounded after the
    // unit's reduction.
    const bool small = bucket.elements * item_bytes(bucket.dtype) <= kSmallSum;
    if (small && !reduced_type(source, bucket.dtype)) {
      bucket.early_axes = std::exchange(bucket.axes, {});
    }
    gradients.buckets.push_back(std::move(bucket));
  }
}

void make_unit_state(Draft& draft, const Source& source, Gradients& gradients, Bucket& bucket,
                     std::vector<ValueId>& inputs) {
  const auto& graph = source.local.graph;
  const auto& flat = gradients.flats[bucket.flat];
  const bool steps = optimizer_of(source.spec) != nullptr;
  const auto states = optimizer_states(source.spec);
  const TensorType whole{bucket.dtype, {bucket.elements}}, part{bucket.dtype, {flat.part}};
  const Home moving{Home::Kind::communication, draft.number_of(Stream::over(flat.unit->axes))};
  const bool trained = std::any_of(
      bucket.parameters.begin(), bucket.parameters.end(),
      [&](int32_t p) { return gradients.parameters[p].gradient.defined(); });
  const auto& offload = source.plan.offload;
  const Home state_home{.kind = Home::Kind::persistent, .host = offload.optimizer};
  // A part that is only padding is not borrowed.
  const bool borrowed = source.spec.borrow_weights && (!flat.in_parts || flat.held() > 0);
  const bool one_copy = flat.unit->one_copy;
  bucket.weights = draft.add(flat.in_parts ? part : whole, flat_parameters_name(flat.name),
                             {.kind = Home::Kind::persistent,
                              .stream = one_copy ? moving.stream : 0,
                              .borrowed = borrowed,
                              .holders = one_copy ? flat.parts : 1,
                              .host = bucket.level == 3 && offload.parameters});
  if (flat.in_parts) {
    // Ops may read them in a lower precision than they are stored in.
    const auto read = graph.type(graph.find_input(flat.members[0].name)->value).dtype;
    auto gathered = moving;
    gathered.outlives = flat.gathered_once && draft.program.microbatches > 1;
    bucket.gathered = draft.add(
        {read, {bucket.elements}},
        flat.gathered_once
            ? flat_parameters_name(flat.name, ValueRole::whole_parameters) + " whole"
            : flat_parameters_name(flat.name, ValueRole::gathered_parameters) + " gathered",
        gathered);
    bucket.own = bucket.weights;
  } else {
    bucket.own = elements_of(draft, bucket.weights, flat.begin, flat.part);
  }
  if (trained) {
    const auto low = reduced_type(source, bucket.dtype);
    const Home reducing{Home::Kind::communication,
                        draft.number_of(Stream::over(flat.unit->axes, bucket.channel))};
    auto kept = low ? Home{steps ? Home::Kind::scratch : Home::Kind::persistent} : reducing;
    kept.outlives = !steps;
    // Level 1 keeps gradients unsharded until the last microbatch and reduces them in place.
    const bool inside = bucket.level == 1;
    const auto name = flat_gradients_name(flat.name);
    bucket.gradients = draft.add(whole, name, inside ? kept : low ? Home{} : reducing);
    bucket.part = inside ? elements_of(draft, bucket.gradients, flat.begin, flat.part)
                         : draft.add(part, name + " part", kept);
    if (low && !bucket.axes.empty()) {
      bucket.low = draft.add(
          {*low, part.shape}, name + " part low",
          {Home::Kind::communication, draft.number_of(Stream::over(bucket.axes, bucket.channel))});
    }
    for (const auto& state : states) {
      bucket.states.push_back(draft.add(part, flat_states_name(state, flat.name), state_home));
    }
    if (!steps_by_tensor(source.spec)) bucket.shares = shares_of(draft, source, gradients, bucket);
  }

  for (size_t k = 0; k < flat.members.size(); ++k) {
    const auto& member = flat.members[k];
    auto& parameter = gradients.parameters[bucket.parameters[k]];
    const auto view = [&](ValueId base, int64_t element, const std::vector<int64_t>& shape,
                          const ValueName& name) {
      const auto dtype = draft.value(base).type.dtype;
      return draft.add_view(base, element * item_bytes(dtype), {dtype, shape},
                            contiguous_strides(shape), name);
    };
    const auto bind = [&](Binding::Kind kind, const std::string& name, ValueId value,
                          std::vector<mesh::Range> ranges) {
      Binding binding;
      binding.kind = kind;
      binding.name = name;
      binding.value = value;
      if (kind != Binding::Kind::parameter) binding.parameter = member.name;
      binding.shape = source.whole.type(source.whole.find_input(member.name)->value).shape;
      binding.ranges = std::move(ranges);
      draft.bind(std::move(binding));
    };
    const auto bind_pieces = [&](Binding::Kind kind, const ValueName& name, ValueId base) {
      for (auto& piece : plan::pieces_of(flat, member)) {
        const auto value = view(base, piece.offset - flat.begin, piece.shape(), name);
        bind(kind, name.text, value, std::move(piece.ranges));
      }
    };
    parameter.weight = view(flat.in_parts ? bucket.gathered : bucket.weights, member.offset,
                            member.shape, parameter_name(graph.inputs[parameter.input].name));
    inputs[parameter.input] = parameter.weight;
    if (flat.in_parts) {
      bind_pieces(Binding::Kind::parameter, parameter_name(member.name), bucket.weights);
    } else {
      bind(Binding::Kind::parameter, member.name, parameter.weight, member.ranges);
    }
    if (!parameter.gradient.defined()) continue;
    parameter.value = view(bucket.gradients, member.offset, member.shape,
                           gradient_name(member.name));
    for (size_t k = 0; k < states.size(); ++k) {
      bind_pieces(Binding::Kind::state, state_name(states[k], member.name), bucket.states[k]);
    }
    if (steps_by_tensor(source.spec)) {
      for (auto& piece : plan::pieces_of(flat, member)) {
        const auto shape = piece.shape();
        const bool in_part = flat.in_parts;
        gradients.pieces.push_back(
            {bucket.parameters[k],
             std::move(piece.ranges),
             view(bucket.weights, piece.offset - (in_part ? flat.begin : 0), shape,
                  parameter_name(member.name)),
             view(bucket.part, piece.offset - flat.begin, shape, gradient_name(member.name)),
             {}});
      }
    }
    if (!steps) bind_pieces(Binding::Kind::result, gradient_name(member.name), bucket.part);
  }
}

int32_t scatter_unit(Draft& draft, const Source& source, const Gradients& gradients,
                     const Bucket& bucket, ValueId target, uint8_t when,
                     std::vector<DraftInstruction>& out) {
  const auto& flat = gradients.flats[bucket.flat];
  const auto zero = [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    auto fill = plain(draft, "perigee::full", {{"value", 0.0}},
                      {elements_of(draft, bucket.gradients, begin, end - begin)});
    fill.when = when;
    out.push_back(std::move(fill));
  };
  int64_t filled = 0;
  for (size_t k = 0; k < flat.members.size(); ++k) {
    const auto& parameter = gradients.parameters[bucket.parameters[k]];
    if (!parameter.gradient.defined()) continue;
    zero(filled, flat.members[k].offset);
    filled = flat.members[k].offset + flat.members[k].elements;
    if (parameter.early_axes.empty()) continue;
    auto reduce = all_reduce(draft, parameter.value, Stream::over(parameter.early_axes),
                             bucket.reduce);
    reduce.when = when;
    out.push_back(std::move(reduce));
  }
  zero(filled, bucket.elements);
  if (!bucket.early_axes.empty()) {
    auto reduce = all_reduce(draft, bucket.gradients, Stream::over(bucket.early_axes),
                             bucket.reduce);
    reduce.when = when;
    out.push_back(std::move(reduce));
  }
  const auto stream = Stream::over(flat.unit->axes, bucket.channel);
  auto whole = bucket.gradients;
  if (const auto low = reduced_type(source, bucket.dtype)) {
    whole = draft.add({*low, {bucket.elements}}, draft.value(whole).name + " low",
                      {Home::Kind::communication, draft.number_of(stream)});
    auto round = in_place("perigee::copy_",
                          {{"self", whole},
                           {"source", bucket.gradients},
                           {"scale", source.plan.communication.reduce_scale}},
                          {whole});
    round.when = when;
    out.push_back(std::move(round));
  }
  auto scatter = collective(draft, flat, stream, "comm::reduce_scatter",
                            {{"self", whole}, {"op", bucket.reduce}}, target);
  scatter.when = when;
  scatter.instruction.scope = flat.unit->name;
  scatter.instruction.phase = graph::Phase::backward;
  const auto event = scatter.instruction.event;
  out.push_back(std::move(scatter));
  return event;
}

namespace {

DraftInstruction gather_to(Draft& draft, const Gradients& gradients, const Bucket& bucket,
                           ValueId from, ValueId to) {
  const auto& flat = gradients.flats[bucket.flat];
  auto gather = collective(draft, flat, Stream::over(flat.unit->axes), "comm::all_gather",
                           {{"self", from}}, to);
  gather.instruction.scope = flat.unit->name;
  return gather;
}

}  // namespace

void gather_unit(Draft& draft, const Gradients& gradients, const Gather& gather,
                 std::vector<DraftInstruction>& out) {
  const auto& bucket = gradients.buckets[gather.bucket];
  const auto& flat = gradients.flats[bucket.flat];
  const auto dtype = draft.value(bucket.gathered).type.dtype;
  const uint8_t when = flat.gathered_once && draft.program.microbatches > 1 ? kFirst : kAlways;
  auto from = bucket.own;
  if (dtype != flat.dtype) {
    from = flat.gathered_once
               ? elements_of(draft, bucket.gathered, flat.begin, flat.part)
               : draft.add(
                     {dtype, {flat.part}}, flat_parameters_name(flat.name) + " low",
                     {Home::Kind::communication, draft.number_of(Stream::over(flat.unit->axes))});
    out.push_back(in_place("perigee::copy_", {{"self", from}, {"source", bucket.own}}, {from}));
    out.back().instruction.scope = flat.unit->name;
    out.back().instruction.phase = gather.phase;
    out.back().when = when;
  }
  out.push_back(gather_to(draft, gradients, bucket, from, bucket.gathered));
  out.back().instruction.phase = gather.phase;
  out.back().when = when;
}

void end_unit_steps(Draft& draft, const Gradients& gradients, std::vector<DraftInstruction>& out) {
  // Of units of one copy: the weights that the ranks of each stream have written.
  std::map<int32_t, std::vector<ValueId>> written;
  for (const auto& bucket : gradients.buckets) {
    if (!bucket.part.defined() || bucket.gathered.defined()) continue;
    const auto& unit = *gradients.flats[bucket.flat].unit;
    if (!unit.one_copy) continue;
    written[draft.number_of(Stream::over(unit.axes))].push_back(bucket.weights);
  }
  for (auto& [stream, weights] : written) {
    auto barrier = in_place("comm::barrier",
                            {{"values", weights}, {"axis", draft.program.streams[stream].name()}},
                            weights);
    barrier.instruction.in_place = false;
    barrier.instruction.kind = Instruction::Kind::collective;
    barrier.instruction.stream = stream;
    barrier.instruction.event = draft.program.events++;
    out.push_back(std::move(barrier));
  }
}

DraftInstruction gather_stepped(Draft& draft, const Gradients& gradients, const Bucket& bucket) {
  return gather_to(draft, gradients, bucket, bucket.own, bucket.weights);
}

void separate_gathers(Draft& draft, const Gradients& gradients) {
  struct Now {
    ValueId whole;                     // result of the last all-gather
    std::map<int32_t, ValueId> views;  // of `whole`, by the same view of the first result
  };
  std::map<int32_t, Now> now;  // by the root of the first all-gather's result
  for (const auto& bucket : gradients.buckets) {
    const bool once = bucket.flat >= 0 && gradients.flats[bucket.flat].gathered_once;
    if (bucket.gathered.defined() && !once) now[bucket.gathered.index];
  }
  if (now.empty()) return;
  const auto move = [&](ValueId& v) {
    if (!v.defined()) return;
    const auto found = now.find(draft.root(v).index);
    if (found == now.end()) return;
    auto& [whole, views] = found->second;
    if (!whole.defined() || whole.index == found->first) return;
    auto& view = views[v.index];
    if (!view.defined()) {
      const ProgramValue from = draft.value(v);
      view = from.view_of.defined() ? draft.add_view(whole, draft.view_offset[v.index], from.type,
                                                     from.strides, from.name)
                                    : whole;
    }
    v = view;
  };
  for (auto& section : draft.sections) {
    for (auto& part : section.instructions) {
      auto& instruction = part.instruction;
      const bool collective = instruction.kind == Instruction::Kind::collective &&
                              !instruction.outputs.empty();
      const auto gathered = collective ? now.find(instruction.outputs[0].index) : now.end();
      if (gathered != now.end()) {
        auto& [whole, views] = gathered->second;
        const ValueId first{gathered->first};
        const ProgramValue like = draft.value(first);
        whole = whole.defined() ? draft.add(like.type, like.name, draft.homes[first.index]) : first;
        views.clear();
        instruction.outputs[0] = whole;
        continue;
      }
      for (auto& [name, arg] : instruction.args) {
        if (auto* v = std::get_if<ValueId>(&arg)) {
          move(*v);
        } else if (auto* values = std::get_if<std::vector<ValueId>>(&arg)) {
          for (auto& v : *values) move(v);
        }
      }
      for (auto& v : instruction.outputs) move(v);
    }
  }
}

}  // namespace perigee::compile
