// Buffers that a step writes, whose old values it also reads, and stages that have unused inputs.
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compile/stages/stage_inputs.h"
#include "tests/compile/support.h"

using namespace perigee;
using namespace perigee::compile;
using graph::DType;
using graph::Graph;
using graph::Input;
using graph::NodeId;
using graph::Output;
using graph::Phase;
using graph::TensorType;
using graph::ValueId;

namespace {

using Args = std::vector<std::pair<std::string, graph::Arg>>;

const TensorType kMatrix{DType::float32, {4, 4}}, kRow{DType::float32, {4}},
    kScalar{DType::float32, {}};

struct Layer {
  std::string scope;
  std::string scaled_by = {};  // the buffer that its product is multiplied by; "": none
  std::string writes = {};  // the buffer whose new value is the sum of the product's rows; "": none
};

// x -> (product with "SCOPE.weight", times a buffer of kRow) for each layer -> the mean of the
// squares, with its backward pass.
struct Chain {
  Graph graph;
  std::vector<Layer> layers;
  std::map<std::string, ValueId> buffers;
  std::vector<ValueId> values, weights, products;  // by layer
  std::vector<NodeId> forward;                     // by layer: its product

  ValueId add(std::string op, Args args, const TensorType& type, const std::string& scope,
              Phase phase = Phase::forward, NodeId differentiated = -1) {
    const auto made = graph.add_node(std::move(op), std::move(args), {type}, scope, phase)[0];
    graph.nodes.back().forward_node = differentiated;
    return made;
  }

  void output(const std::string& buffer, ValueId value) {
    graph.outputs.push_back({Output::Kind::buffer, buffer, value});
  }

  Chain(std::vector<Layer> list, const std::map<std::string, TensorType>& types)
      : layers(std::move(list)) {
    graph.scopes.push_back({"", "Net"});
    for (const auto& layer : layers) graph.scopes.push_back({layer.scope, "Layer"});
    values.push_back(graph.add_input(Input::Kind::data, "x", kMatrix));
    for (const auto& layer : layers) {
      weights.push_back(graph.add_input(Input::Kind::parameter, layer.scope + ".weight", kMatrix));
    }
    for (const auto& [name, type] : types) {
      buffers[name] = graph.add_input(Input::Kind::buffer, name, type);
    }
    for (size_t k = 0; k < layers.size(); ++k) {
      const auto& [scope, scaled_by, writes] = layers[k];
      products.push_back(
          add("aten::mm", {{"self", values[k]}, {"mat2", weights[k]}}, kMatrix, scope));
      forward.push_back(static_cast<NodeId>(graph.nodes.size()) - 1);
      auto result = products.back();
      if (!writes.empty()) {
        output(writes, add("aten::sum.dim_IntList",
                           {{"self", result}, {"dim", std::vector<int64_t>{0}}}, kRow, scope));
      }
      if (!scaled_by.empty()) {
        result = add("aten::mul.Tensor", {{"self", result}, {"other", buffers.at(scaled_by)}},
                     kMatrix, scope);
      }
      values.push_back(result);
    }
  }

