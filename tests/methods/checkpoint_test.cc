// The scopes that checkpoint recomputes, given blocks, a number of blocks or kept modules.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "methods/method.h"

namespace perigee::methods {
namespace {

using Catch::Matchers::Contains;
using Regions = std::vector<std::vector<std::string>>;

// Four blocks, and an embedding before them.
graph::Graph model() {
  graph::Graph g;
  g.scopes = {{"", "Net"}, {"embed", "Embedding"}};
  auto y = g.add_input(graph::Input::Kind::data, "x", {graph::DType::float32, {8, 4}});
  const auto use = [&](const std::string& scope) {
    y = g.add_node("aten::relu", {{"self", y}}, {{graph::DType::float32, {8, 4}}}, scope)[0];
  };
  use("embed");
  for (int k = 0; k < 4; ++k) {
    g.scopes.push_back({"blocks." + std::to_string(k), "Block"});
    use(g.scopes.back().path);
  }
  const auto loss = g.add_node("aten::sum", {{"self", y}}, {{graph::DType::float32, {}}});
  g.outputs.push_back({graph::Output::Kind::loss, "loss", loss[0]});
  return g;
}

Regions regions_of(const std::string& config) {
  const auto g = model();
  const auto strategy = from_json(Json::parse("[[\"checkpoint\", " + config + "]]"), "test");
  return make_plan(strategy, {.graph = &g, .global_batch = 8}).recompute.regions;
}

}  // namespace

TEST_CASE("checkpoint recomputes all blocks, the first blocks, or the modules between kept ones") {
  CHECK(regions_of(R"(["auto"])") ==
        Regions{{"blocks.0"}, {"blocks.1"}, {"blocks.2"}, {"blocks.3"}});
  CHECK(regions_of(R"({"1": "blocks.*", "most": 2})") == Regions{{"blocks.0"}, {"blocks.1"}});
  CHECK(regions_of(R"({"1": "blocks.*", "most": 9, "group": 2})").size() == 2);
  // Modules after the last kept one are not recomputed.
  CHECK(regions_of(R"({"kept": ["blocks.1"]})") == Regions{{"blocks.0", "blocks.1"}});
  CHECK(regions_of(R"({"kept": ["blocks.3", "blocks.0"]})") ==
        Regions{{"blocks.0"}, {"blocks.1", "blocks.2", "blocks.3"}});
}

// Nine different modules; the sixth result is as large as all others together.
graph::Graph uneven() {
  graph::Graph g;
  g.scopes = {{"", "Net"}, {"body", "Body"}};
  auto y = g.add_input(graph::Input::Kind::data, "x", {graph::DType::float32, {8, 4}});
  for (const std::string name : {"a", "b", "c", "d", "e", "body.f", "body.g", "h", "i"}) {
    g.scopes.push_back({name, "Layer"});
    const int64_t width = name == "body.f" ? 32 : 4;
    y = g.add_node("aten::relu", {{"self", y}}, {{graph::DType::float32, {8, width}}}, name)[0];
  }
  const auto loss = g.add_node("aten::sum", {{"self", y}}, {{graph::DType::float32, {}}});
  g.outputs.push_back({graph::Output::Kind::loss, "loss", loss[0]});
  return g;
}

TEST_CASE("without repeated modules, checkpoint's auto recomputes sqrt(n) runs of n modules") {
  const auto g = uneven();
  const auto made = [&](const std::string& config) {
    const auto strategy = from_json(Json::parse("[[\"checkpoint\", " + config + "]]"), "test");
    return make_plan(strategy, {.graph = &g, .global_batch = 8}).recompute.regions;
  };
  // Of four runs of equal bytes, the last is not recomputed.
  CHECK(made(R"(["auto"])") == Regions{{"a", "b", "c", "d"}, {"e", "body.f"}, {"body.g"}});
  CHECK(made(R"({"1": "auto", "every": 2})") == Regions{{"a"}, {"c"}, {"e"}, {"body.g"}});
  CHECK(made(R"({"kept": ["c", "body"]})") == Regions{{"a", "b", "c"}, {"d", "e", "body"}});
  CHECK_THROWS_WITH(made(R"({"kept": ["bdy"]})"),
                    Contains("did you mean \"body\"") || Contains("modules of the row a to i"));
  CHECK_THROWS_WITH(made(R"({"1": "auto", "kept": ["c"]})"), Contains("without scopes"));
}

TEST_CASE("checkpoint's auto recomputes all sequences of modules of one type, except nested ones") {
  graph::Graph g;
  g.scopes = {{"", "Net"}};
  auto y = g.add_input(graph::Input::Kind::data, "x", {graph::DType::float32, {8, 4}});
  const auto use = [&](const std::string& scope, const std::string& type) {
    g.scopes.push_back({scope, type});
    y = g.add_node("aten::relu", {{"self", y}}, {{graph::DType::float32, {8, 4}}}, scope)[0];
  };
  for (const std::string row : {"encoder", "decoder"}) {
    for (const std::string block : {"0", "1"}) {
      const auto path = row + "." + block;
      use(path, row + "Block");
      for (const std::string layer : {"0", "1", "2"}) use(path + ".mlp." + layer, "Linear");
    }
  }
  use("head.0", "Linear");  // two types: not a sequence
  use("head.1", "Dropout");
  const auto loss = g.add_node("aten::sum", {{"self", y}}, {{graph::DType::float32, {}}});
  g.outputs.push_back({graph::Output::Kind::loss, "loss", loss[0]});
  const auto strategy = from_json(Json::parse(R"([["checkpoint", ["auto"]]])"), "test");
  CHECK(make_plan(strategy, {.graph = &g, .global_batch = 8}).recompute.regions ==
        Regions{{"encoder.0"}, {"encoder.1"}, {"decoder.0"}, {"decoder.1"}});
}

TEST_CASE("checkpoint's memory is a number of bytes or the device's memory") {
  const auto g = model();
  const auto budget = [&](const std::string& memory, std::function<double(int64_t)> bytes,
                          const std::string& mesh = R"([["data", 2]])") {
    const auto strategy = from_json(
        Json::parse(R"([["parallel_mode", )" + mesh +
                    R"(], ["checkpoint", {"1": "auto", "memory": )" + memory + "}]]"),
        "test");
    return make_plan(strategy, {.graph = &g, .global_batch = 8, .device_bytes = std::move(bytes)})
        .recompute.budget_bytes;
  };
  const auto share = [](int64_t ranks) { return 1000.0 / static_cast<double>(ranks); };
  CHECK(budget("\"device\"", share) == 500);
  // Of the ranks of all submeshes: the rectangle of their largest sizes has 8.
  CHECK(budget("\"device\"", share, R"({"submeshes": [[["data", 4]], [["tensor", 1]]]})") == 200);
  CHECK(budget("\"device\"", nullptr) == 0);  // unknown: all scopes are recomputed
  CHECK(budget("\"2KB\"", share) == 2000);
  CHECK_THROWS_WITH(budget("\"much\"", share), Contains("or \"device\", but got \"much\""));
}

TEST_CASE("checkpoint recomputes some scopes completely while others keep ops") {
  const auto g = model();
  const auto plan_of = [&](const std::string& config) {
    const auto strategy = from_json(Json::parse("[[\"checkpoint\", " + config + "]]"), "test");
    return make_plan(strategy, {.graph = &g, .global_batch = 8});
  };
  using Kept = std::map<std::string, std::vector<std::string>>;
  const auto plan = plan_of(R"({"1": "blocks.*", "keep": ["relu"], "full_every": 2})");
  CHECK(plan.recompute.keep_in == Kept{{"blocks.0", {}}, {"blocks.2", {}}});
  CHECK(plan.recompute.keep == std::vector<std::string>{"aten::relu"});
  CHECK_THAT(plan::explain(plan),
             Contains("4 scopes (blocks.0 to blocks.3) are recomputed in the backward pass, except "
                      "the ops aten::relu; 2 of them (blocks.0, blocks.2) whole"));
  const auto kept = [&](const std::string& config) { return plan_of(config).recompute.keep_in; };
  CHECK(kept(R"({"1": "blocks.*", "keep": ["relu"], "full_every": 4})") == Kept{{"blocks.0", {}}});
  CHECK(kept(R"({"1": "auto", "keep": ["relu"], "full": ["blocks.1", "blocks.3"]})") ==
        Kept{{"blocks.1", {}}, {"blocks.3", {}}});
  // One scope selects its whole group.
  CHECK(kept(R"({"1": "auto", "group": 2, "keep": ["relu"], "full": ["blocks.3"]})") ==
        Kept{{"blocks.2", {}}});
  CHECK_THROWS_WITH(plan_of(R"({"1": "auto", "full_every": 2})"),
                    Contains("name these by keep, or leave full_every out"));
  CHECK_THROWS_WITH(plan_of(R"({"1": "auto", "ops": ["relu"], "full": ["blocks.1"]})"),
                    Contains("name these by keep, or leave full out"));
  CHECK_THROWS_WITH(plan_of(R"({"1": "auto", "keep": ["relu"], "full_every": 1})"),
                    Contains("full_every must be at least 2, but got 1"));
  CHECK_THROWS_WITH(
      plan_of(R"({"1": "auto", "keep": ["relu"], "full_every": 2, "full": ["blocks.1"]})"),
      Contains("either full or full_every"));
  CHECK_THROWS_WITH(plan_of(R"({"1": "auto", "keep": ["relu"], "full": ["embed"]})"),
                    Contains("full must name recomputed scopes (blocks.0 to blocks.3), but got "
                             "\"embed\""));
}

TEST_CASE("checkpoint refuses modules other than blocks, and scopes together with kept") {
  CHECK_THROWS_WITH(regions_of(R"({"kept": ["block.1"]})"),
                    Contains("kept must name modules of the row blocks.0 to blocks.3, but got "
                             "\"block.1\", did you mean \"blocks.1\"?"));
  CHECK_THROWS_WITH(regions_of(R"({"kept": []})"), Contains("at least one scope"));
  CHECK_THROWS_WITH(regions_of(R"({"1": "blocks.*", "kept": ["blocks.1"]})"),
                    Contains("without scopes, most, every and group"));
}

}  // namespace perigee::methods
