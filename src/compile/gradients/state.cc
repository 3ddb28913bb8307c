// Values that outlive a step (weights, optimizer state, buffers, constants, scalars), and the
// buckets of gradients.
#include "compile/gradients/state.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/fail.h"
#include "compile/draft/layout.h"
#include "compile/draft/source.h"
#include "compile/gradients/gradients.h"
#include "compile/gradients/loss_scale.h"
#include "compile/gradients/reduce.h"
#include "compile/gradients/tensor_step.h"
#include "compile/gradients/units.h"
#include "compile/graph/fp8.h"

namespace perigee::compile {

using graph::DType;
using graph::Input;
using graph::Output;
using graph::TensorType;

namespace {

const Home kPersistent{.kind = Home::Kind::persistent};
const Home kBorrowed{.kind = Home::Kind::persistent, .borrowed = true};

// Size of buckets that are not reduced: small ones, since their memory is allocated and freed one
// by one.
constexpr int64_t kLocalBucket = 256 << 10;

void check_placements(const mesh::Mesh& mesh, const mesh::Placements& parameter,
                      const mesh::Placements& gradient, const std::string& name) {
  for (size_t a = 0; a < parameter.size(); ++a) {
    const bool fits = gradient[a] == parameter[a] ||
                      (parameter[a].is_replicate() && gradient[a].is_partial());
    if (!fits && mesh.axes[a].size > 1) {
      fail("compile",
           "a gradient must have its parameter's placements, or be Partial, but that of '{}' is {} "
           "on '{}', where the parameter is {}",
           name, mesh::to_string(gradient[a]), mesh.axes[a].name, mesh::to_string(parameter[a]));
    }
  }
}

// Returns the position of the node that makes the gradient; -1 for inputs of the graph.
int32_t ready(const graph::Graph& graph, graph::ValueId v) {
  return graph.values[v.index].producer;
}

// Returns the stages that have the parameter; none if only this stage has it.
std::vector<int64_t> stages_with(const Source& source, const std::string& name) {
  if (!source.stage) return {};
  const auto found = source.stage->shared.find(name);
  return found == source.stage->shared.end() ? std::vector<int64_t>() : found->second;
}

// Returns the entries of Plan::averages that include the parameter.
std::vector<int32_t> averages_of(const plan::Plan& plan, const std::string& name) {
  std::vector<int32_t> found;
  for (size_t a = 0; a < plan.averages.size(); ++a) {
    const auto& names = plan.averages[a].parameters;
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    found.push_back(static_cast<int32_t>(a));
  }
  return found;
}

// Assigns the buckets of an axis group to its streams alternately.
void assign_channels(const Source& source, Gradients& gradients) {
  int64_t next = 0;
  for (auto& bucket : gradients.buckets) {
    if (bucket.level == 0 && bucket.axes.empty()) continue;
    bucket.channel = static_cast<int32_t>(next++ % source.plan.communication.communicators);
  }
}

// Finds the averages of the units' buckets; frozen ones have none. Throws Error where a unit's
// parameters differ in them.
void find_averages(const Source& source, Gradients& gradients) {
  for (auto& bucket : gradients.buckets) {
    const bool trained = std::ranges::any_of(
        bucket.parameters, [&](int32_t p) { return gradients.parameters[p].gradient.defined(); });
    if (!trained) continue;
    const auto& flat = gradients.flats[bucket.flat];
    bucket.averages = averages_of(source.plan, flat.members.front().name);
    for (const auto& member : flat.members) {
      if (averages_of(source.plan, member.name) == bucket.averages) continue;
      fail("compile",
           "parameters of a unit must have the same averages, but {} and {} of {} differ",
           flat.members.front().name, member.name, flat.name);
    }
  }
}

Gradients collect(const Source& source) {
  const auto& graph = source.local.graph;
  const auto& mesh = source.plan.mesh;
  Gradients result;
  collect_units(source, result);
  find_averages(source, result);
  const size_t first = result.parameters.size();
  std::vector<bool> in_unit(graph.inputs.size());
  for (const auto& parameter : result.parameters) in_unit[parameter.input] = true;
  std::vector<const mesh::Placements*> placements(first);
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto& input = graph.inputs[i];
    if (input.kind != Input::Kind::parameter || in_unit[i]) continue;
    for (size_t o = 0; o < graph.outputs.size(); ++o) {
      const auto& output = graph.outputs[o];
      if (output.kind != Output::Kind::gradient || output.name != input.name) continue;
      if (!output.value.defined()) continue;
      if (graph.type(output.value).shape != graph.type(input.value).shape) {
        fail("compile",
             "a gradient must have its parameter's local shape, but that of '{}' has not",
             input.name);
      }
      check_placements(mesh, source.local.inputs[i], source.local.outputs[o], input.name);
      if (result.parameters.size() > first &&
          result.parameters.back().input == static_cast<int32_t>(i)) {
        result.parameters.back().add(output.value);
        continue;
      }
      Gradients::Parameter parameter;
      parameter.input = static_cast<int32_t>(i);
      parameter.add(output.value);
      parameter.shard_axes = axes_where(mesh, source.local.outputs[o],
                                        mesh::Placement::Kind::shard);
      result.parameters.push_back(std::move(parameter));
      placements.push_back(&source.local.outputs[o]);
    }
  }