  // Appends the loss and the backward pass.
  Graph run() && {
    const auto squares = add("aten::mul.Tensor",
                             {{"self", values.back()}, {"other", values.back()}}, kMatrix, "");
    const auto loss = add("aten::mean", {{"self", squares}}, kScalar, "");
    graph.outputs.insert(graph.outputs.begin(), {Output::Kind::loss, "loss", loss});
    const auto seed = add("perigee::full", {{"value", 1.0 / 8}}, kScalar, "", Phase::backward);
    const auto wide = add("perigee::expand", {{"self", seed}}, kMatrix, "", Phase::backward);
    auto gradient = add("aten::mul.Tensor", {{"self", wide}, {"other", values.back()}}, kMatrix, "",
                        Phase::backward);
    for (size_t k = layers.size(); k-- > 0;) {
      const auto& [scope, scaled_by, writes] = layers[k];
      const auto back = [&](std::string op, Args args) {
        return add(std::move(op), std::move(args), kMatrix, layers[k].scope, Phase::backward,
                   forward[k]);
      };
      if (!scaled_by.empty()) {
        gradient = back("aten::mul.Tensor", {{"self", gradient}, {"other", buffers.at(scaled_by)}});
      }
      const auto input = back("aten::t", {{"self", values[k]}});
      graph.outputs.push_back({Output::Kind::gradient, scope + ".weight",
                               back("aten::mm", {{"self", input}, {"mat2", gradient}})});
      if (k == 0) continue;
      const auto weight = back("aten::t", {{"self", weights[k]}});
      gradient = back("aten::mm", {{"self", gradient}, {"mat2", weight}});
    }
    graph::verify(graph);
    return std::move(graph);
  }
};

Program program_of(const Graph& graph, const plan::Plan& plan, int64_t rank) {
  SyntheticTraces traces;
  auto program = perigee::compile::compile(graph, plan, {}, rank, traces);
  verify(program);
  return program;
}

plan::Plan pipeline(const Graph& graph, std::vector<std::string> starts, int64_t chunks = 1) {
  auto plan = data_parallel(graph, 1, chunks > 1 ? 2 : 1);
  plan.mesh.axes = {{"pipe", 2}};
  plan.pipeline = {.axis = "pipe", .starts = std::move(starts), .chunks = chunks};
  if (chunks > 1) plan.pipeline.schedule = "interleaved";
  return plan;
}

ValueId root(const Program& program, ValueId v) {
  const auto base = program.values[v.index].view_of;
  return base.defined() ? base : v;
}

// How instructions use a buffer in a step, in their order.
struct Uses {
  int writes = 0;
  int late_reads = 0;  // after a write
};

Uses uses_of(const Program& program, const std::string& buffer) {
  const auto* binding = program.find(Binding::Kind::buffer, buffer);
  REQUIRE(binding);
  Uses uses;
  for (const auto& run : program.order) {
    for (const auto& instruction : program.sections[run.section].instructions) {
      bool written = false;
      for (const auto v : instruction.outputs) {
        written |= v.defined() && root(program, v) == binding->value;
      }
      for (size_t a = written ? 1 : 0; a < instruction.args.size(); ++a) {
        const auto* v = std::get_if<ValueId>(&instruction.args[a].second);
        if (v && v->defined() && root(program, *v) == binding->value)
          uses.late_reads += uses.writes > 0;
      }
      uses.writes += written;
    }
  }
  return uses;
}

}  // namespace

TEST_CASE("a buffer that takes another one's value takes that of before the step") {
  for (const bool turned : {false, true}) {
    INFO(turned);
    // Of the outputs, the first is written first.
    Chain chain({{.scope = "a"}}, {{"before", kMatrix}, {"now", kMatrix}});
    chain.output("now", chain.products[0]);
    auto old = chain.buffers.at("now");
    if (turned) old = chain.add("aten::t", {{"self", old}}, kMatrix, "a");
    chain.output("before", old);
    const auto graph = std::move(chain).run();
    const auto program = program_of(graph, data_parallel(graph, 1), 0);
    CHECK(uses_of(program, "now").writes == 1);
    CHECK(uses_of(program, "now").late_reads == 0);
    CHECK(uses_of(program, "before").writes == 1);
  }
}

TEST_CASE("buffers that change places take each other's values") {
  Chain chain({{.scope = "a"}}, {{"left", kRow}, {"right", kRow}});
  chain.output("left", chain.buffers.at("right"));
  chain.output("right", chain.buffers.at("left"));
  const auto graph = std::move(chain).run();
  const auto program = program_of(graph, data_parallel(graph, 1), 0);
  for (const char* buffer : {"left", "right"}) {
    CHECK(uses_of(program, buffer).writes == 1);
    CHECK(uses_of(program, buffer).late_reads == 0);
  }
}

TEST_CASE(
    "the backward pass of a part reads the value of a buffer that its forward pass has read") {
  const auto graph = Chain(
                         {{.scope = "a", .scaled_by = "scale", .writes = "scale"}, {.scope = "b"}},
                         {{"scale", kRow}})
                         .run();
  const auto program = program_of(graph, pipeline(graph, {"b"}), 0);
  CHECK(count(section(program, "backward.0"), "aten::mul.Tensor") == 1);
  CHECK(uses_of(program, "scale").writes == 1);
  CHECK(uses_of(program, "scale").late_reads == 0);
  // Without a pipeline one section has both passes, and needs no copy.
  CHECK(count(section(program_of(graph, data_parallel(graph, 1), 0), "micro"), "aten::clone") == 0);
}

TEST_CASE("a new value that the backward pass makes of gradients follows from the latest one") {
  Chain chain({{.scope = "a"}, {.scope = "b"}}, {{"mean", kMatrix}});
  auto graph = std::move(chain).run();
  const auto last = static_cast<NodeId>(graph.nodes.size()) - 1;
  const auto sum = graph.add_node(
      "aten::add.Tensor",
      {{"self", chain.buffers.at("mean")}, {"other", graph.outputs.back().value}}, {kMatrix}, "a",
      Phase::backward)[0];
  graph.nodes.back().forward_node = graph.nodes[static_cast<size_t>(last)].forward_node;
  graph.outputs.push_back({Output::Kind::buffer, "mean", sum});
  const auto program = program_of(graph, pipeline(graph, {"b"}), 0);
  CHECK(uses_of(program, "mean").writes == 1);
  CHECK(count(section(program, "forward.0"), "aten::clone") == 0);
}

