#include "shard/solver/assignment_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "graph/ops.h"
#include "shard/solver/repeated_blocks.h"

namespace perigee::shard {
namespace {

using graph::Input;
using graph::Output;
using graph::Phase;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

void add(std::vector<Placements>& places, const Placements& place) {
  if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
}

}  // namespace

AssignmentVariables::AssignmentVariables(const AssignmentInputs& inputs,
                                         Redistributor& redistributor, PlacementNumbers& numbers)
    : graph_(inputs.graph),
      plan_(inputs.plan),
      axes_(inputs.axes),
      options_(inputs.options),
      base_(inputs.base),
      node_options_(inputs.node_options),
      representative_(inputs.representative),
      redistributor_(redistributor),
      numbers_(numbers) {
  find_pins();
  add_nodes();
  find_uses();
  add_values();
  add_parameters();
}

// Finds the plan's pins on the planned axes.
void AssignmentVariables::find_pins() {
  pinned_.resize(graph_.values.size());
  if (plan_.placements.empty()) return;
  const auto names = graph::value_names(graph_);
  for (size_t v = 0; v < names.size(); ++v) {
    const auto found = plan_.placements.find(names[v]);
    if (found == plan_.placements.end() || graph_.values[v].producer < 0) continue;
    const auto pin = on_axes(found->second);
    if (std::ranges::any_of(pin, [](const auto& p) { return !p.is_open(); })) pinned_[v] = pin;
  }
}

Placements AssignmentVariables::on_axes(const Placements& all) const {
  Placements own;
  for (int a : axes_) own.push_back(all[a]);
  return own;
}

// Whether the state agrees with the plan's pin.
bool AssignmentVariables::obeys(const ValueState& state, ValueId v) const {
  const auto& pin = pinned_[v.index];
  for (size_t k = 0; k < pin.size(); ++k) {
    if (!pin[k].is_open() && state.placements[k] != pin[k]) return false;
  }
  return true;
}

void AssignmentVariables::add_nodes() {
  of_node_.assign(graph_.nodes.size(), -1);
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    if (representative_[n] != n) continue;
    of_node_[n] = static_cast<int>(list_.size());
    AssignmentVariable variable{fmt::format("{}/{}", graph_.nodes[n].scope, graph_.nodes[n].op), n};
    variable.time.assign(node_options_.of(n).size(), 0);
    list_.push_back(std::move(variable));
  }
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const int own = of_node_[n] = of_node_[representative_[n]];
    const auto& list = node_options_.of(n);
    const double times = runs_of(n);
    for (size_t o = 0; o < list.size(); ++o) list_[own].time[o] += times * list[o].sharding.cost;
  }
}

double AssignmentVariables::runs_of(size_t node) const {
  const auto& own = graph_.nodes[node];
  return options_.recompute && own.phase == Phase::forward && !block_of(own.scope).empty() ? 2 : 1;
}

// Counts the nodes and outputs that read each value in either phase.
void AssignmentVariables::find_uses() {
  forward_uses_.assign(graph_.values.size(), 0);
  backward_uses_.assign(graph_.values.size(), 0);
  for (const auto& node : graph_.nodes) {
    std::vector<ValueId> seen;
    node.each_operand([&](ValueId v) {
      if (std::find(seen.begin(), seen.end(), v) != seen.end()) return;
      seen.push_back(v);
      ++(node.phase == Phase::forward ? forward_uses_ : backward_uses_)[v.index];
    });
  }
  for (const auto& output : graph_.outputs) {
    if (output.kind == Output::Kind::loss) continue;
    const auto producer = graph_.values[output.value.index].producer;
    if (producer < 0) continue;
    ++(is_forward(output.value) ? forward_uses_ : backward_uses_)[output.value.index];
  }
  std::vector<bool> kept(graph_.values.size());
  saved_views_.assign(graph_.nodes.size(), false);
  for (size_t n = graph_.nodes.size(); n-- > 0;) {
    const auto& node = graph_.nodes[n];
    const bool view = graph::is_view(node.op) || node.op == "perigee::reshape";
    if (node.phase != Phase::forward || !view) continue;
    const auto v = node.outputs[0];
    saved_views_[n] = kept[v.index] || backward_uses_[v.index] > 0;
    if (!saved_views_[n]) continue;
    node.each_operand([&](ValueId operand) { kept[operand.index] = true; });
  }
}

bool AssignmentVariables::is_forward(ValueId v) const {
  const auto producer = graph_.values[v.index].producer;
  return producer < 0 || graph_.nodes[producer].phase == Phase::forward;
}