  std::vector<int32_t> order(result.parameters.size() - first);
  std::iota(order.begin(), order.end(), static_cast<int32_t>(first));
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return ready(graph, result.parameters[a].gradient) <
           ready(graph, result.parameters[b].gradient);
  });
  struct Kind {
    Bucket bucket;  // without parameters
    int64_t bytes = 0;
    int32_t open = -1;  // the bucket that still takes gradients
  };
  std::vector<Kind> kinds;
  std::vector<size_t> kind_of;  // like `order`
  for (int32_t p : order) {
    const auto& parameter = result.parameters[p];
    const auto& input = graph.inputs[parameter.input];
    const auto& type = graph.type(input.value);
    Bucket wanted;
    wanted.dtype = type.dtype;
    wanted.gradient_dtype = graph.type(parameter.gradient).dtype;
    wanted.group = group_of(source.spec, input.name);
    wanted.axes = axes_where(mesh, *placements[p], mesh::Placement::Kind::partial);
    wanted.reduce = reduce_name(mesh, *placements[p], input.name);
    wanted.section = source.section_of(parameter.gradient);
    wanted.stages = stages_with(source, input.name);
    wanted.averages = averages_of(source.plan, input.name);
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) {
      const auto& bucket = kind.bucket;
      return bucket.dtype == wanted.dtype && bucket.gradient_dtype == wanted.gradient_dtype &&
             bucket.group == wanted.group && bucket.axes == wanted.axes &&
             bucket.reduce == wanted.reduce && bucket.section == wanted.section &&
             bucket.stages == wanted.stages && bucket.averages == wanted.averages;
    });
    kind_of.push_back(static_cast<size_t>(same - kinds.begin()));
    if (same == kinds.end()) kinds.push_back({std::move(wanted)});
    kinds[kind_of.back()].bytes += graph.type(parameter.gradient).bytes();
  }
  const auto& communication = source.plan.communication;
  for (size_t k = 0; k < order.size(); ++k) {
    auto& kind = kinds[kind_of[k]];
    if (kind.open < 0) {
      kind.open = static_cast<int32_t>(result.buckets.size());
      result.buckets.push_back(kind.bucket);
    }
    auto& bucket = result.buckets[kind.open];
    auto& parameter = result.parameters[order[k]];
    parameter.bucket = kind.open;
    parameter.offset = bucket.elements;
    bucket.elements += graph.type(parameter.gradient).numel();
    bucket.parameters.push_back(order[k]);
    auto limit = bucket.axes.empty() ? std::min(kLocalBucket, communication.bucket_bytes)
                                     : communication.bucket_bytes;
    if (communication.buckets > 0 && !bucket.axes.empty()) {
      limit = std::max(limit, (kind.bytes + communication.buckets - 1) / communication.buckets);
    }
    // Sums over stages need the same gradients in the same order on all of them, and the order in
    // which gradients become ready differs by stage: a bucket each.
    const bool own_bucket = !bucket.stages.empty();
    if (own_bucket ||
        bucket.elements * static_cast<int64_t>(graph::size_of(bucket.gradient_dtype)) >= limit) {
      kind.open = -1;
    }
  }
  assign_channels(source, result);
  return result;
}

// Returns whether the input is a buffer that the step writes.
bool is_written(const graph::Graph& graph, const Input& input) {
  return input.kind == Input::Kind::buffer &&
         std::any_of(graph.outputs.begin(), graph.outputs.end(), [&](const Output& output) {
           return output.kind == Output::Kind::buffer && output.name == input.name &&
                  output.value.defined() && output.value != input.value;
         });
}

// Keys below this belong to random ops of the graph, others to parameters.
constexpr int64_t kFirstKey = int64_t{1} << 31;

