// Programs of hand-made graphs.
#include <catch2/catch.hpp>

#include "compile/draft/layout.h"
#include "tests/compile/support.h"
#include "tests/support/golden.h"

using namespace perigee;
using namespace perigee::compile;
using Catch::Contains;

namespace {

std::vector<std::string> names(const Program& program) {
  std::vector<std::string> list;
  for (const auto& section : program.sections) list.push_back(section.name());
  return list;
}

}  // namespace

TEST_CASE("a varying weight decay is a scalar in memory for each group, a fixed one a constant") {
  const auto graph = mlp({});
  for (const char* optimizer : {"sgd", "adam", "adamw", "lion", "adafactor", "muon"}) {
    INFO(optimizer);
    StepSpec spec{.optimizer = optimizer, .weight_decay = 0.1};
    spec.groups = {{{"layer.1.bias"}, 0.0}};
    const auto has = [&](const char* name) {
      return compiled(graph, data_parallel(graph, 2), spec).find(Binding::Kind::scalar, name) !=
             nullptr;
    };
    CHECK_FALSE((has("weight_decay.0") || has("weight_decay.1")));
    spec.weight_decay_varies = true;
    CHECK((has("weight_decay.0") && has("weight_decay.1")));
  }
}

TEST_CASE("one rank and one microbatch make one section and a step") {
  const auto graph = mlp({});
  const auto program = compiled(graph, data_parallel(graph, 1), {.clip_norm = 1.0});
  CHECK(names(program) == std::vector<std::string>{"micro", "step"});
  CHECK(program.exact_memory);
  // Views are addresses, and each gradient is written to the place that the optimizer reads.
  const auto& micro = section(program, "micro");
  CHECK(count(micro, "aten::t") == 0);
  CHECK(count(micro, "perigee::reshape") == 0);
  CHECK(count(micro, "perigee::copy_") == 1);  // the loss
  CHECK(count(micro, "comm::all_reduce") == 0);
  CHECK(count(section(program, "step"), "perigee::adamw_") == 1);
  CHECK(program.find(Binding::Kind::state, "exp_avg_sq:layer.1.bias"));
  CHECK(program.find(Binding::Kind::scalar, "lr.0"));
  CHECK(program.find(Binding::Kind::result, "grad_norm"));
  int64_t sum = 0;
  for (const auto& frame : program.frames) sum += frame.bytes * frame.copies;
  CHECK(sum == program.peak_bytes);
  CHECK(test::golden_difference("tests/compile/golden/one_rank.txt", print(program)) == "");
}

TEST_CASE("data parallelism all-reduces each bucket once, in the last microbatch") {
  const auto graph = mlp({.layers = 6, .batch = 12, .width = 64});
  auto plan = data_parallel(graph, 4, 3);
  plan.communication.bucket_bytes = 40 << 10;
  const auto program = compiled(graph, plan);
  CHECK(names(program) == std::vector<std::string>{"micro_first", "micro", "micro_last", "step"});
  CHECK(count(section(program, "micro_first"), "comm::all_reduce") == 0);
  CHECK(count(section(program, "micro"), "comm::all_reduce") == 0);
  // 6 x (64 x 64 + 64) floats in buckets of at least 40 KiB, and the loss.
  CHECK(count(section(program, "micro_last"), "comm::all_reduce") == 2 + 1);
  CHECK(count(section(program, "micro_first"), "perigee::accumulate_") == 0);
  CHECK(count(section(program, "micro"), "perigee::accumulate_") == 12 + 1);
  CHECK(test::golden_difference("tests/compile/golden/data_parallel.txt", summary(program)) == "");

  // Each reduction starts after its last gradient, and the first wait is in the step.
  const auto& last = section(program, "micro_last").instructions;
  int started = 0, later_products = 0, waits = 0;
  for (const auto& instruction : last) {
    started += instruction.op == "comm::all_reduce";
    later_products += started > 1 && instruction.op == "aten::mm";
    waits += instruction.kind == Instruction::Kind::wait;
  }
  CHECK(waits == 0);
  CHECK(later_products > 4);

  plan.communication.overlap = false;
  const auto late = compiled(graph, plan);
  const auto& end = section(late, "micro_last").instructions;
  CHECK(end[end.size() - 2].op == "comm::all_reduce");
  CHECK(end[end.size() - 1].op == "comm::all_reduce");
}

TEST_CASE("programs pass the verifier for any number of layers, ranks and microbatches") {
  for (int64_t layers : {1, 2, 7}) {
    for (int64_t microbatches : {1, 2, 3, 5}) {
      for (int64_t ranks : {1, 3}) {
        for (const char* optimizer : {"sgd", "adam", "adamw", "none"}) {
          INFO(layers << " layers, " << microbatches << " microbatches, " << ranks << " ranks, "
                      << optimizer);
          const auto graph = mlp({.layers = layers, .batch = 6, .width = 10});
          StepSpec spec{.optimizer = optimizer, .options = {{"momentum", 0.9}}, .clip_norm = 0.5};
          spec.groups = {{{"layer.0.bias"}, 0.0}};
          const auto program = compiled(graph, data_parallel(graph, ranks, microbatches), spec);
          CHECK(program.order.size() == static_cast<size_t>(microbatches) + 1);
        }
      }
    }
  }
}

