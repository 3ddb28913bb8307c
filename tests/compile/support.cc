#include "tests/compile/support.h"

#include <algorithm>

#include "base/fail.h"
#include "compile/draft/layout.h"

namespace perigee::compile {

using namespace graph;

Graph mlp(MlpShape shape) {
  Graph g;
  const TensorType activation{DType::float32, {shape.batch, shape.width}};
  const TensorType weight{DType::float32, {shape.width, shape.width}};
  const TensorType bias{DType::float32, {shape.width}}, scalar{DType::float32, {}};
  const auto x = g.add_input(Input::Kind::data, "x", activation);
  const auto target = g.add_input(Input::Kind::data, "target", activation);
  std::vector<ValueId> weights, biases, inputs{x}, sums;
  g.scopes.push_back({"", "Mlp"});
  g.scopes.push_back({"layer", "ModuleList"});
  for (int64_t k = 0; k < shape.layers; ++k) {
    const std::string scope = "layer." + std::to_string(k);
    weights.push_back(g.add_input(Input::Kind::parameter, scope + ".weight", weight));
    biases.push_back(g.add_input(Input::Kind::parameter, scope + ".bias", bias));
    g.scopes.push_back({scope, "Linear"});
  }
  std::string scope;
  Phase phase = Phase::forward;
  auto one = [&](std::string op, std::vector<std::pair<std::string, Arg>> args, TensorType type) {
    return g.add_node(std::move(op), std::move(args), {std::move(type)}, scope, phase)[0];
  };
  for (int64_t k = 0; k < shape.layers; ++k) {
    scope = "layer." + std::to_string(k);
    const auto t = one("aten::t", {{"self", weights[k]}}, weight);
    const auto h = one("aten::mm", {{"self", inputs[k]}, {"mat2", t}}, activation);
    sums.push_back(one("aten::add.Tensor", {{"self", h}, {"other", biases[k]}}, activation));
    inputs.push_back(one("aten::gelu", {{"self", sums[k]}}, activation));
  }
  scope = "";
  const auto difference = one("aten::sub.Tensor", {{"self", inputs.back()}, {"other", target}},
                              activation);
  const auto square = one("aten::mul.Tensor", {{"self", difference}, {"other", difference}},
                          activation);
  g.outputs.push_back({Output::Kind::loss, "loss", one("aten::mean", {{"self", square}}, scalar)});

  phase = Phase::backward;
  const auto seed = one("perigee::full", {{"value", 1.0}}, scalar);
  const auto wide = one("perigee::expand", {{"self", seed}}, activation);
  const double scale = 2.0 / static_cast<double>(shape.batch * shape.width);
  const auto scaled = one("aten::mul.Scalar", {{"self", wide}, {"other", scale}}, activation);
  auto gradient = one("aten::mul.Tensor", {{"self", scaled}, {"other", difference}}, activation);
  for (int64_t k = shape.layers; k-- > 0;) {
    scope = "layer." + std::to_string(k);
    const auto inner = one("aten::gelu_backward", {{"grad_output", gradient}, {"self", sums[k]}},
                           activation);
    const auto row = one("aten::sum.dim_IntList",
                         {{"self", inner}, {"dim", std::vector<int64_t>{0}}, {"keepdim", true}},
                         {DType::float32, {1, shape.width}});
    const auto db = one("perigee::reshape", {{"self", row}}, bias);
    const auto t = one("aten::t", {{"self", inner}}, {DType::float32, {shape.width, shape.batch}});
    const auto product = one("aten::mm", {{"self", t}, {"mat2", inputs[k]}}, weight);
    const auto there = one("aten::t", {{"self", product}}, weight);
    const auto back = one("aten::t", {{"self", there}}, weight);
    g.outputs.push_back({Output::Kind::gradient, scope + ".bias", db});
    g.outputs.push_back({Output::Kind::gradient, scope + ".weight", back});
    if (k > 0) gradient = one("aten::mm", {{"self", inner}, {"mat2", weights[k]}}, activation);
  }
  verify(g);
  return g;
}

plan::Plan data_parallel(const Graph& graph, int64_t ranks, int64_t microbatches) {
  plan::Plan plan;
  plan.graph_hash = structural_hash(graph);
  plan.mesh.axes = {{"data", ranks}};
  plan.microbatches = microbatches;
  return plan;
}

std::optional<OpTrace> SyntheticTraces::find(const OpInstance& instance) {
  ++asked;
  OpTrace trace;
  auto allocate = [&](int64_t bytes) {
    trace.allocations.push_back(bytes);
    trace.freed_before.emplace_back();
    return static_cast<int32_t>(trace.allocations.size()) - 1;
  };
  if (instance.op == "aten::sum.dim_IntList") allocate(1000);
  for (const auto& type : instance.outputs) {
    trace.output_allocation.push_back(-1);
    trace.output_strides.emplace_back();
    if (!type) continue;
    const int32_t at = allocate(type->bytes());
    // A temporary before the result.
    if (at == 1 && trace.output_allocation[0] < 0) trace.freed_before[1] = {0};
    trace.output_allocation.back() = at;
    trace.output_strides.back() = contiguous_strides(type->shape);
  }
  if (instance.op == "aten::mm") allocate(500);
  return trace;
}

Program compiled(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec) {
  SyntheticTraces traces;
  auto program = compile(graph, plan, spec, 0, traces);
  verify(program);
  return program;
}

const Section& section(const Program& program, const std::string& name) {
  for (const auto& section : program.sections) {
    if (section.name() == name) return section;
  }
  fail("test", "the program has no section '{}'", name);
}

int count(const Section& section, const std::string& op) {
  return static_cast<int>(std::count_if(section.instructions.begin(), section.instructions.end(),
                                        [&](const Instruction& i) { return i.op == op; }));
}

}  // namespace perigee::compile
