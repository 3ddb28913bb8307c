#include "checkpoint/holdings.h"

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/files.h"
#include "compile/gradients/tensor_step.h"
#include "compile/graph/fp8.h"
#include "compile/stages/stage_inputs.h"
#include "plan/units.h"

namespace perigee::checkpoint {
namespace {

using Kind = compile::Binding::Kind;
using graph::Input;

bool is_trained(const graph::Graph& graph, const compile::StepSpec& spec, const std::string& name) {
  const auto* gradient = graph.find_output(graph::Output::Kind::gradient, name);
  return gradient && gradient->value.defined() &&
         std::find(spec.frozen.begin(), spec.frozen.end(), name) == spec.frozen.end();
}

// Returns the states with the parameter's placements.
std::vector<std::string> states_of(const compile::StepSpec& spec,
                                   const compile::TensorStates& by_tensor,
                                   const std::string& parameter) {
  auto names = compile::optimizer_states(spec);
  for (const auto& state : by_tensor.of(parameter)) {
    if (!state.whole) names.push_back(state.name);
  }
  return names;
}

// Appends sharded tensors: the states of all units, and the parameters of units that shard them.
void add_pieces(const graph::Graph& graph, const plan::Plan& plan, const compile::StepSpec& spec,
                const compile::StageInputs& stages, std::vector<Holding>& all) {
  std::map<std::string, size_t> known;
  const compile::TensorStates by_tensor(graph, spec);
  for (auto rank : mesh::ranks(plan.mesh)) {
    const auto held = stages.own(graph, rank);
    for (const auto& flat : plan::flats(plan, held, rank)) {
      for (const auto& member : flat.members) {
        std::vector<std::string> names;
        if (flat.in_parts) names.push_back(member.name);
        if (is_trained(graph, spec, member.name)) {
          for (const auto& state : states_of(spec, by_tensor, member.name)) {
            names.push_back(state + ":" + member.name);
          }
        }
        const auto& shape = graph.type(graph.find_input(member.name)->value).shape;
        for (const auto& piece : plan::pieces_of(flat, member)) {
          for (const auto& name : names) {
            TensorPart part{name, flat.dtype, shape, piece.ranges};
            const auto [at, added] = known.try_emplace(key_of(part), all.size());
            if (added) all.push_back({std::move(part), {}});
            all[at->second].ranks.push_back(rank);
          }
        }
      }
    }
  }
  for (auto& holding : all) std::sort(holding.ranks.begin(), holding.ranks.end());
}

// Appends, for tensors that differ between copies, each copy's part with the ranks that hold it.
void add_copies(const graph::Graph& graph, const plan::Plan& plan, int64_t step,
                std::vector<Holding>& all) {
  const auto copies = plan::copies_of(plan);
  if (copies == 1) return;
  const auto axes = plan.copy_axes;
  const auto whole = all.size();
  for (size_t h = 0; h < whole; ++h) {
    if (!are_apart(graph, plan, all[h].part.name, step)) continue;
    std::vector<std::vector<int64_t>> ranks(static_cast<size_t>(copies));
    for (auto rank : all[h].ranks) {
      const auto group = mesh::group_of(plan.mesh, axes, rank);
      ranks[std::find(group.begin(), group.end(), rank) - group.begin()].push_back(rank);
    }
    for (int64_t copy = 0; copy < copies; ++copy) {
      all.push_back({part_of_copies(all[h].part, copies, copy), std::move(ranks[copy])});
    }
  }
}

}  // namespace

TensorPart part_of_copies(const TensorPart& part, int64_t copies, int64_t copy) {
  TensorPart result{"copies:" + part.name, part.dtype, part.shape, part.ranges};
  result.shape.insert(result.shape.begin(), copies);
  result.ranges.insert(result.ranges.begin(), {copy, 1});
  return result;
}

bool are_apart(const graph::Graph& graph, const plan::Plan& plan, const std::string& name,
               int64_t step) {
  if (plan::copies_of(plan) == 1) return false;
  const auto* input = graph.find_input(name);
  if (input && graph.is_fixed(*input)) return false;
  const auto colon = name.find(':');
  const bool state = colon != std::string::npos;
  const auto parameter = state ? name.substr(colon + 1) : name;
  return std::none_of(plan.averages.begin(), plan.averages.end(), [&](const plan::Average& a) {
    const bool all = a.axes.size() == plan.copy_axes.size();
    const bool held = std::find(a.parameters.begin(), a.parameters.end(), parameter) !=
                      a.parameters.end();
    return all && held && (a.states || !state) && step % a.every == 0;
  });
}

bool is_kept(const plan::Plan& plan, const compile::Binding& binding) {
  if (binding.kind == Kind::parameter || binding.kind == Kind::buffer) return true;
  if (binding.kind != Kind::state) return false;
  return !binding.name.starts_with("loss_scale:") || binding.name == "loss_scale:skipped_steps" ||
         plan.precision.loss_scale.kind == plan::LossScale::Kind::dynamic;
}

TensorPart part_of_binding(const compile::Program& program, const compile::Binding& binding) {
  return {binding.name, program.values[binding.value.index].type.dtype, binding.shape,
          binding.ranges};
}

std::vector<Holding> all_holdings(const compile::Program& program, const graph::Graph& graph,
                                  const plan::Plan& plan, const compile::StepSpec& spec,
                                  int64_t step) {
  const compile::StageInputs stages(graph, plan);
  std::set<std::string> in_parts, states_in_parts;  // by parameter
  for (auto rank : mesh::ranks(plan.mesh)) {
    const auto held = stages.own(graph, rank);
    for (const auto& flat : plan::flats(plan, held, rank)) {
      for (const auto& member : flat.members) {
        states_in_parts.insert(member.name);
        if (flat.in_parts) in_parts.insert(member.name);
      }
    }
    if (!plan.pipeline.cuts()) break;
  }
  // Stages with unequal submeshes divide a tensor that several of them have into different boxes:
  // only one stage counts.
  const auto holds = [&](const std::string& name, int64_t rank) {
    if (!stages.has(name, rank)) return false;
    if (!plan.mesh.is_ragged()) return true;
    const auto stage = mesh::stage_of(plan.mesh, rank);
    for (int64_t s = 0; s < stage; ++s) {
      if (stages.has(name, mesh::ranks_of_stage(plan.mesh, s).front())) return false;
    }
    return true;
  };
  std::vector<Holding> all;
  const compile::TensorStates by_tensor(graph, spec);
  for (const auto& input : graph.inputs) {
    if (input.kind != Input::Kind::parameter && input.kind != Input::Kind::buffer) continue;
    std::vector<std::string> names;
    if (!in_parts.contains(input.name)) names.push_back(input.name);
    if (is_trained(graph, spec, input.name) && !states_in_parts.contains(input.name)) {
      for (const auto& state : states_of(spec, by_tensor, input.name)) {
        names.push_back(state + ":" + input.name);
      }
    }
    const auto placed = plan.placements.find(input.name);
    const auto placements = placed != plan.placements.end()
                                ? placed->second
                                : mesh::Placements(plan.mesh.axes.size());
    const auto& type = graph.type(input.value);
    const bool low = plan.precision.parameters == plan::Precision::Parameters::low &&
                     input.kind == Input::Kind::parameter && type.dtype == graph::DType::float32;
    const auto add = [&](const TensorPart& part, const mesh::Placements& placed) {
      for (auto& holding : holdings_of(part, placed, plan.mesh)) {
        std::erase_if(holding.ranks, [&](int64_t rank) { return !holds(input.name, rank); });
        if (!holding.ranks.empty()) all.push_back(std::move(holding));
      }
    };
    if (is_trained(graph, spec, input.name)) {
      for (const auto& state : by_tensor.of(input.name)) {
        if (!state.whole) continue;
        add({state.name + ":" + input.name, type.dtype, state.shape, {}},
            mesh::Placements(plan.mesh.axes.size()));
      }
    }
    for (const auto& name : names) {
      // Only the parameter itself may be stored in a low precision, not its states.
      const auto dtype = low && name == input.name ? *plan.precision.dtype : type.dtype;
      add({name, dtype, type.shape, {}}, placements);
    }
  }
  // States that belong to no parameter: replicated, or one element of them on each rank.
  const mesh::Placements whole(plan.mesh.axes.size());
  const auto of_fp8 = compile::place_fp8_states(plan);
  for (const auto& binding : program.bindings) {
    if (binding.kind != Kind::state || !is_kept(plan, binding)) continue;
    if (graph.find_input(binding.name.substr(binding.name.find(':') + 1))) continue;
    auto part = part_of_binding(program, binding);
    part.ranges.clear();
    const auto& placed = part.name.starts_with(compile::kFp8History) ? of_fp8 : whole;
    for (auto& holding : holdings_of(part, placed, plan.mesh)) all.push_back(std::move(holding));
  }
  add_pieces(graph, plan, spec, stages, all);
  add_copies(graph, plan, step, all);
  return all;
}

}  // namespace perigee::checkpoint
