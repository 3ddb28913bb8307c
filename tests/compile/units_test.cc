// Programs of plans with sharded units (ZeRO, FSDP).
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

plan::Plan with_units(const graph::Graph& graph, int64_t ranks, int64_t microbatches, int level) {
  auto plan = data_parallel(graph, ranks, microbatches);
  for (int64_t k = 0; level > 0 && k < kLayers; ++k) {
    const auto scope = "layer." + std::to_string(k);
    plan.units.push_back({scope, {scope + ".weight", scope + ".bias"}, "data", level});
  }
  return plan;
}

Program compiled_units(const graph::Graph& graph, const plan::Plan& plan, StepSpec spec = {},
                       int64_t rank = 0) {
  plan::verify(plan, graph);
  SyntheticTraces traces;
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

TEST_CASE("programs with units pass the verifier for any level, ranks and microbatches") {
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
            compiled_units(graph, with_units(graph, ranks, microbatches, level), spec, rank);
            spec.evaluation = true;
            compiled_units(graph, with_units(graph, ranks, microbatches, level), spec, rank);
          }
        }
      }
    }
  }
}

TEST_CASE("a program names the parameters of each bucket and unit in transit") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  const auto all = [&](plan::Plan plan, bool gradients) {
    std::multiset<std::string> names;
    const auto program = compiled_units(graph, plan, {.clip_norm = 1.0});
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
    auto plan = with_units(graph, 4, 3, level);
    CHECK(all(plan, true) == once);
    CHECK(all(plan, false) == (level == 0 ? std::multiset<std::string>() : once));
    plan.communication.reduce_dtype = graph::DType::bfloat16;
    CHECK(all(plan, true) == once);
    plan.communication.bucket_bytes = 1;
    CHECK(all(plan, true) == once);
  }
  CHECK(all(with_units(graph, 1, 3, 0), true).empty());
}

TEST_CASE("each level has the collectives of its definition") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  const auto counts = [&](int level, const std::string& name, bool reshard = true) {
    auto plan = with_units(graph, 4, 3, level);
    for (auto& unit : plan.units) unit.reshard_after_forward = reshard;
    const auto program = compiled_units(graph, plan);
    const auto& part = section(program, name);
    return std::vector{count(part, "comm::all_gather"), count(part, "comm::reduce_scatter")};
  };
  using Counts = std::vector<int>;
  const int units = kLayers;
  for (const char* name : {"micro_first", "micro", "micro_last"}) {
    // The backward pass of the first layer reads no weights.
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

TEST_CASE("each level's summary equals the golden file") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  std::string text;
  for (int level : {1, 2, 3}) {
    for (int64_t microbatches : {1, 3}) {
      text += "level " + std::to_string(level) + "\n" +
              summary(compiled_units(graph, with_units(graph, 4, microbatches, level)));
    }
  }
  auto kept = with_units(graph, 4, 1, 3);
  for (auto& unit : kept.units) unit.reshard_after_forward = false;
  text += "level 3, not resharded after the forward pass\n" + summary(compiled_units(graph, kept));
  CHECK(test::golden_difference("tests/compile/golden/units.txt", text) == "");
}

TEST_CASE("a unit is gathered as many units ahead as the plan sets") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  // Returns the gathers ("g1") and products ("1") by unit, in the program's order.
  const auto ahead = [&](int64_t forward, int64_t backward, int64_t bytes) {
    auto plan = with_units(graph, 4, 1, 3);
    plan.communication.prefetch_forward = forward;
    plan.communication.prefetch_backward = backward;
    plan.communication.prefetch_bytes = bytes;
    const auto program = compiled_units(graph, plan);
    std::string order;
    for (const auto& instruction : section(program, "micro").instructions) {
      const auto number = instruction.scope.substr(instruction.scope.find('.') + 1);
      if (instruction.op == "comm::all_gather") order += " g" + number;
      if (instruction.op == "aten::addmm" || instruction.op == "aten::mm") order += " " + number;
    }
    return order;
  };
  // Only the second of a layer's two backward products reads its weights.
  CHECK(ahead(0, 0, 0) == " g0 0 g1 1 g2 2 g3 3 3 g3 3 2 g2 2 1 g1 1 0");
  CHECK(ahead(1, 1, 0) == " g0 g1 0 g2 1 g3 2 3 3 g3 g2 3 2 g1 2 1 1 0");
  CHECK(ahead(2, 0, 0) == " g0 g1 g2 0 g3 1 2 3 3 g3 3 2 g2 2 1 g1 1 0");
  CHECK(ahead(2, 2, kWidth * (kWidth + 1) * 4 + 1) == ahead(1, 1, 0));
  CHECK(ahead(1, 1, 1) == ahead(0, 0, 0));
}

TEST_CASE("persistent memory shrinks by the sharded bytes") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  // Bytes of a layer, and of a rank's part of it with alignment.
  const int64_t layer = (kWidth * kWidth + kWidth) * 4, part = (layer / 4 + 63) / 64 * 64;
  const int64_t saved = kLayers * (layer - part);
  const auto whole = persistent(compiled_units(graph, with_units(graph, 4, 1, 0)));
  // adamw has two states: levels 1 and 2 shard the states, level 3 the weights too.
  CHECK(whole - persistent(compiled_units(graph, with_units(graph, 4, 1, 1))) == 2 * saved);
  CHECK(whole - persistent(compiled_units(graph, with_units(graph, 4, 1, 2))) == 2 * saved);
  CHECK(whole - persistent(compiled_units(graph, with_units(graph, 4, 1, 3))) == 3 * saved);
}

TEST_CASE("both flat tensors of a unit are in reduction before the first is waited for") {
  const auto graph = mlp({.layers = kLayers, .batch = 24, .width = kWidth});
  auto plan = with_units(graph, 2, 1, 3);
  plan.mesh.axes = {{"tensor", 2}, {"data", 2}};
  // Weights are sharded over tensor, biases replicated: two flat tensors.
  for (int64_t k = 0; k < kLayers; ++k) {
    plan.placements["layer." + std::to_string(k) + ".weight"] = {mesh::Placement::shard(1),
                                                                 mesh::Placement::replicate()};
  }
  const auto program = compiled_units(graph, plan);
  struct Started {
    std::string unit;
    int32_t event;
  };
  std::vector<Started> open;
  int together = 0;
  for (const auto& instruction : section(program, "micro").instructions) {
    if (instruction.op == "comm::reduce_scatter") {
      // A reduction in flight belongs to this unit or to the previous one.
      for (const auto& started : open) together += started.unit == instruction.scope;
      open.push_back({instruction.scope, instruction.event});
    } else if (instruction.kind == Instruction::Kind::wait) {
      std::erase_if(open, [&](const auto& s) { return s.event == instruction.event; });
    }
  }
  CHECK(together == kLayers);
  CHECK(open.empty());
}