// Adds a variable for each value that several nodes read; corresponding values of identical blocks
// share one.
void AssignmentVariables::add_values() {
  variable_of_value_.assign(graph_.values.size(), -1);
  backward_variable_of_value_.assign(graph_.values.size(), -1);
  std::map<std::tuple<size_t, int, int, int>, std::vector<ValueId>> classes;
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    const auto& value = graph_.values[v];
    if (value.producer < 0) continue;
    const ValueId id{static_cast<int32_t>(v)};
    // Values that are pinned in different ways have variables of their own.
    classes[{representative_[value.producer], value.result, numbers_.of(base_.values[v]),
             numbers_.of(pinned_[v])}]
        .push_back(id);
  }
  readers_.resize(graph_.values.size());
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    size_t i = 0;
    graph_.nodes[n].each_operand([&](ValueId v) { readers_[v.index].emplace_back(n, i++); });
  }
  for (const auto& [key, members] : classes) add_class(members);
}

void AssignmentVariables::add_class(const std::vector<ValueId>& members) {
  const auto& first = graph_.values[members[0].index];
  if (!node_options_.depends(first.producer)) return;
  bool several = false, read_often_backward = false, pinned = false;
  std::vector<Placements> places{Placements(axes_.size())};
  for (auto v : members) {
    const int forward = forward_uses_[v.index], backward = backward_uses_[v.index];
    several = several || forward + backward > 1;
    read_often_backward = read_often_backward || (is_forward(v) && backward > 1);
    pinned = pinned || !pinned_[v.index].empty();
  }
  if (!several && !pinned) return;
  std::set<std::pair<int, size_t>> known;
  for (auto v : members) {
    for (const auto& [n, i] : readers_[v.index]) {
      if (!known.emplace(node_options_.number(n), i).second) continue;
      for (const auto& node_option : node_options_.of(n))
        add(places, on_axes(node_option.sharding.operands[i]));
    }
  }
  for (const auto& node_option : node_options_.of(first.producer)) {
    add(places, on_axes(node_option.sharding.results[first.result]));
  }
  const bool gathers = is_forward(members[0]) && graph::is_floating(first.type.dtype);
  std::vector<ValueState> states, plain;
  for (const auto& p : places) plain.push_back({p});
  states = plain;
  for (const auto& p : places) {
    if (gathers) add_sharded_states(states, p);
  }
  if (pinned) {
    std::erase_if(states, [&](const ValueState& s) { return !obeys(s, members[0]); });
    if (states.empty()) {
      auto pin = pinned_[members[0].index];
      for (auto& p : pin) p = p.is_open() ? Placement::replicate() : p;
      states.push_back({std::move(pin)});
    }
  }
  const int own = add_variable(members[0], states);
  for (auto v : members) variable_of_value_[v.index] = own;
  add_saved_cost(own, members);
  if (!read_often_backward) return;
  const int other = add_variable(members[0], plain);
  for (auto v : members) backward_variable_of_value_[v.index] = other;
}

// Adds the states that save this shard: replicated on some or all of the axes on which it
// is sharded.
void AssignmentVariables::add_sharded_states(std::vector<ValueState>& states,
                                             const Placements& shard) const {
  for (unsigned mask = 1; mask < 1u << axes_.size(); ++mask) {
    auto placements = shard;
    bool sharded = true;
    for (size_t k = 0; k < axes_.size(); ++k) {
      if ((mask >> k & 1) == 0) continue;
      sharded = sharded && shard[k].is_shard();
      placements[k] = Placement::replicate();
    }
    if (sharded) states.push_back({std::move(placements), shard});
  }
}

// Adds the cost of saving a forward value for the backward pass.
void AssignmentVariables::add_saved_cost(int variable, const std::vector<ValueId>& members) {
  auto& own = list_[variable];
  if (options_.saved_byte == 0 || !is_forward(members[0])) return;
  for (size_t o = 0; o < own.states.size(); ++o) {
    const double share = share_on_axes(own.states[o].saved());
    for (auto v : members) {
      if (backward_uses_[v.index] == 0) continue;
      own.time[o] += options_.saved_byte * share * bytes_of(v);
    }
  }
}

// The fraction of a tensor that a rank holds with these placements on the planned axes.
double AssignmentVariables::share_on_axes(const Placements& placements) const {
  double share = 1;
  for (size_t k = 0; k < axes_.size(); ++k) {
    if (placements[k].is_shard()) share /= redistributor_.group_size({axes_[k]});
  }
  return share;
}

// Bytes of a value on a rank, sharded on the other axes only.
double AssignmentVariables::bytes_of(ValueId v) const {
  double bytes = Redistributor::bytes_of(graph_.type(v));
  for (int a = 0; a < static_cast<int>(plan_.mesh.axes.size()); ++a) {
    const bool planned = std::find(axes_.begin(), axes_.end(), a) != axes_.end();
    if (!planned && base_.values[v.index][a].is_shard()) bytes /= redistributor_.group_size({a});
  }
  return bytes;
}

