// Mixed precision as casts on the whole graph.
#include "compile/graph/autocast.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "graph/linear.h"
#include "graph/ops.h"
#include "plan/units.h"

namespace perigee::compile {
namespace {

using graph::DType;
using graph::Graph;
using graph::Input;
using graph::Node;
using graph::NodeId;
using graph::Output;
using graph::Phase;
using graph::TensorType;
using graph::ValueId;
using plan::Precision;
using plan::Rounding;
using Parameters = Precision::Parameters;
using Wanted = std::optional<DType>;

bool has(const std::vector<std::string>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// Returns whether values of the type are cast. As in LibTorch's autocast, float64 is not.
bool is_castable(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 || dtype == DType::float32;
}

Wanted widest(Wanted a, Wanted b) {
  if (!a || !b) return a ? a : b;
  return *a == *b ? *a : DType::float32;
}

bool is_batch_norm(std::string_view op) {
  return op == "aten::native_batch_norm" || op == "aten::native_batch_norm_backward" ||
         op == "aten::_native_batch_norm_legit" ||
         op == "aten::_native_batch_norm_legit.no_stats" ||
         op == "aten::_native_batch_norm_legit_functional" ||
         op == "aten::_native_batch_norm_legit_no_training";
}

// Returns whether the op only moves elements: its result has its operand's type.
bool moves(std::string_view op) {
  return graph::is_view(op) || op == "perigee::reshape" || op == "perigee::step_average" ||
         op == "aten::clone" || op == "aten::slice_backward" || op == "aten::select_backward";
}

// Returns whether the op is a view of a whole tensor, which can be cast before the view.
bool is_whole_view(std::string_view op) {
  return op == "aten::t" || op == "aten::transpose.int" || op == "aten::permute" ||
         op == "perigee::reshape" || op == "aten::unsqueeze" || op.starts_with("aten::squeeze") ||
         op == "aten::alias" || op == "aten::detach";
}

// Returns whether an operand keeps its precision: statistics, and all operands of batch norm except
// the images, since LibTorch's kernels take them in float32 with low-precision images.
bool stays_wide(std::string_view op, std::string_view argument) {
  if (is_batch_norm(op)) return argument != "input" && argument != "grad_out";
  return argument == "logsumexp" || argument == "rstd";
}
bool result_stays_wide(std::string_view op, size_t result) {
  if (result == 0) return false;
  if (op == "perigee::add_rms_norm") return result == 2;
  return is_batch_norm(op) || op == "perigee::attention" || op == "perigee::rms_norm" ||
         op == "perigee::cross_entropy";
}

// Returns whether the op computes in float32 and reads an operand in any type, which its gradient
// has, too: casts would change no number, but take memory for all logits in float32. Weights of
// classes have the type of the logits.
bool reads_as_is(const Node& node, std::string_view argument, DType compute) {
  const bool entropy = node.op == "perigee::cross_entropy" ||
                       node.op == "perigee::cross_entropy_backward";
  return entropy && argument == "logits" && compute == DType::float32 &&
         !node.get<ValueId>("weight", {}).defined();
}

class Autocast {
 public:
  Autocast(const Graph& graph, const plan::Plan& plan)
      : graph_(graph),
        precision_(plan.precision),
        low_(*plan.precision.dtype),
        result_(graph),
        computes_(graph.nodes.size()),
        moved_(graph.nodes.size(), -1),
        reads_low_(graph.values.size()),
        wanted_(graph.values.size()),
        outputs_of_(graph.values.size()),
        parameter_(graph.values.size(), nullptr),
        regathered_(graph.values.size()) {
    result_.nodes.clear();
    const auto& precision = plan.precision;
    const bool as_captured = precision.parameters == Parameters::as_captured;
    const auto anew = names_regathered(plan), gathered = names_gathered_low(plan);
    for (const auto& input : graph.inputs) {
      const bool weight = input.kind == Input::Kind::parameter;
      if (weight) parameter_[input.value.index] = &input;
      regathered_[input.value.index] = weight && anew.contains(input.name);
      const bool low = weight && gathered.contains(input.name);
      if ((as_captured && !low) || graph.type(input.value).dtype != DType::float32) continue;
      if (low || (weight && precision.parameters == Parameters::low)) {
        result_.values[input.value.index].type.dtype = low_;
      } else {
        reads_low_[input.value.index] = weight || input.kind == Input::Kind::data;
      }
    }
    for (size_t o = 0; o < graph.outputs.size(); ++o) {
      const auto& output = graph.outputs[o];
      types_.push_back(output.value.defined() ? graph.type(output.value).dtype : DType::boolean);
      if (!output.value.defined()) continue;
      outputs_of_[output.value.index].push_back(o);
      if (output.kind == Output::Kind::gradient && !as_captured && is_castable(types_.back())) {
        const bool in_parts = std::any_of(
            plan.units.begin(), plan.units.end(),
            [&](const plan::Unit& unit) { return has(unit.parameters, output.name); });
        types_.back() = in_parts ? DType::float32
                                 : precision.gradients.value_or(
                                       plan.microbatches > 1 ? DType::float32 : low_);
      }
      if (output.kind == Output::Kind::gradient) {
        auto& wanted = wanted_[output.value.index];
        wanted = widest(wanted, types_.back());
      }
    }
  }

  Graph run() {
    bool backward = false;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].phase == Phase::backward && !backward) {
        backward = true;
        find_wanted(n);
      }
      node(n);
    }
    return std::move(result_);
  }

