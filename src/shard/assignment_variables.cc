#include "shard/assignment_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "graph/ops.h"

namespace perigee::shard {
namespace {

using graph::Input;
using graph::Output;
using graph::Phase;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

// How much dearer a weight is that stays whole than one that is gathered for each pass.
constexpr double kWhole = 1.01;

void add(std::vector<Placement>& places, const Placement& place) {
  if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
}

}  // namespace

Variables::Variables(const AssignmentInputs& inputs, Redistributor& redistributor,
                     PlacementNumbers& numbers)
    : graph_(inputs.graph),
      plan_(inputs.plan),
      axis_(inputs.axis),
      options_(inputs.options),
      base_(inputs.base),
      ways_(inputs.ways),
      stands_for_(inputs.stands_for),
      redistributor_(redistributor),
      numbers_(numbers) {
  find_pins();
  add_nodes();
  find_uses();
  add_values();
  add_parameters();
}

// What the plan pins on the axis.
void Variables::find_pins() {
  pinned_.resize(graph_.values.size());
  if (plan_.placements.empty()) return;
  const auto names = graph::value_names(graph_);
  for (size_t v = 0; v < names.size(); ++v) {
    const auto found = plan_.placements.find(names[v]);
    if (found == plan_.placements.end() || graph_.values[v].producer < 0) continue;
    if (!found->second[axis_].is_open()) pinned_[v] = found->second[axis_];
  }
}

void Variables::add_nodes() {
  of_node_.assign(graph_.nodes.size(), -1);
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    if (stands_for_[n] != n) continue;
    of_node_[n] = static_cast<int>(list_.size());
    Variable variable{fmt::format("{}/{}", graph_.nodes[n].scope, graph_.nodes[n].op), n};
    variable.time.assign(ways_.of(n).size(), 0);
    list_.push_back(std::move(variable));
  }
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const int own = of_node_[n] = of_node_[stands_for_[n]];
    const auto& list = ways_.of(n);
    for (size_t o = 0; o < list.size(); ++o) list_[own].time[o] += list[o].choice.cost;
  }
}

// Nodes that read each value in either phase, outputs among them.
void Variables::find_uses() {
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
  kept_views_.assign(graph_.nodes.size(), false);
  for (size_t n = graph_.nodes.size(); n-- > 0;) {
    const auto& node = graph_.nodes[n];
    const bool view = graph::is_view(node.op) || node.op == "perigee::reshape";
    if (node.phase != Phase::forward || !view) continue;
    const auto v = node.outputs[0];
    kept_views_[n] = kept[v.index] || backward_uses_[v.index] > 0;
    if (!kept_views_[n]) continue;
    node.each_operand([&](ValueId operand) { kept[operand.index] = true; });
  }
}

bool Variables::is_forward(ValueId v) const {
  const auto producer = graph_.values[v.index].producer;
  return producer < 0 || graph_.nodes[producer].phase == Phase::forward;
}

// Values that several read: equal ones of blocks that are alike are one variable.
void Variables::add_values() {
  settled_.assign(graph_.values.size(), -1);
  again_.assign(graph_.values.size(), -1);
  std::map<std::tuple<size_t, int, int>, std::vector<ValueId>> classes;
  for (size_t v = 0; v < graph_.values.size(); ++v) {
    const auto& value = graph_.values[v];
    if (value.producer < 0) continue;
    const ValueId id{static_cast<int32_t>(v)};
    classes[{stands_for_[value.producer], value.result, numbers_.of(base_.values[v])}].push_back(
        id);
  }
  std::vector<std::vector<Placement>> wanted(graph_.values.size());
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    size_t i = 0;
    graph_.nodes[n].each_operand([&](ValueId v) {
      for (const auto& way : ways_.of(n)) add(wanted[v.index], way.choice.operands[i][axis_]);
      ++i;
    });
  }
  for (const auto& [key, members] : classes) add_class(members, wanted);
}