TEST_CASE("frozen parameters and evaluations have no unneeded gradients") {
  const auto graph = mlp({.layers = 3});
  const auto frozen = compiled(
      graph, data_parallel(graph, 1),
      {.frozen = {"layer.0.weight", "layer.0.bias", "layer.1.weight", "layer.1.bias"}});
  CHECK(count(section(frozen, "micro"), "perigee::gelu_backward_sum") == 1);
  CHECK(frozen.find(Binding::Kind::parameter, "layer.0.weight"));
  CHECK_FALSE(frozen.find(Binding::Kind::state, "exp_avg:layer.0.weight"));

  const auto evaluation = compiled(graph, data_parallel(graph, 1, 4), {.evaluation = true});
  CHECK(names(evaluation) == std::vector<std::string>{"micro_first", "micro"});
  CHECK(count(section(evaluation, "micro"), "aten::gelu_backward") == 0);
  CHECK(evaluation.order.size() == 4);
}

TEST_CASE("requested results are kept, with the ranges of the rank's piece") {
  auto graph = mlp({.layers = 2, .batch = 6, .width = 10});
  for (const auto& node : graph.nodes) {
    if (node.op != "aten::sub.Tensor") continue;
    const auto y = std::get<graph::ValueId>(node.args[0].second);
    graph.outputs.push_back({graph::Output::Kind::result, "y", y});
  }
  const auto plain = compiled(graph, data_parallel(graph, 3), {.evaluation = true});
  CHECK_FALSE(plain.find(Binding::Kind::result, "y"));
  const auto program = compiled(graph, data_parallel(graph, 3),
                                {.evaluation = true, .results = {"y"}});
  const auto* result = program.find(Binding::Kind::result, "y");
  REQUIRE(result);
  CHECK(result->shape == std::vector<int64_t>{6, 10});
  CHECK(result->ranges == std::vector<mesh::Range>{{0, 2}, {0, 10}});
  CHECK(program.values[result->value.index].type.shape == std::vector<int64_t>{2, 10});

  SyntheticTraces traces;
  CHECK_THROWS_WITH(
      compile::compile(graph, data_parallel(graph, 1, 2), {.results = {"y"}}, 0, traces),
      Contains("one microbatch"));
}

TEST_CASE("the predicted memory of every rank equals its program's") {
  const auto graph = mlp({.layers = 2, .batch = 7, .width = 32});
  const auto plan = data_parallel(graph, 3, 2);
  SyntheticTraces traces;
  const auto prediction = predict_memory(graph, plan, {}, traces);
  REQUIRE(prediction.peak_bytes.size() == 3);
  CHECK(prediction.exact_memory);
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto program = compile::compile(graph, plan, {}, rank, traces);
    verify(program);
    CHECK(program.peak_bytes == prediction.peak_bytes[rank]);
  }
  // Rank 0 has one of the seven samples more than the others.
  CHECK(prediction.peak_bytes[0] > prediction.peak_bytes[2]);
  NoTraces none;
  CHECK_FALSE(predict_memory(graph, plan, {}, none).exact_memory);
}

TEST_CASE("names of values in a plan are unchanged by dead code elimination") {
  const auto graph = mlp({.layers = 2});
  auto plan = data_parallel(graph, 2);
  plan.placements["layer.1/gelu.0"] = {mesh::Placement::replicate()};
  plan.placements["layer.1/'mm.1"] = {mesh::Placement::replicate()};
  plan::verify(plan, graph);
  const auto gathers = [&](StepSpec spec) {
    return count(section(compiled(graph, plan, spec), "micro"), "comm::all_gather");
  };
  CHECK(gathers({}) > 0);
  // Without the product of the weight's gradient, 'mm.1 would be renumbered.
  CHECK(gathers({.frozen = {"layer.1.weight"}}) == gathers({}));
}

TEST_CASE(
    "results of ops that write in place have the places of operands that are not read later") {
  const auto graph = mlp({.layers = 1});
  NoTraces traces;
  const auto program = compile::compile(graph, data_parallel(graph, 1), {}, 0, traces);
  verify(program);
  CHECK_FALSE(program.exact_memory);
  int found = 0;
  for (const auto& instruction : section(program, "micro").instructions) {
    if (instruction.op != "perigee::gelu_backward_sum") continue;
    const auto gradient = std::get<ValueId>(instruction.args[0].second);
    const auto result = instruction.outputs[0];
    CHECK(program.values[gradient.index].place == program.values[result.index].place);
    ++found;
  }
  CHECK(found == 1);
}

