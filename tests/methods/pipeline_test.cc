// The stage boundaries that pipeline_parallel chooses.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "methods/method.h"
#include "methods/parallel/planned_stages.h"

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
  CHECK_THROWS_WITH(
      starts_of(g, R"({"starts": ["blocks.0"]})"),
      Contains("starts must leave a layer to the first part, but the model begins with "
               "\"blocks.0\""));
  CHECK_THROWS_WITH(starts_of(g, R"({"balance": "counts"})"), Contains("did you mean \"count\"?"));
  CHECK_THROWS_WITH(starts_of(g, R"({"tolerance": 0.1})"),
                    Contains("4 blocks cannot be cut into 2 such parts"));
  CHECK_THROWS_WITH(starts_of(g, R"({"tolerance": -1})"), Contains("must be at least 0"));
  CHECK_THROWS_WITH(starts_of(g, R"({"tolerance": 1, "starts": ["blocks.1"]})"),
                    Contains("either starts or tolerance says where parts begin"));
}

TEST_CASE("parts consist of whole layers, which are clusters of ops") {
  // Work 4, 4, 1, 1; three layers of at most 1.5 times their share begin where fewest bytes are read.
  const auto g = model({64, 64, 64, 16, 64});
  CHECK(starts_of(g, R"({"layers": 3, "part_layers": [1, 2]})") == Starts{"blocks.1"});
  CHECK(starts_of(g, R"({"layers": 3, "part_layers": [2, 1]})") == Starts{"blocks.3"});
  CHECK(starts_of(g, R"({"layers": 2, "tolerance": 0.8})") == Starts{"blocks.3"});
  CHECK(starts_of(g, R"({"layers": 4, "tolerance": 1})") == Starts{"blocks.2"});
  CHECK_THROWS_WITH(starts_of(g, R"({"layers": 3})"),
                    Contains("layers must divide over 2 parts, or part_layers must say"));
  CHECK_THROWS_WITH(starts_of(g, R"({"layers": 3, "part_layers": [1, 1]})"),
                    Contains("2 numbers above 0 with the sum 3 of layers, but got [1, 1]"));
  CHECK_THROWS_WITH(starts_of(g, R"({"layers": 3, "part_layers": [3, 0]})"), Contains("above 0"));
  CHECK_THROWS_WITH(starts_of(g, R"({"part_layers": [1, 1]})"), Contains("requires layers"));
  CHECK_THROWS_WITH(starts_of(g, R"({"layers": 2, "balance": "work"})"),
                    Contains("either layers or balance says where parts begin"));
  CHECK_THROWS_WITH(starts_of(g, R"({"layers": 2, "starts": ["blocks.1"]})"),
                    Contains("either starts or layers says where parts begin"));
  CHECK_THROWS_WITH(starts_of(g, R"({"layers": 2, "tolerance": 0})"),
                    Contains("raise the tolerance"));
}

TEST_CASE("planned stages have the ops of their parts and their microbatches in flight") {
  const auto g = model({64, 64, 64, 16, 64});
  const auto stages_of = [&](const std::string& schedule, int64_t stages, int64_t microbatches) {
    const auto strategy = from_json(Json::parse(fmt::format(R"([["parallel_mode", [["pipe", {}]]],
                                    ["pipeline_parallel", {{"schedule": "{}"}}],
                                    ["gradient_accumulation", {{"microbatches": {}}}]])",
                                                            stages, schedule, microbatches)),
                                    "test");
    const auto plan = make_plan(strategy, {.graph = &g, .global_batch = 8, .world = stages});
    return planned_stages(g, plan);
  };
  using Numbers = std::vector<double>;
  CHECK(stages_of("1f1b", 4, 8).in_flight == Numbers{4, 3, 2, 1});
  CHECK(stages_of("1f1b", 4, 2).in_flight == Numbers{2, 2, 2, 1});
  CHECK(stages_of("gpipe", 2, 4).in_flight == Numbers{4, 4});
  CHECK(stages_of("1f1b", 4, 8).of_node == std::vector<int>{0, 1, 2, 3, 3});
  CHECK(stages_of("1f1b", 1, 8).in_flight.empty());
}

TEST_CASE(
    "where no number is given, there are as many microbatches as stages if ranks share them") {
  const auto g = model({64, 64, 64, 64, 64});
  const auto microbatches = [&](int64_t batch, const std::string& mesh,
                                const std::string& more = "") {
    const auto strategy = from_json(Json::parse(R"([["parallel_mode", )" + mesh +
                                                R"(], ["pipeline_parallel", {}])" + more + "]"),
                                    "test");
    return make_plan(strategy, {.graph = &g, .global_batch = batch}).microbatches;
  };
  const auto on_data = [](int64_t data) {
    return fmt::format(R"([["data", {}], ["pipe", 2]])", data);
  };
  CHECK(microbatches(8, on_data(2)) == 2);
  CHECK(microbatches(6, on_data(1)) == 2);
  CHECK(microbatches(6, on_data(2)) == 1);
  CHECK(microbatches(9, on_data(3)) == 1);
  // Later methods split the batch, too.
  const auto hybrid = R"(, ["fsdp", {"sharding_strategy": "HYBRID_SHARD"}])";
  CHECK(microbatches(8, R"([["pipe", 4], ["zero", 4], ["data", 1]])", hybrid) == 1);
  CHECK(microbatches(16, R"([["pipe", 4], ["zero", 4], ["data", 1]])", hybrid) == 4);
  // The ranks of each submesh share the samples, not those of the largest sizes.
  CHECK(microbatches(6, R"({"submeshes": [[["data", 2]], [["data", 3]]]})") == 1);
  CHECK(microbatches(12, R"({"submeshes": [[["data", 2]], [["data", 3]]]})") == 2);
}

TEST_CASE("ds_3d_parallel refuses another number of microbatches than gradient_accumulation's") {
  const auto g = model({64, 64, 64});
  const auto refused = [&](const std::string& ds_config) {
    const auto strategy = from_json(
        Json::parse(R"([["parallel_mode", [["tensor", 1], ["pipe", 2], ["data", 1]]],
                        ["gradient_accumulation", {"microbatches": 2}],
                        ["ds_3d_parallel", {"ds_config": )" +
                    ds_config + "}]]"),
        "test");
    CHECK_THROWS_WITH(make_plan(strategy, {.graph = &g, .global_batch = 8}),
                      "[ds_3d_parallel] the strategy asks for 2 microbatches, but "
                      "ds_config makes 4: remove one of them");
  };
  refused(R"({"gradient_accumulation_steps": 4})");
  refused(R"({"train_micro_batch_size_per_gpu": 2})");
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