void Variables::add_class(const std::vector<ValueId>& members,
                          const std::vector<std::vector<Placement>>& wanted) {
  const auto& first = graph_.values[members[0].index];
  if (!ways_.depends(first.producer)) return;
  bool several = false, again = false, pinned = false;
  std::vector<Placement> places{Placement::replicate()};
  for (auto v : members) {
    const int forward = forward_uses_[v.index], backward = backward_uses_[v.index];
    several = several || forward + backward > 1;
    again = again || (is_forward(v) && backward > 1);
    pinned = pinned || pinned_[v.index];
    for (const auto& p : wanted[v.index]) add(places, p);
  }
  if (!several && !pinned) return;
  for (const auto& way : ways_.of(first.producer)) {
    add(places, way.choice.results[first.result][axis_]);
  }
  const bool gathers = is_forward(members[0]) && graph::is_floating(first.type.dtype);
  std::vector<State> states;
  for (const auto& p : places) states.push_back({p});
  for (const auto& p : places) {
    if (gathers && p.is_shard()) states.push_back({Placement::replicate(), p});
  }
  if (pinned) {
    const auto& pin = pinned_[members[0].index];
    std::erase_if(states, [&](const State& s) { return pin && s.lies != *pin; });
    if (states.empty()) states.push_back({*pin});
  }
  const int own = add_variable(members[0], states);
  for (auto v : members) settled_[v.index] = own;
  keep(own, members);
  if (!again) return;
  std::vector<State> plain;
  for (const auto& p : places) plain.push_back({p});
  const int other = add_variable(members[0], plain);
  for (auto v : members) again_[v.index] = other;
}

// What it costs to keep a value of the forward pass for the backward pass.
void Variables::keep(int variable, const std::vector<ValueId>& members) {
  auto& own = list_[variable];
  if (options_.kept_byte == 0 || !is_forward(members[0])) return;
  for (size_t o = 0; o < own.states.size(); ++o) {
    const auto& kept = own.states[o].piece.value_or(own.states[o].lies);
    const double share = kept.is_shard() ? 1 / redistributor_.group_size({axis_}) : 1;
    for (auto v : members) {
      if (backward_uses_[v.index] == 0) continue;
      own.time[o] += options_.kept_byte * share * bytes_of(v);
    }
  }
}

// Bytes of a value on a rank, but for this axis.
double Variables::bytes_of(ValueId v) const {
  double bytes = Redistributor::bytes_of(graph_.type(v));
  for (size_t a = 0; a < plan_.mesh.axes.size(); ++a) {
    if (static_cast<int>(a) == axis_ || !base_.values[v.index][a].is_shard()) continue;
    bytes /= redistributor_.group_size({static_cast<int>(a)});
  }
  return bytes;
}

int Variables::add_variable(ValueId v, std::vector<State> states) {
  Variable variable{fmt::format("value {}", v.index), 0, std::move(states), v};
  variable.time.assign(variable.states.size(), 0);
  list_.push_back(std::move(variable));
  return static_cast<int>(list_.size()) - 1;
}

// Parameters of blocks that are alike are one where the same node reads them first.
void Variables::add_parameters() {
  std::vector<std::pair<size_t, int>> reader(graph_.values.size(), {graph_.nodes.size(), 0});
  for (size_t n = graph_.nodes.size(); n-- > 0;) {
    int i = 0;
    graph_.nodes[n].each_operand([&](ValueId v) { reader[v.index] = {stands_for_[n], i++}; });
  }
  std::map<std::tuple<size_t, int, int>, int> known;
  for (const auto& input : graph_.inputs) {
    const auto v = input.value;
    const bool free = input.kind == Input::Kind::parameter &&
                      reader[v.index].first < graph_.nodes.size() &&
                      base_.values[v.index][axis_].is_replicate();
    if (!free) continue;
    const auto& [node, operand] = reader[v.index];
    const auto [at, added] =
        known.try_emplace({node, operand, numbers_.of(base_.values[v.index])}, -1);
    if (added) at->second = add_variable(v, states_of(v));
    settled_[v.index] = at->second;
    if (graph_.type(v).shape.size() < 2) continue;
    list_[at->second].time[0] += kWhole * price_of_gathering(v, at->second);
  }
}

std::vector<State> Variables::states_of(ValueId v) const {
  const auto& type = graph_.type(v);
  std::vector<State> states{{Placement::replicate()}};
  if (type.shape.size() > 1 && type.bytes() < options_.smallest) return states;
  for (size_t d = 0; d < type.shape.size(); ++d) {
    int64_t parts = plan_.mesh.axes[axis_].size;
    for (size_t a = 0; a < plan_.mesh.axes.size(); ++a) {
      const auto& p = base_.values[v.index][a];
      if (p.is_shard() && p.dim == static_cast<int>(d)) parts *= plan_.mesh.axes[a].size;
    }
    if (type.shape[d] >= parts) states.push_back({Placement::shard(static_cast<int>(d))});
  }
  return states;
}

// What it would cost to gather the parameter twice, and to reduce its gradient to pieces.
double Variables::price_of_gathering(ValueId v, int variable) {
  if (list_[variable].states.size() < 2) return 0;
  const double n = redistributor_.group_size({axis_});
  return 3 * (Redistributor::kLatency + (n - 1) / n * bytes_of(v));
}

Placements Variables::placed(ValueId v, const Placement& p) const {
  auto placements = base_.values[v.index];
  placements[axis_] = p;
  return placements;
}

}  // namespace perigee::shard
