#include "compile/gradients/loss_scale.h"

#include <cstring>

#include "base/fail.h"

namespace perigee::compile {

using graph::DType;
using graph::Node;
using graph::NodeId;
using graph::Phase;

namespace {

std::string bytes_of(double scale) {
  const auto number = static_cast<float>(scale);
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

// Returns the node of the loss's gradient (ones), the first of the backward pass.
NodeId find_start(const graph::Graph& graph) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    if (node.phase != Phase::backward) continue;
    const auto* value = node.find("value");
    if (node.op != "perigee::full" || !value || node.get<double>("value", 0) != 1) break;
    return static_cast<NodeId>(n);
  }
  fail("compile",
       "a loss that is scaled must have a backward pass that starts with ones, but this graph's "
       "does not");
}

}  // namespace

graph::Graph scale_loss(graph::Graph graph, const plan::LossScale& scale) {
  bool trains = false;
  for (const auto& output : graph.outputs) {
    trains |= output.kind == graph::Output::Kind::gradient;
  }
  if (scale.kind == plan::LossScale::Kind::none || !trains) return graph;
  const auto start = find_start(graph);
  const auto factor = graph.add_input(graph::Input::Kind::constant, kLossScale,
                                      {DType::float32, {}});
  graph.inputs.back().data = bytes_of(scale.init_scale);
  const auto ones = graph.nodes[start].outputs[0];
  const auto scaled = graph.add_value(graph.type(ones));
  for (auto& node : graph.nodes) {
    node.each_operand([&](graph::ValueId& v) {
      if (v == ones) v = scaled;
    });
    if (node.forward_node > start) ++node.forward_node;
  }
  Node node{.op = "aten::mul.Tensor",
            .args = {{"self", ones}, {"other", factor}},
            .outputs = {scaled},
            .scope = graph.nodes[start].scope,
            .phase = Phase::backward};
  graph.nodes.insert(graph.nodes.begin() + start + 1, std::move(node));
  for (auto& value : graph.values) {
    if (value.producer > start) ++value.producer;
  }
  graph.values[scaled.index].producer = start + 1;
  return graph;
}

LossScaleState make_loss_scale(Draft& draft, const plan::Precision& precision, bool guarded) {
  LossScaleState state;
  if (!precision.guards() && !guarded) return state;
  const auto add = [&](DType dtype, const std::string& name, std::string first) {
    Binding binding;
    binding.kind = Binding::Kind::state;
    const auto full = state_name("loss_scale", name);
    binding.name = full.text;
    binding.value = draft.add({dtype, {}}, full, {.kind = Home::Kind::persistent});
    binding.data = std::move(first);
    const auto value = binding.value;
    draft.bind(std::move(binding));
    return value;
  };
  const bool scales = precision.loss_scale.kind != plan::LossScale::Kind::none;
  state.value = add(DType::float32, "value",
                    bytes_of(scales ? precision.loss_scale.init_scale : 1));
  state.growth_tracker = add(DType::float64, "growth_tracker", "");
  state.skipped_steps = add(DType::float64, "skipped_steps", "");
  if (precision.loss_scale.hysteresis > 1) state.patience = add(DType::float64, "patience", "");
  state.applied_step = draft.add({DType::float64, {}}, "applied_step",
                                 {.kind = Home::Kind::persistent});
  return state;
}

void update_loss_scale(const LossScaleState& state, const plan::LossScale& scale,
                       ValueId squared_norm, ValueId step, ValueId examined,
                       std::vector<DraftInstruction>& out) {
  const bool dynamic = scale.kind == plan::LossScale::Kind::dynamic;
  std::vector<std::pair<std::string, graph::Arg>> args = {
      {"loss_scale", state.value},
      {"growth_tracker", state.growth_tracker},
      {"skipped_steps", state.skipped_steps},
      {"applied_step", state.applied_step},
      {"squared_norm", squared_norm},
      {"step", step},
      {"growth_factor", dynamic ? scale.growth_factor : 1.0},
      {"backoff_factor", dynamic ? scale.backoff_factor : 1.0},
      {"growth_interval", scale.growth_interval}};
  std::vector<ValueId> written = {state.value, state.growth_tracker, state.skipped_steps,
                                  state.applied_step};
  if (examined.defined()) args.emplace_back("scale", examined);
  if (dynamic && scale.min_scale > 0) args.emplace_back("min_scale", scale.min_scale);
  if (state.patience.defined()) {
    args.emplace_back("patience", state.patience);
    args.emplace_back("hysteresis", scale.hysteresis);
    written.push_back(state.patience);
  }
  out.push_back(in_place("perigee::update_loss_scale_", std::move(args), std::move(written)));
}

}  // namespace perigee::compile
