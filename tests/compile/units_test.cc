// Programs of plans whose parameters are kept in parts.
#include <catch2/catch.hpp>
#include <set>

#include "base/error.h"
#include "compile/bucket_names.h"
#include "tests/compile/support.h"
#include "tests/support/golden.h"

using namespace perigee;
using namespace perigee::compile;

namespace {

constexpr int64_t kLayers = 4, kWidth = 32;

plan::Plan in_parts(const graph::Graph& graph, int64_t ranks, int64_t microbatches, int level) {
  auto plan = data_parallel(graph, ranks, microbatches);
  for (int64_t k = 0; level > 0 && k < kLayers; ++k) {
    const auto scope = "layer." + std::to_string(k);
    plan.units.push_back({scope, {scope + ".weight", scope + ".bias"}, "data", level});
  }
  return plan;
}

Program compiled(const graph::Graph& graph, const plan::Plan& plan, StepSpec spec = {},
                 int64_t rank = 0) {
  plan::verify(plan, graph);
  MadeUpTraces traces;
  auto program = compile::compile(graph, plan, spec, rank, traces);
  verify(program);
  return program;
}

int64_t persistent(const Program& program) {
  for (const auto& frame : program.frames) {
    if (frame.kind == Frame::Kind::persistent) return frame.bytes;
  }
  return 0;
}

}  // namespace

TEST_CASE("programs in parts hold for any level, ranks and microbatches") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  for (int level : {1, 2, 3}) {
    for (int64_t microbatches : {1, 2, 3}) {
      for (int64_t ranks : {1, 2, 3, 4, 8}) {
        for (const char* optimizer : {"sgd", "adamw", "none"}) {
          for (int64_t rank : {int64_t{0}, ranks - 1}) {
            INFO("level " << level << ", " << microbatches << " microbatches, rank " << rank
                          << " of " << ranks << ", " << optimizer);
            StepSpec spec{.optimizer = optimizer, .options = {{"momentum", 0.9}}, .clip_norm = 0.5};
            spec.groups = {{{"layer.0.bias", "layer.2.bias"}, 0.0}};
            compiled(graph, in_parts(graph, ranks, microbatches, level), spec, rank);
            spec.evaluation = true;
            compiled(graph, in_parts(graph, ranks, microbatches, level), spec, rank);
          }
        }
      }
    }
  }
}

TEST_CASE("a program tells which parameters a bucket or unit on its way has") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  const auto all = [&](plan::Plan plan, bool gradients) {
    std::multiset<std::string> names;
    const auto program = compiled(graph, plan, {.clip_norm = 1.0});
    for (const auto& [value, bucket] : bucket_names(program)) {
      if (bucket.gradients != gradients) continue;
      names.insert(bucket.parameters.begin(), bucket.parameters.end());
    }
    return names;
  };
  std::multiset<std::string> once;
  for (const auto& input : graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter) once.insert(input.name);
  }
  for (int level : {0, 1, 2, 3}) {
    INFO("level " << level);
    auto plan = in_parts(graph, 4, 3, level);
    CHECK(all(plan, true) == once);
    CHECK(all(plan, false) == (level == 0 ? std::multiset<std::string>() : once));
    plan.communication.reduce_dtype = graph::DType::bfloat16;
    CHECK(all(plan, true) == once);
    plan.communication.bucket_bytes = 1;
    CHECK(all(plan, true) == once);
  }
  CHECK(all(in_parts(graph, 1, 3, 0), true).empty());
}

TEST_CASE("each level has the collectives that theory says") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  const auto counts = [&](int level, const std::string& name, bool reshard = true) {
    auto plan = in_parts(graph, 4, 3, level);
    for (auto& unit : plan.units) unit.reshard_after_forward = reshard;
    const auto program = compiled(graph, plan);
    const auto& part = section(program, name);
    return std::vector{count(part, "comm::all_gather"), count(part, "comm::reduce_scatter")};
  };
  using Counts = std::vector<int>;
  const int units = kLayers;
  for (const char* name : {"micro_first", "micro", "micro_last"}) {
    // The backward pass of the first layer needs no weights.
    CHECK(counts(3, name) == Counts{2 * units - 1, units});
    CHECK(counts(3, name, false) == Counts{units, units});
    CHECK(counts(2, name) == Counts{0, units});
  }
  CHECK(counts(1, "micro_first") == Counts{0, 0});
  CHECK(counts(1, "micro_last") == Counts{0, units});
  CHECK(counts(1, "step") == Counts{units, 0});
  CHECK(counts(2, "step") == Counts{units, 0});
  CHECK(counts(3, "step") == Counts{0, 0});
}

