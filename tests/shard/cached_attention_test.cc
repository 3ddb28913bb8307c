#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "graph/graph.h"
#include "tests/shard/support.h"

namespace perigee::shard {
namespace {

using Catch::Matchers::Contains;
using graph::DType;
using graph::Graph;
using graph::Input;
using graph::ValueId;

// Attention of two tokens of three texts, with the caches of five.
Graph cached(int64_t heads, int64_t groups) {
  Graph g;
  g.scopes = {{"", "Model"}};
  const auto data = [&](const char* name, std::vector<int64_t> shape, DType type = DType::float32) {
    return g.add_input(Input::Kind::data, name, {type, std::move(shape)});
  };
  const auto cache = [&](const char* name, int64_t size) {
    return g.add_input(Input::Kind::buffer, name, {DType::float32, {5, groups, 9, size}});
  };
  const auto out = g.add_node("perigee::cached_attention",
                              {{"query", data("query", {3, heads, 2, 8})},
                               {"key", data("key", {3, groups, 2, 8})},
                               {"value", data("value", {3, groups, 2, 4})},
                               {"positions", data("positions", {3, 2}, DType::int64)},
                               {"slots", data("slots", {3}, DType::int64)},
                               {"key_cache", cache("keys", 8)},
                               {"value_cache", cache("values", 4)},
                               {"scale", 0.5}},
                              {{DType::float32, {3, heads, 2, 4}}});
  g.outputs.push_back({graph::Output::Kind::result, "out", out[0]});
  return g;
}

plan::Plan plan_of(const Graph& g, const char* axes,
                   std::map<std::string, std::string> placements) {
  auto plan = plan_for(g, axes, placements);
  plan.batch_axes = "";
  return plan;
}

// Returns the placements of the node's operands, "S1 S1 ...".
std::string operands(const Graph& g, const plan::Plan& plan) {
  const auto sharding = propagate(g, plan);
  std::string text;
  for (const auto& placements : sharding.operands[0]) {
    text += (text.empty() ? "" : " ") + mesh::to_string(placements);
  }
  return text;
}

TEST_CASE("cached attention is sharded over heads with its caches") {
  const auto g = cached(4, 2);
  const auto plan = plan_of(g, "tensor=2", {{"keys", "S1"}, {"values", "S1"}});
  CHECK(operands(g, plan) == "S1 S1 S1 R R S1 S1");
  const auto local = local_graph(g, plan, 1);
  const auto& node = *std::find_if(local.graph.nodes.begin(), local.graph.nodes.end(),
                                   [](auto& n) { return n.op == "perigee::cached_attention"; });
  const auto shape = [&](const char* operand) {
    return local.graph.type(node.get<ValueId>(operand, {})).shape;
  };
  CHECK(shape("query") == std::vector<int64_t>{3, 2, 2, 8});
  CHECK(shape("key_cache") == std::vector<int64_t>{5, 1, 9, 8});
  CHECK(shape("value_cache") == std::vector<int64_t>{5, 1, 9, 4});
  // The op writes to the rank's own cache.
  CHECK(node.get<ValueId>("key_cache", {}) == local.graph.find_input("keys")->value);
  CHECK(node.get<ValueId>("value_cache", {}) == local.graph.find_input("values")->value);
}

TEST_CASE("cached attention is not sharded over heads where its caches are not") {
  const auto g = cached(4, 2);
  // Sharded heads of queries, keys and values are gathered.
  const auto plan = plan_of(g, "tensor=2", {{"query", "S1"}, {"key", "S1"}, {"value", "S1"}});
  CHECK(operands(g, plan) == "R R R R R R R");
  // Without the caches' rule the op would stay sharded, and write to parts of copies.
  auto other = plan;
  other.rules["perigee::cached_attention"] =
      "query: b^ q s^ d^, key: b^ k^ s^ d^, value: b^ k^ s^ e^, positions: b^ s^, slots: b^, "
      "key_cache: n^ k^ t^ d^, value_cache: n^ k^ t^ e^ -> b^ q s^ e^; scale";
  CHECK(operands(g, other) == "S1 R R R R R R");
}

TEST_CASE("a head of keys that all queries share is replicated with its caches") {
  const auto g = cached(4, 1);
  CHECK(operands(g, plan_of(g, "tensor=2", {{"query", "S1"}})) == "S1 R R R R R R");
}

TEST_CASE("caches that are sharded otherwise are refused") {
  const auto refused = [](const Graph& g, const char* axes, const char* keys) {
    CHECK_THROWS_WITH(propagate(g, plan_of(g, axes, {{"keys", keys}})),
                      Contains("perigee::cached_attention in scope \"\" has no sharding"));
  };
  refused(cached(4, 2), "tensor=2", "S0");  // slots
  refused(cached(4, 2), "tensor=2", "S2");  // rows
  refused(cached(4, 2), "tensor=2", "S1");  // the keys' alone
  refused(cached(6, 3), "tensor=2", "S1");  // groups that the ranks do not divide
}

}  // namespace
}  // namespace perigee::shard