TEST_CASE(
    "a new value that follows from the forward pass belongs to it, wherever it was recorded") {
  Chain chain({{.scope = "a"}, {.scope = "b"}}, {{"mean", kMatrix}});
  auto graph = std::move(chain).run();
  // As capture records writes through views.
  const auto sum = graph.add_node(
      "aten::add.Tensor", {{"self", chain.buffers.at("mean")}, {"other", chain.products[1]}},
      {kMatrix}, "a", Phase::backward)[0];
  graph.nodes.back().forward_node = chain.forward[0];
  graph.outputs.push_back({Output::Kind::buffer, "mean", sum});
  const auto plan = pipeline(graph, {"b"});
  const auto program = program_of(graph, plan, 1);
  CHECK(uses_of(program, "mean").writes == 1);
  CHECK(count(section(program, "forward.1"), "aten::add.Tensor") == 1);
  CHECK_FALSE(program_of(graph, plan, 0).find(Binding::Kind::buffer, "mean"));
  CHECK(StageInputs(graph, plan).has("mean", 1));
}

TEST_CASE("a buffer that a stage writes and does not read is on that stage") {
  const auto graph =
      Chain({{.scope = "a"}, {.scope = "b", .writes = "last"}}, {{"last", kRow}}).run();
  const auto plan = pipeline(graph, {"b"});
  CHECK(uses_of(program_of(graph, plan, 1), "last").writes == 1);
  CHECK_FALSE(program_of(graph, plan, 0).find(Binding::Kind::buffer, "last"));
  const StageInputs inputs(graph, plan);
  CHECK((inputs.has("last", 1) && !inputs.has("last", 0)));
}

TEST_CASE("a buffer that takes a data tensor is on the stage that reads the tensor") {
  Chain chain({{.scope = "a"}, {.scope = "b"}}, {{"seen", kMatrix}});
  const auto target = chain.graph.add_input(Input::Kind::data, "target", kMatrix);
  chain.values.back() = chain.add("aten::mul.Tensor",
                                  {{"self", chain.values.back()}, {"other", target}}, kMatrix, "b");
  chain.output("seen", target);
  const auto graph = std::move(chain).run();
  const auto plan = pipeline(graph, {"b"});
  CHECK(uses_of(program_of(graph, plan, 1), "seen").writes == 1);
  const StageInputs inputs(graph, plan);
  CHECK((inputs.has("seen", 1) && !inputs.has("seen", 0)));
  CHECK(uses_of(program_of(graph, data_parallel(graph, 1), 0), "seen").writes == 1);
}

TEST_CASE("a buffer that two parts of a stage use and one of them changes is refused") {
  for (const bool changes : {false, true}) {
    const auto graph = Chain(
                           {{.scope = "a", .scaled_by = "scale", .writes = changes ? "scale" : ""},
                            {.scope = "b"},
                            {.scope = "c", .scaled_by = "scale"},
                            {.scope = "d"}},
                           {{"scale", kRow}})
                           .run();
    const auto plan = pipeline(graph, {"b", "c", "d"}, 2);
    if (changes) {
      CHECK_THROWS_WITH(program_of(graph, plan, 0),
                        Catch::Contains("\"scale\" is used in parts 0, 2 of stage 0"));
    } else {
      CHECK(program_of(graph, plan, 0).find(Binding::Kind::buffer, "scale"));
    }
  }
}

TEST_CASE(
    "a parameter that only a result reads is on the result's stage, also without the result") {
  Chain chain({{.scope = "a"}, {.scope = "b"}}, {});
  const auto extra = chain.graph.add_input(Input::Kind::parameter, "b.extra", kRow);
  const auto scaled = chain.add("aten::mul.Tensor", {{"self", chain.products[1]}, {"other", extra}},
                                kMatrix, "b");
  chain.graph.outputs.push_back({Output::Kind::result, "scaled", scaled});
  const auto graph = std::move(chain).run();
  for (const bool in_unit : {false, true}) {
    INFO(in_unit);
    auto plan = pipeline(graph, {"b"});
    plan.mesh.axes = {{"data", 2}, {"pipe", 2}};
    if (in_unit) plan.units = {{"b", {"b.weight", "b.extra"}, "data", 3}};
    CHECK_FALSE(program_of(graph, plan, 0).find(Binding::Kind::parameter, "b.extra"));
    // The rank and its neighbour have the parts of the unit.
    const bool held = program_of(graph, plan, 2).find(Binding::Kind::parameter, "b.extra") ||
                      program_of(graph, plan, 3).find(Binding::Kind::parameter, "b.extra");
    CHECK(held);
  }
}