TEST_CASE("each level's summary is the golden text") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  std::string text;
  for (int level : {1, 2, 3}) {
    for (int64_t microbatches : {1, 3}) {
      text += "level " + std::to_string(level) + "\n" +
              summary(compiled(graph, in_parts(graph, 4, microbatches, level)));
    }
  }
  auto kept = in_parts(graph, 4, 1, 3);
  for (auto& unit : kept.units) unit.reshard_after_forward = false;
  text += "level 3, not resharded after the forward pass\n" + summary(compiled(graph, kept));
  CHECK(test::golden_difference("tests/compile/golden/units.txt", text) == "");
}

TEST_CASE("a unit is gathered as far ahead as the plan says") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  // Which units are gathered before each op of the forward pass that uses a unit's weights.
  const auto ahead = [&](int64_t forward, int64_t backward, int64_t bytes) {
    auto plan = in_parts(graph, 4, 1, 3);
    plan.communication.prefetch_forward = forward;
    plan.communication.prefetch_backward = backward;
    plan.communication.prefetch_bytes = bytes;
    const auto program = compiled(graph, plan);
    std::string order;
    for (const auto& instruction : section(program, "micro").instructions) {
      const auto number = instruction.scope.substr(instruction.scope.find('.') + 1);
      if (instruction.op == "comm::all_gather") order += " g" + number;
      if (instruction.op == "aten::addmm" || instruction.op == "aten::mm") order += " " + number;
    }
    return order;
  };
  // Of a layer's two products in the backward pass the second needs its weights.
  CHECK(ahead(0, 0, 0) == " g0 0 g1 1 g2 2 g3 3 3 g3 3 2 g2 2 1 g1 1 0");
  CHECK(ahead(1, 1, 0) == " g0 g1 0 g2 1 g3 2 3 3 g3 g2 3 2 g1 2 1 1 0");
  CHECK(ahead(2, 0, 0) == " g0 g1 g2 0 g3 1 2 3 3 g3 3 2 g2 2 1 g1 1 0");
  CHECK(ahead(2, 2, kWidth * (kWidth + 1) * 4 + 1) == ahead(1, 1, 0));
  CHECK(ahead(1, 1, 1) == ahead(0, 0, 0));
}

TEST_CASE("persistent memory shrinks as theory predicts") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  // Bytes of a layer, and of a part of it where frames place it.
  const int64_t layer = (kWidth * kWidth + kWidth) * 4, part = (layer / 4 + 63) / 64 * 64;
  const int64_t saved = kLayers * (layer - part);
  const auto whole = persistent(compiled(graph, in_parts(graph, 4, 1, 0)));
  // Weights and two states; with adamw on four ranks states, then weights too, are quarters.
  CHECK(whole - persistent(compiled(graph, in_parts(graph, 4, 1, 1))) == 2 * saved);
  CHECK(whole - persistent(compiled(graph, in_parts(graph, 4, 1, 2))) == 2 * saved);
  CHECK(whole - persistent(compiled(graph, in_parts(graph, 4, 1, 3))) == 3 * saved);
}

TEST_CASE("a unit's flat tensors are reduced one behind the other, then waited for") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  auto plan = in_parts(graph, 2, 1, 3);
  plan.mesh.axes = {{"tensor", 2}, {"data", 2}};
  // Weights are cut over tensor, biases are whole there: two flat tensors.
  for (int64_t k = 0; k < kLayers; ++k) {
    plan.placements["layer." + std::to_string(k) + ".weight"] = {mesh::Placement::shard(1),
                                                                 mesh::Placement::replicate()};
  }
  const auto program = compiled(graph, plan);
  struct Started {
    std::string unit;
    int32_t event;
  };
  std::vector<Started> open;
  int together = 0;
  for (const auto& instruction : section(program, "micro").instructions) {
    if (instruction.op == "comm::reduce_scatter") {
      // What is still open is of this unit or of the one before.
      for (const auto& started : open) together += started.unit == instruction.scope;
      open.push_back({instruction.scope, instruction.event});
    } else if (instruction.kind == Instruction::Kind::wait) {
      std::erase_if(open, [&](const auto& s) { return s.event == instruction.event; });
    }
  }
  CHECK(together == kLayers);
  CHECK(open.empty());
}