 private:
  DType type(ValueId v) const { return result_.values[v.index].type.dtype; }

  // Returns the value's type for ops whose compute type depends on their operands.
  DType seen(ValueId v) const { return reads_low_[v.index] ? low_ : type(v); }

  // Returns whether the node is the autograd engine's sum of a value's gradients.
  bool adds_up(const Node& node) const {
    if (node.phase != Phase::backward || node.op != "aten::add.Tensor") return false;
    bool sums = node.args.size() == 2;
    node.each_operand([&](ValueId v) {
      const auto producer = graph_.values[v.index].producer;
      sums = sums && producer >= 0 && graph_.nodes[producer].phase == Phase::backward &&
             graph_.type(v) == graph_.type(node.outputs[0]);
    });
    return sums;
  }

  // Finds the types in which ops of the backward pass read its values, from the last op back.
  void find_wanted(size_t first) {
    for (size_t n = graph_.nodes.size(); n-- > first;) {
      const auto& node = graph_.nodes[n];
      if (node.phase != Phase::backward) continue;
      Wanted want;
      if (adds_up(node) || moves(node.op)) {
        want = wanted(node);
      } else if (node.forward_node >= 0) {
        want = computes_[node.forward_node];
      }
      node.each_operand([&](ValueId v) { wanted_[v.index] = widest(wanted_[v.index], want); });
    }
  }

  Wanted wanted(const Node& node) const {
    Wanted want;
    for (const auto v : node.outputs) {
      if (v.defined()) want = widest(want, wanted_[v.index]);
    }
    return want;
  }

  bool is_outside(const Node& node) const {
    return !precision_.scopes.empty() &&
           std::none_of(precision_.scopes.begin(), precision_.scopes.end(), [&](const auto& scope) {
             return graph::contains_scope(scope, node.scope);
           });
  }

  Rounding rounding(const Node& node) const {
    if (is_outside(node)) return Rounding::full;
    if (has(precision_.allow, node.op)) return Rounding::low;
    if (has(precision_.deny, node.op)) return Rounding::full;
    if (has(precision_.promote, node.op)) return Rounding::widest;
    // A linear layer is one op of LibTorch's list: its bias is added in the type of the product.
    if (graph::adds_bias(graph_, node))
      return seen(node.get<ValueId>("self", {})) == low_ ? Rounding::low : Rounding::follow;
    return plan::built_in_rounding(node.op, precision_.parameters);
  }

  // Returns the widest type by LibTorch's promotion: with `scalars_follow`, of operands with dims,
  // if there are any.
  Wanted widest_operand(const Node& node, bool scalars_follow) const {
    Wanted of_tensors, of_all;
    node.each_operand([&](ValueId v) {
      if (!is_castable(type(v))) return;
      of_all = widest(of_all, seen(v));
      if (!graph_.type(v).shape.empty()) of_tensors = widest(of_tensors, seen(v));
    });
    return scalars_follow && of_tensors ? of_tensors : of_all;
  }

