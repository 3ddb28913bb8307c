// The stage boundaries that pipeline_parallel chooses.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "methods/method.h"

namespace perigee::methods {
namespace {

using Catch::Matchers::Contains;
using Starts = std::vector<std::string>;

// Four products of rows of these widths.
graph::Graph model(const std::vector<int64_t>& widths) {
  graph::Graph g;
  g.scopes = {{"", "Net"}};
  const auto rows = [](int64_t width) {
    return graph::TensorType{graph::DType::float32, {8, width}};
  };
  auto y = g.add_input(graph::Input::Kind::data, "x", rows(widths[0]));
  for (size_t k = 0; k + 1 < widths.size(); ++k) {
    const auto scope = "blocks." + std::to_string(k);
    g.scopes.push_back({scope, "Block"});
    const auto w = g.add_input(graph::Input::Kind::parameter, scope + ".weight",
                               {graph::DType::float32, {widths[k], widths[k + 1]}});
    y = g.add_node("aten::mm", {{"self", y}, {"mat2", w}}, {rows(widths[k + 1])}, scope)[0];
  }
  const auto loss = g.add_node("aten::sum", {{"self", y}}, {{graph::DType::float32, {}}});
  g.outputs.push_back({graph::Output::Kind::loss, "loss", loss[0]});
  return g;
}

Starts starts_of(const graph::Graph& g, const std::string& config) {
  const auto strategy = from_json(
      Json::parse(R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", )" + config + "]]"),
      "test");
  return make_plan(strategy, {.graph = &g, .global_batch = 8, .world = 2, .world_given = true})
      .pipeline.starts;
}

}  // namespace

TEST_CASE("cuts minimise the largest work of a part, or within a tolerance the sent elements") {
  // Work 4, 4, 1, 1; the activations at the cuts are 64, 64 or 16 wide.
  const auto g = model({64, 64, 64, 16, 64});
  CHECK(starts_of(g, "{}") == Starts{"blocks.1"});
  CHECK(starts_of(g, R"({"tolerance": 0.25})") == Starts{"blocks.1"});
  // Of two cuts with equal traffic, the one with equally many blocks in each part.
  CHECK(starts_of(g, R"({"tolerance": 0.7})") == Starts{"blocks.2"});
  CHECK(starts_of(g, R"({"tolerance": 0.8})") == Starts{"blocks.3"});
  CHECK(starts_of(g, R"({"balance": "count"})") == Starts{"blocks.2"});
  CHECK_THROWS_WITH(starts_of(g, R"({"balance": "counts"})"), Contains("did you mean \"count\"?"));
  CHECK_THROWS_WITH(starts_of(g, R"({"tolerance": 0.1})"),
                    Contains("4 blocks cannot be cut into 2 such parts"));
  CHECK_THROWS_WITH(starts_of(g, R"({"tolerance": -1})"), Contains("must be at least 0"));
  CHECK_THROWS_WITH(starts_of(g, R"({"tolerance": 1, "starts": ["blocks.1"]})"),
                    Contains("either starts or tolerance says where parts begin"));
}

TEST_CASE("parallel_mode forbids only collectives that a plan can avoid") {
  const auto g = model({4, 4, 4});
  const auto with = [&](const std::string& forbid) {
    const auto strategy = from_json(
        Json::parse(R"([["parallel_mode", {"1": ["data", 2], "forbid": )" + forbid + "}]]"),
        "test");
    return make_plan(strategy, {.graph = &g, .global_batch = 8, .world = 2, .world_given = true})
        .forbidden;
  };
  CHECK(with(R"(["all_to_all"])") == Starts{"all_to_all"});
  CHECK_THROWS_WITH(with(R"(["all_reduce"])"),
                    Contains("forbid must list any of all_gather, all_to_all"));
}

}  // namespace perigee::methods