// Returns the arguments of the perigee::random that draws a number for each of the rank's elements
// of a parameter: any rank that has an element draws the same for it.
std::vector<std::pair<std::string, graph::Arg>> draw_of(const Source& source,
                                                        const Binding& parameter) {
  const auto& inputs = source.whole.inputs;
  const auto at = std::find_if(inputs.begin(), inputs.end(),
                               [&](const Input& input) { return input.name == parameter.name; });
  std::vector<int64_t> begin;
  for (const auto& range : parameter.ranges) begin.push_back(range.begin);
  return {{"kind", std::string("uniform")},
          {"key", kFirstKey + static_cast<int64_t>(at - inputs.begin())},
          {"low", 0.0},
          {"high", 1.0},
          {"global", parameter.shape},
          {"begin", begin},
          {"batch_dim", int64_t{-1}}};
}

}  // namespace

mesh::AxisSet axes_where(const mesh::Mesh& mesh, const mesh::Placements& placements,
                         mesh::Placement::Kind kind) {
  mesh::AxisSet axes;
  for (size_t a = 0; a < placements.size(); ++a) {
    if (mesh.axes[a].size > 1 && placements[a].kind == kind) axes.insert(mesh.axes[a].name);
  }
  return axes;
}

std::string reduce_name(const mesh::Mesh& mesh, const mesh::Placements& placements,
                        const std::string& what) {
  std::string name;
  for (size_t a = 0; a < placements.size(); ++a) {
    const auto& p = placements[a];
    if (mesh.axes[a].size < 2 || !p.is_partial()) continue;
    const bool known = p.reduce == mesh::Reduce::sum || p.reduce == mesh::Reduce::average;
    const std::string one = p.reduce == mesh::Reduce::sum ? "sum" : "avg";
    if (!known || (!name.empty() && name != one)) {
      fail("compile", "'{}' must be a sum or an average over ranks, but is {}", what,
           mesh::to_string(placements));
    }
    name = one;
  }
  return name.empty() ? "sum" : name;
}

bool any_stage_trains(const Source& source) {
  return std::ranges::any_of(source.whole.outputs, [](const Output& output) {
    return output.kind == Output::Kind::gradient && output.value.defined();
  });
}

int32_t group_of(const StepSpec& spec, const std::string& name) {
  for (size_t g = 0; g < spec.groups.size(); ++g) {
    const auto& names = spec.groups[g].parameters;
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      return static_cast<int32_t>(g) + 1;
    }
  }
  return 0;
}

const optim::Description* optimizer_of(const StepSpec& spec) {
  return optim::find_optimizer(spec.optimizer);
}

std::vector<std::string> optimizer_states(const StepSpec& spec) {
  const auto* optimizer = optimizer_of(spec);
  return optimizer ? optim::flat_states(*optimizer, spec.options) : std::vector<std::string>();
}

