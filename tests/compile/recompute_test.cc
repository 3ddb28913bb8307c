// The recomputed ops, and their places in the backward pass.
#include "compile/graph/recompute.h"

#include <catch2/catch.hpp>

#include "compile/graph/recast_parameters.h"
#include "tests/compile/support.h"

using namespace perigee;
using namespace perigee::compile;

namespace {

int count(const graph::Graph& graph, const std::string& op, graph::Phase phase) {
  int found = 0;
  for (const auto& node : graph.nodes) found += node.op == op && node.phase == phase;
  return found;
}

// Returns the number of results of forward nodes that backward nodes read.
int saved(const graph::Graph& graph) {
  std::vector<bool> read(graph.values.size());
  for (const auto& node : graph.nodes) {
    if (node.phase == graph::Phase::backward)
      node.each_operand([&](graph::ValueId v) { read[v.index] = true; });
  }
  int found = 0;
  for (size_t v = 0; v < read.size(); ++v) {
    const auto producer = graph.values[v].producer;
    found += read[v] && producer >= 0 && graph.nodes[producer].phase == graph::Phase::forward;
  }
  return found;
}

}  // namespace

TEST_CASE("the ops of a region are recomputed once, just before the backward op that reads them") {
  const auto graph = mlp({.layers = 4});
  const auto before = saved(graph);
  const auto recomputed = recompute(graph, {.regions = {{"layer.1"}, {"layer.2"}}});
  graph::verify(recomputed);
  CHECK(count(recomputed, "aten::gelu", graph::Phase::forward) == 4);
  // The results of gelu are the next region's inputs: kept. The linear layers are recomputed.
  CHECK(count(recomputed, "aten::gelu", graph::Phase::backward) == 0);
  CHECK(count(recomputed, "aten::mm", graph::Phase::forward) == 4);
  CHECK(count(recomputed, "aten::mm", graph::Phase::backward) ==
        count(graph, "aten::mm", graph::Phase::backward) + 2);
  CHECK(saved(recomputed) < before);
  const auto joined = recompute(graph, {.regions = {{"layer.1", "layer.2"}}});
  graph::verify(joined);
  CHECK(count(joined, "aten::gelu", graph::Phase::backward) == 1);
  CHECK(saved(joined) < saved(recomputed));
}

TEST_CASE("ops that are kept, or not listed, are not recomputed") {
  const auto graph = mlp({.layers = 3});
  const auto products = count(graph, "aten::mm", graph::Phase::backward);
  const auto kept = recompute(graph, {.regions = {{"layer"}}, .keep = {"aten::mm"}});
  graph::verify(kept);
  CHECK(count(kept, "aten::mm", graph::Phase::backward) == products);
  CHECK(count(kept, "aten::gelu", graph::Phase::backward) == 2);
  const auto only = recompute(graph, {.regions = {{"layer"}}, .only = {"aten::gelu"}});
  graph::verify(only);
  CHECK(count(only, "aten::mm", graph::Phase::backward) == products);
  CHECK(recompute(graph, {}) == graph);
}

TEST_CASE("a region's own list of kept ops replaces the plan's") {
  const auto graph = mlp({.layers = 4});
  const auto recomputed_count = [&](const plan::Recompute& plan, const std::string& op) {
    const auto recomputed = recompute(graph, plan);
    graph::verify(recomputed);
    return count(recomputed, op, graph::Phase::backward) - count(graph, op, graph::Phase::backward);
  };
  // One product of each layer except the last, whose results the loss reads. Within a region of two
  // layers, the first layer's gelu is recomputed, too.
  plan::Recompute plan{.regions = {{"layer.0", "layer.1"}, {"layer.2"}}};
  const auto all = recomputed_count(plan, "aten::mm");
  CHECK(all == 3);
  plan.keep = {"aten::mm"};
  CHECK(recomputed_count(plan, "aten::mm") == 0);
  CHECK(recomputed_count(plan, "aten::gelu") == 1);
  plan.keep_in = {{"layer.0", {}}};
  CHECK(recomputed_count(plan, "aten::mm") == 2);
  CHECK(recomputed_count(plan, "aten::gelu") == 1);
  plan.keep_in = {{"layer.2", {}}};
  CHECK(recomputed_count(plan, "aten::mm") == 1);
  plan.keep_in = {{"layer.0", {"aten::gelu"}}};
  CHECK(recomputed_count(plan, "aten::mm") == 2);
  CHECK(recomputed_count(plan, "aten::gelu") == 0);
  plan.keep = {};
  plan.keep_in = {{"layer.2", {"aten::mm"}}};
  CHECK(recomputed_count(plan, "aten::mm") == 2);
}

TEST_CASE("parameters are recast for the backward pass") {
  const auto graph = graph::parse(R"(perigee.graph/1
scope "" Net
input parameter %0: float32[4, 4] = weight
input data %1: float32[4, 4] = x
%2: bfloat16[4, 4] = perigee::cast(self=%0)   @ forward
%3: bfloat16[4, 4] = perigee::cast(self=%1)   @ forward
%4: bfloat16[4, 4] = aten::t(self=%2)   @ forward
%5: bfloat16[4, 4] = aten::mm(self=%3, mat2=%4)   @ forward
%6: bfloat16[4, 4] = aten::mm(self=%5, mat2=%3)   @ backward of %5
%7: bfloat16[4, 4] = aten::mm(self=%6, mat2=%4)   @ backward of %5
%8: bfloat16[4, 4] = aten::mm(self=%7, mat2=%2)   @ backward of %5
output result %8 = y
)");
  const auto recast = recast_parameters(graph);
  graph::verify(recast);
  CHECK(count(recast, "perigee::cast", graph::Phase::forward) == 2);
  CHECK(count(recast, "perigee::cast", graph::Phase::backward) == 1);
  CHECK(count(recast, "aten::t", graph::Phase::backward) == 1);
  CHECK(saved(recast) == saved(graph) - 2);  // the input's cast and the product are kept
  const auto plain = mlp({.layers = 2});
  CHECK(recast_parameters(plain) == plain);
}