  // Returns the type that the op computes in; nothing: the types of its operands and results.
  Wanted decide(const Node& node) const {
    const auto* dtype = node.find("dtype");
    bool castable = false, other = false;
    node.each_operand([&](ValueId v) {
      castable |= is_castable(type(v));
      other |= graph::is_floating(type(v)) && !is_castable(type(v));
    });
    if (!castable || other || node.op == "perigee::cast" ||
        (dtype && std::holds_alternative<DType>(*dtype))) {
      return std::nullopt;
    }
    if (is_batch_norm(node.op) && node.forward_node < 0) {
      const auto* input = node.find("input");
      return is_outside(node) ? DType::float32 : seen(std::get<ValueId>(*input));
    }
    const auto followed = widest_operand(node, graph::is_pointwise(node.op));
    if (moves(node.op)) return is_outside(node) ? type(node.only_operand()) : followed;
    if (adds_up(node)) return wanted(node) ? wanted(node) : followed;
    if (node.forward_node >= 0 && computes_[node.forward_node]) {
      return computes_[node.forward_node];
    }
    switch (rounding(node)) {
      case Rounding::low:
        return low_;
      case Rounding::full:
        return DType::float32;
      case Rounding::widest:
        return widest_operand(node, false);
      case Rounding::follow:
        return followed;
    }
    return followed;
  }

  void node(size_t n) {
    Node node = graph_.nodes[n];
    const auto compute = decide(node);
    computes_[n] = compute;
    if (node.forward_node >= 0) node.forward_node = moved_[node.forward_node];
    if (compute) cast_operands(node, *compute);
    moved_[n] = push(std::move(node));
    const auto& source = graph_.nodes[n];
    for (size_t r = 0; r < source.outputs.size(); ++r) {
      const auto v = source.outputs[r];
      if (!v.defined() || !compute) continue;
      auto& dtype = result_.values[v.index].type.dtype;
      if (is_castable(dtype) && !result_stays_wide(source.op, r)) dtype = result_type(n, *compute);
    }
    if (precision_.parameters != Parameters::as_captured && plan::is_norm(source.op) &&
        *compute == DType::float32 && source.outputs[0].defined()) {
      reads_low_[source.outputs[0].index] = true;
    }
    for (const auto v : source.outputs) {
      if (v.defined()) cast_outputs(v, result_.nodes.back());
    }
  }

  // Returns the type of results of the node, which computes in `compute`.
  DType result_type(size_t n, DType compute) const {
    const auto& node = graph_.nodes[n];
    const bool entropy = node.op == "perigee::cross_entropy_backward";
    return entropy && reads_as_is(node, "logits", compute) ? type(node.get<ValueId>("logits", {}))
                                                           : compute;
  }

  void cast_operands(Node& node, DType compute) {
    const Node here = node;
    bool tensors = false;
    here.each_operand([&](ValueId v) { tensors |= !graph_.type(v).shape.empty(); });
    const bool leaves_scalars = tensors && graph::is_pointwise(node.op);
    const auto operand = [&](const std::string& argument, ValueId& v) {
      if (!v.defined() || !is_castable(type(v)) || reads_as_is(node, argument, compute)) return;
      if (stays_wide(node.op, argument)) {
        v = cast(v, DType::float32, here);
      } else if (!leaves_scalars || !graph_.type(v).shape.empty()) {
        v = cast(v, compute, here);
      }
    };
    for (auto& [name, arg] : node.args) {
      if (auto* v = std::get_if<ValueId>(&arg)) {
        operand(name, *v);
      } else if (auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
        for (auto& v : *list) operand(name, v);
      }
    }
  }

  void cast_outputs(ValueId v, const Node& maker) {
    const Node here = maker;
    for (const auto o : outputs_of_[v.index]) {
      if (is_castable(types_[o])) result_.outputs[o].value = cast(v, types_[o], here);
    }
  }

  // Returns the value in that type. A new cast has the scope and phase of the op that reads it.
  ValueId cast(ValueId v, DType to, const Node& reader) {
    if (type(v) == to) return v;
    const auto shown = shown_parameter(v);
    const bool anew = shown.defined() && regathered_[shown.index] &&
                      reader.phase == Phase::backward;
    if (const auto known = casts_.find({v.index, to, anew}); known != casts_.end()) {
      return known->second;
    }
    const TensorType made{to, result_.type(v).shape};
    Node node{.op = "perigee::cast", .args = {{"self", v}}, .scope = reader.scope};
    const auto producer = result_.values[v.index].producer;
    if (producer >= 0 && (shown.defined() || views_gradient(producer))) {
      const Node view = result_.nodes[producer];
      node.op = view.op;
      node.args = view.args;
      node.each_operand([&](ValueId& operand) { operand = cast(operand, to, reader); });
    }
    node.phase = reader.phase;
    // A summand is cast where it is made: with a pipeline, on its own stage.
    const bool sums = reader.op == "aten::add.Tensor";
    node.forward_node = reader.phase == Phase::backward && !sums ? reader.forward_node : -1;
    const auto value = result_.add_value(made);
    node.outputs = {value};
    push(std::move(node));
    return casts_[{v.index, to, anew}] = value;
  }