Gradients make_state(Draft& draft, const Source& source, std::vector<ValueId>& inputs) {
  const auto& graph = source.local.graph;
  const auto& spec = source.spec;
  Gradients gradients = collect(source);
  if (any_stage_trains(source)) {
    gradients.loss_scale = make_loss_scale(draft, source.plan.precision, spec.guarded);
  }
  inputs.assign(graph.inputs.size(), {});

  auto bind = [&](Binding::Kind kind, std::string name, ValueId value, size_t input) {
    Binding binding;
    binding.kind = kind;
    binding.name = std::move(name);
    binding.value = value;
    // The whole graph's input of that name has the unsharded shape.
    const auto& local = graph.inputs[input];
    for (size_t w = 0; w < source.whole.inputs.size(); ++w) {
      const auto& whole = source.whole.inputs[w];
      if (whole.name != local.name || whole.kind != local.kind) continue;
      binding.shape = source.whole.type(whole.value).shape;
      binding.ranges = mesh::local_ranges(binding.shape, source.local.inputs[input],
                                          source.plan.mesh, source.rank);
    }
    if (kind == Binding::Kind::constant) binding.data = local.data;
    draft.bind(std::move(binding));
  };

  const bool steps = optimizer_of(spec) != nullptr;
  const auto states = optimizer_states(spec);
  const Home state_home{.kind = Home::Kind::persistent, .host = source.plan.offload.optimizer};
  const bool by_tensor = steps_by_tensor(spec);
  for (size_t b = 0; b < gradients.buckets.size(); ++b) {
    auto& bucket = gradients.buckets[b];
    if (bucket.level > 0) {
      make_unit_state(draft, source, gradients, bucket, inputs);
      continue;
    }
    const bool rounded = source.plan.precision.parameters == plan::Precision::Parameters::low &&
                         bucket.dtype == source.plan.precision.dtype;
    const DType state_dtype = rounded ? DType::float32 : bucket.dtype;
    const TensorType flat{bucket.dtype, {bucket.elements}};
    const TensorType flat_state{state_dtype, {bucket.elements}};
    const Home own{steps ? Home::Kind::scratch : Home::Kind::persistent};
    const auto number = std::to_string(b);
    bucket.weights = draft.add(flat, flat_parameters_name(number), kPersistent);
    const TensorType flat_gradients{bucket.gradient_dtype, {bucket.elements}};
    const auto name = flat_gradients_name(number);
    if (bucket.axes.empty()) {
      bucket.gradients = draft.add(flat_gradients, name, own);
    } else {
      const Home moving{Home::Kind::communication,
                        draft.number_of(Stream::over(bucket.axes, bucket.channel))};
      const auto low = reduced_type(source, bucket.gradient_dtype);
      auto kept = moving;
      kept.outlives = !steps;
      bucket.gradients = draft.add(flat_gradients, name, low ? own : kept);
      if (low) bucket.low = draft.add({*low, {bucket.elements}}, name + " low", moving);
    }
    for (const auto& state : states) {
      bucket.states.push_back(draft.add(flat_state, flat_states_name(state, number), state_home));
    }
    if (!rounded && !by_tensor) {
      bucket.shares = {
          {bucket.group, bucket.weights, bucket.gradients, bucket.states, ValueId{}, {}}};
    }
    for (int32_t p : bucket.parameters) {
      auto& parameter = gradients.parameters[p];
      const auto index = static_cast<size_t>(parameter.input);
      const auto& input = graph.inputs[index];
      auto member = [&](ValueId base, const ValueName& name) {
        TensorType type{draft.value(base).type.dtype, graph.type(input.value).shape};
        const auto offset = parameter.offset * static_cast<int64_t>(graph::size_of(type.dtype));
        auto strides = contiguous_strides(type.shape);
        return draft.add_view(base, offset, std::move(type), std::move(strides), name);
      };
      parameter.weight = member(bucket.weights, parameter_name(input.name));
      parameter.value = member(bucket.gradients, gradient_name(input.name));
      inputs[index] = parameter.weight;
      bind(Binding::Kind::parameter, input.name, parameter.weight, index);
      if (by_tensor) {
        const auto& ranges = draft.program.bindings.back().ranges;
        gradients.pieces.push_back({p, ranges, parameter.weight, parameter.value, {}});
      }
      std::vector<ValueId> held;
      for (size_t k = 0; k < states.size(); ++k) {
        const auto full = state_name(states[k], input.name);
        held.push_back(member(bucket.states[k], full));
        bind(Binding::Kind::state, full.text, held.back(), index);
        draft.program.bindings.back().parameter = input.name;
      }
      if (rounded && steps) {
        auto& share = bucket.shares.emplace_back(Bucket::Share{
            bucket.group, parameter.weight, parameter.value, std::move(held), {}, {}});
        share.noise = draft.add({DType::float32, graph.type(input.value).shape}, "noise");
        share.draw = draw_of(source, *draft.program.find(Binding::Kind::parameter, input.name));
      }
      if (!steps) {
        bind(Binding::Kind::result, gradient_name(input.name).text, parameter.value, index);
        draft.program.bindings.back().parameter = input.name;
      }
    }
  }

  if (by_tensor) make_tensor_states(draft, source, gradients);
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const auto& input = graph.inputs[i];
    if (inputs[i].defined() || input.kind == Input::Kind::data) continue;
    if (input.kind == Input::Kind::constant && input.name == kLossScale) {
      inputs[i] = gradients.loss_scale.value;
      continue;
    }
    const bool weight = input.kind == Input::Kind::parameter || input.kind == Input::Kind::buffer;
    const bool history = input.name.starts_with(kFp8History);
    const auto name = history ? ValueName(input.name, ValueRole::history,
                                          input.name.substr(std::string_view(kFp8History).size()))
                      : input.kind == Input::Kind::parameter ? parameter_name(input.name)
                                                             : ValueName(input.name);
    inputs[i] = draft.add(graph.type(input.value), name,
                          weight && spec.borrow_weights ? kBorrowed : kPersistent);
    const auto kind = history                                ? Binding::Kind::state
                      : input.kind == Input::Kind::parameter ? Binding::Kind::parameter
                      : input.kind == Input::Kind::constant  ? Binding::Kind::constant
                                                             : Binding::Kind::buffer;
    bind(kind, input.name, inputs[i], i);
    if (gradients.loss_scale.value.defined() && is_written(graph, input)) {
      const auto before = draft.add(graph.type(input.value), "before " + input.name, kPersistent);
      gradients.kept_buffers[i] = {inputs[i], before};
    }
  }
  // Data inputs that nothing reads have no value: there is nothing to load.
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (graph.inputs[i].kind == Input::Kind::data) {
      bind(Binding::Kind::data, graph.inputs[i].name, {}, i);
      draft.program.bindings.back().batched = graph.inputs[i].batched;
    }
  }
  return gradients;
}

}  // namespace perigee::compile