int AssignmentVariables::add_variable(ValueId v, std::vector<ValueState> states) {
  AssignmentVariable variable{fmt::format("value {}", v.index), 0, std::move(states), v};
  variable.time.assign(variable.states.size(), 0);
  list_.push_back(std::move(variable));
  return static_cast<int>(list_.size()) - 1;
}

// Corresponding parameters of identical blocks share a variable.
void AssignmentVariables::add_parameters() {
  std::vector<std::pair<size_t, int>> reader(graph_.values.size(), {graph_.nodes.size(), 0});
  for (size_t n = graph_.nodes.size(); n-- > 0;) {
    int i = 0;
    graph_.nodes[n].each_operand([&](ValueId v) { reader[v.index] = {representative_[n], i++}; });
  }
  std::map<std::tuple<size_t, int, int>, int> known;
  for (const auto& input : graph_.inputs) {
    const auto v = input.value;
    const bool free = input.kind == Input::Kind::parameter &&
                      reader[v.index].first < graph_.nodes.size() &&
                      std::ranges::any_of(on_axes(base_.values[v.index]),
                                          [](const auto& p) { return p.is_replicate(); });
    if (!free) continue;
    const auto& [node, operand] = reader[v.index];
    const auto [at, added] = known.try_emplace({node, operand, numbers_.of(base_.values[v.index])},
                                               -1);
    if (added) at->second = add_variable(v, states_of(v));
    variable_of_value_[v.index] = at->second;
    auto& own = list_[at->second];
    const bool weight = graph_.type(v).shape.size() > 1;
    for (size_t o = 0; o < own.states.size() && own.states.size() > 1; ++o) {
      const auto& placements = own.states[o].placements;
      if (weight) own.time[o] += options_.replicated_factor * price_of_gathering(v, own.states[o]);
      if (options_.parameter_byte > 0)
        own.time[o] += options_.parameter_byte * share_on_axes(placements) * bytes_of(v);
    }
  }
}

// The states of a parameter: replicated or sharded on each planned axis on which the plan does not
// place it already.
std::vector<ValueState> AssignmentVariables::states_of(ValueId v) const {
  const auto& type = graph_.type(v);
  const auto& base = base_.values[v.index];
  std::vector<Placements> candidates{base};
  const bool small = type.shape.size() > 1 && type.bytes() < options_.smallest;
  for (size_t k = 0; k < axes_.size() && !small; ++k) {
    if (!base[axes_[k]].is_replicate()) continue;
    for (size_t i = 0, count = candidates.size(); i < count; ++i) {
      for (size_t d = 0; d < type.shape.size(); ++d) {
        auto& more = candidates.emplace_back(candidates[i]);
        more[axes_[k]] = Placement::shard(static_cast<int>(d));
        if (!fits(type, more, static_cast<int>(d))) candidates.pop_back();
      }
    }
  }
  std::vector<ValueState> states;
  for (const auto& p : candidates) states.push_back({on_axes(p)});
  return states;
}

// Whether every rank has an element of the dim, and the plan allows as many cuts.
bool AssignmentVariables::fits(const graph::TensorType& type, const Placements& placements,
                               int dim) const {
  int64_t parts = 1;
  int cuts = 0;
  for (size_t a = 0; a < placements.size(); ++a) {
    if (!placements[a].is_shard()) continue;
    cuts += plan_.mesh.axes[a].size > 1;
    if (placements[a].dim == dim) parts *= plan_.mesh.axes[a].size;
  }
  const bool once = std::ranges::count(plan_.forbidden, "nd_shardings") > 0;
  return type.shape[dim] >= parts && (cuts < 2 || !once);
}

// The cost of gathering the parameter twice over the axes on which it is replicated, and of
// reduce-scattering its gradient.
double AssignmentVariables::price_of_gathering(ValueId v, const ValueState& state) {
  std::vector<int> whole;
  double bytes = bytes_of(v);
  for (size_t k = 0; k < axes_.size(); ++k) {
    if (state.placements[k].is_replicate()) {
      whole.push_back(axes_[k]);
    } else {
      bytes /= redistributor_.group_size({axes_[k]});
    }
  }
  if (whole.empty()) return 0;
  const double n = redistributor_.group_size(whole);
  return 3 * (Redistributor::kLatency + (n - 1) / n * bytes);
}

Placements AssignmentVariables::placed(ValueId v, const Placements& on_axes) const {
  auto placements = base_.values[v.index];
  for (size_t k = 0; k < axes_.size(); ++k) placements[axes_[k]] = on_axes[k];
  return placements;
}

}  // namespace perigee::shard