  // Returns whether the node is a view of all elements of a gradient, which its readers cast once.
  bool views_gradient(NodeId n) const {
    const auto& node = result_.nodes[n];
    return node.phase == Phase::backward && is_whole_view(node.op) &&
           type(node.only_operand()) == type(node.outputs[0]);
  }

  // Returns the parameter of which the value is a view with all elements, or no value.
  ValueId shown_parameter(ValueId v) const {
    while (result_.values[v.index].producer >= 0) {
      const auto& node = result_.nodes[result_.values[v.index].producer];
      if (!is_whole_view(node.op)) return {};
      v = node.only_operand();
    }
    const bool known = v.index < static_cast<int32_t>(parameter_.size());
    return known && parameter_[v.index] ? v : ValueId{};
  }

  // Returns the parameters that the ranks of a unit gather in the low precision.
  static std::set<std::string> names_gathered_low(const plan::Plan& plan) {
    std::set<std::string> names;
    if (!plan.precision.scopes.empty()) return names;
    for (const auto& unit : plan.units) {
      int64_t ranks = 1;
      for (const auto& axis : unit.axes) ranks *= plan.mesh.size_of(axis);
      if (plan::stores_parts(plan, unit) && ranks > 1) {
        names.insert(unit.parameters.begin(), unit.parameters.end());
      }
    }
    return names;
  }

  // Returns the parameters that are re-gathered for the backward pass.
  static std::set<std::string> names_regathered(const plan::Plan& plan) {
    std::set<std::string> names;
    for (const auto& unit : plan.units) {
      if (unit.level < 3 || !unit.reshard_after_forward) continue;
      names.insert(unit.parameters.begin(), unit.parameters.end());
    }
    const auto batch = plan.batch_axes;
    for (const auto& [name, placements] : plan.placements) {
      for (size_t a = 0; a < placements.size(); ++a) {
        const bool of_batch = std::find(batch.begin(), batch.end(), plan.mesh.axes[a].name) !=
                              batch.end();
        if (of_batch && placements[a].is_shard()) names.insert(name);
      }
    }
    return names;
  }

  NodeId push(Node node) { return append(result_, std::move(node)); }

  const Graph& graph_;
  const Precision& precision_;
  const DType low_;
  Graph result_;
  std::vector<Wanted> computes_;                 // by node of the graph
  std::vector<NodeId> moved_;                    // by node of the graph: its place in the result
  std::vector<bool> reads_low_;                  // by value of the graph
  std::vector<Wanted> wanted_;                   // by value of the graph
  std::vector<std::vector<size_t>> outputs_of_;  // by value of the graph
  std::vector<DType> types_;                     // by output
  std::vector<const Input*> parameter_;          // by value of the graph
  std::vector<bool> regathered_;                 // by value of the graph
  std::map<std::tuple<int32_t, DType, bool>, ValueId> casts_;  // true: for the backward pass alone
};

}  // namespace

Graph autocast(const Graph& graph, const plan::Plan& plan) {
  if (!plan.precision.dtype) return graph;
  return Autocast(graph, plan).run();
}

Graph as_computed(Graph graph, const plan::Plan& plan) {
  const auto rounded = autocast(graph, plan);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    graph.values[v].type.dtype = rounded.values[v].type.dtype;
  }
  return graph;
}

NodeId append(Graph& graph, Node node) {
  const auto id = static_cast<NodeId>(graph.nodes.size());
  for (size_t r = 0; r < node.outputs.size(); ++r) {
    if (!node.outputs[r].defined()) continue;
    auto& value = graph.values[node.outputs[r].index];
    value.producer = id;
    value.result = static_cast<int32_t>(r);
  }
  graph.nodes.push_back(std::move(node));
  return id;
}

plan::Plan with_names_of(plan::Plan plan, const Graph& before, const Graph& now) {
  if (plan.placements.empty()) return plan;
  const auto old_names = graph::value_names(before), names = graph::value_names(now);
  std::map<std::string, mesh::Placements> placements;
  for (size_t v = 0; v < old_names.size(); ++v) {
    const auto found = plan.placements.find(old_names[v]);
    const bool stands = found != plan.placements.end() && !names[v].empty();
    if (stands) placements[names[v]] = found->second;
  }
  plan.placements = std::move(placements);
  return plan;
}

}  // namespace perigee::compile
