// Whole models, captured, on random meshes with random placements: losses, gradients and new buffer
// values are those of one device.
#include "tests/parity/support/models.h"

#include <fmt/format.h>

#include <map>
#include <random>

#include "graph/ops.h"
#include "tests/parity/rules/support_plan.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

std::string text_of(const plan::Plan& plan) { return plan::print(plan); }

TEST_CASE("models on random meshes with random placements train as on one device") {
  for (const auto& [name, make] : models()) {
    for (uint64_t seed = 0; seed < 16; ++seed) {
      torch::manual_seed(seed);
      std::mt19937_64 random(seed);
      const auto given = capture_model(make(static_cast<int64_t>(3 + seed % 6)));
      const auto expected = exec::evaluate(given.graph, given.inputs, {.seed = 3});
      const auto plan = random_plan(given.graph, random, seed % 2 == 1);
      const auto wrong = compare(given, plan, expected);
      INFO(name << " seed " << seed << ": " << wrong << (wrong.empty() ? "" : text_of(plan)));
      CHECK(wrong.empty());
    }
  }
}

TEST_CASE("data parallel models gather and replicate nothing") {
  for (const auto& [name, make] : models()) {
    const auto given = capture_model(make(8));
    plan::Plan plan;
    plan.graph_hash = graph::structural_hash(given.graph);
    plan.mesh.axes = {{"data", 4}};
    const auto sharding = shard::propagate(given.graph, plan);
    INFO(name);
    for (const auto& op : sharding.replicated_ops) FAIL_CHECK(op);
    const auto local = shard::partition(given.graph, sharding, plan, 1);
    // Only scalars (label counts) and batch norm's statistics are communicated.
    for (const auto& node : local.graph.nodes) {
      if (!graph::is_collective(node.op)) continue;
      INFO(graph::print(local.graph, node));
      CHECK(node.op == "comm::all_reduce");
      CHECK(local.graph.type(node.outputs[0]).numel() <= 6);
    }
  }
}

// Changes the local graphs of a data parallel GPT; the change must be detected.
std::string compare_broken(const std::function<void(graph::Graph&)>& change) {
  torch::manual_seed(1);
  const auto given = capture_model(models().at("gpt")(8));
  const auto expected = exec::evaluate(given.graph, given.inputs, {.seed = 3});
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(given.graph);
  plan.mesh.axes = {{"data", 2}};
  auto locals = partition_all(given.graph, plan);
  for (auto& local : locals) change(local.graph);
  try {
    const auto outputs = evaluate_ranks(locals, plan.mesh, given.inputs, {.seed = 3});
    for (const auto& [name, tensor] : expected) {
      if (!difference(outputs.at(name), tensor, 1e-10).empty()) return name;
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a dropped collective, a scaled gradient and a mask without its block are detected") {
  CHECK(compare_broken([](graph::Graph&) {}) == "");
  CHECK(compare_broken([](graph::Graph& g) {
          for (auto& node : g.nodes) {
            if (node.op == "comm::all_reduce")
              node = {"aten::clone", {node.args[0]}, node.outputs,
                      node.scope,    node.phase,     node.forward_node};
          }
        }) != "");
  CHECK(compare_broken([](graph::Graph& g) {
          for (auto& node : g.nodes) {
            if (node.op != "perigee::full" || node.phase == graph::Phase::forward) continue;
            for (auto& [arg, value] : node.args) {
              if (arg == "value") value = 2.0;
            }
          }
        }) != "");
  CHECK(compare_broken([](graph::Graph& g) {
          for (auto& node : g.nodes) {
            std::erase_if(node.args, [](const auto& arg) { return arg.first == "begin"; });
          }
        }) != "");
  CHECK(compare_broken([](graph::Graph& g) {
          for (auto& node : g.nodes) {
            for (auto& [arg, value] : node.args) {
              if (arg == "begin") std::get<std::vector<int64_t>>(value)[0] = 0;
            }
          }
        }) != "");
}

}  // namespace
}  // namespace perigee::parity