// Traces in which every op allocates its results and (`temporaries`) as many bytes before each.
class PlainTraces : public TraceSource {
 public:
  explicit PlainTraces(bool temporaries) : temporaries_(temporaries) {}
  std::optional<OpTrace> find(const OpInstance& instance) override {
    OpTrace trace;
    for (const auto& type : instance.outputs) {
      trace.output_allocation.push_back(-1);
      trace.output_strides.emplace_back();
      if (!type) continue;
      trace.allocations.resize(trace.allocations.size() + (temporaries_ ? 2 : 1), type->bytes());
      trace.output_allocation.back() = static_cast<int32_t>(trace.allocations.size()) - 1;
      trace.output_strides.back() = contiguous_strides(type->shape);
    }
    trace.freed_before.resize(trace.allocations.size());
    return trace;
  }

 private:
  bool temporaries_;
};

TEST_CASE("an op that allocates more than its result allocates nothing where its operands are") {
  const auto graph = mlp({.layers = 3});
  const auto allocations_over_operands = [&](bool temporaries) {
    PlainTraces traces(temporaries);
    const auto program = compile::compile(graph, data_parallel(graph, 1, 2), {.clip_norm = 1}, 0,
                                          traces);
    verify(program);
    int found = 0;
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.kind != Instruction::Kind::op) continue;
        for (const auto& [bytes, place, until] : instruction.allocations) {
          graph::Node node{.op = instruction.op, .args = instruction.args};
          node.each_operand([&](ValueId v) {
            const auto& operand = program.values[v.index];
            const auto begin = operand.place.offset;
            found += place.frame >= 0 && operand.place.frame == place.frame &&
                     begin < place.offset + bytes && place.offset < begin + operand.type.bytes();
          });
        }
      }
    }
    return found;
  };
  CHECK(allocations_over_operands(false) > 0);
  CHECK(allocations_over_operands(true) == 0);
}

TEST_CASE("a step average over all microbatches is computed before the first one") {
  using namespace graph;
  auto graph = mlp({.layers = 1});
  // The loss is divided by the step average of the target's sum.
  const auto target = graph.find_input("target")->value;
  const TensorType scalar{DType::float32, {}};
  const auto total = graph.add_node("aten::sum", {{"self", target}}, {scalar})[0];
  const auto average = graph.add_node("perigee::step_average", {{"self", total}}, {scalar})[0];
  ValueId squares;
  for (const auto& node : graph.nodes) {
    if (node.op == "aten::mul.Tensor" && node.phase == Phase::forward) squares = node.outputs[0];
  }
  const auto sum = graph.add_node("aten::sum", {{"self", squares}}, {scalar})[0];
  graph.outputs[0].value = graph.add_node("aten::div.Tensor", {{"self", sum}, {"other", average}},
                                          {scalar})[0];
  graph::verify(graph);

  using Names = std::vector<std::string>;
  const auto single = compiled(graph, data_parallel(graph, 1));
  CHECK(names(single) == Names{"micro", "step"});
  const auto program = compiled(graph, data_parallel(graph, 1, 3));
  CHECK(names(program) == Names{"prologue_first", "prologue", "micro_first", "micro", "step"});
  CHECK(count(section(program, "prologue"), "aten::sum") == 1);
  CHECK(count(section(program, "micro"), "aten::sum") ==
        count(section(single, "micro"), "aten::sum") - 1);
  CHECK(program.order.size() == 7);

  // The sums of all microbatches are all-reduced once.
  const auto parallel = compiled(graph, data_parallel(graph, 2, 3));
  CHECK(count(section(parallel, "prologue"), "comm::all_reduce") == 0);
  CHECK(count(section(parallel, "prologue_end"), "comm::all_reduce") == 1);

  const auto weight = graph.find_input("layer.0.weight")->value;
  for (auto& node : graph.nodes) {
    if (node.op == "aten::sum") node.args[0].second = weight;
  }
  SyntheticTraces traces;
  CHECK_THROWS_WITH(compile::compile(graph, data_parallel(graph, 1, 2), {}, 0, traces),
                    Contains("data inputs only") && Contains("layer.0.weight"));
}

TEST_CASE("unknown optimizers, parameters and results are refused with the known names") {
  const auto graph = mlp({});
  SyntheticTraces traces;
  const auto plan = data_parallel(graph, 1);
  CHECK_THROWS_WITH(compile::compile(graph, plan, {.optimizer = "adamx"}, 0, traces),
                    Contains("the optimizer must be one of sgd, ") &&
                        Contains(", none, but got 'adamx', did you mean \"adam"));
  CHECK_THROWS_WITH(compile::compile(graph, plan, {.frozen = {"layer.0.wieght"}}, 0, traces),
                    Contains("did you mean \"layer.0.weight"));
  CHECK_THROWS_WITH(compile::compile(graph, plan, {.results = {"logits"}}, 0, traces),
                    Contains("'logits'"));
}

TEST_CASE("a graph of 12,000 nodes looks up each distinct trace once") {
  const auto graph = mlp({.layers = 1090});
  CHECK(graph.nodes.size() > 11000);
  SyntheticTraces traces;
  const auto program = compile::compile(graph, data_parallel(graph, 2, 4), {}, 0, traces);
  verify(program);
  CHECK(traces.asked < 20);
}
