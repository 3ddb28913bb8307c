// Which scopes checkpoint has run again, by the row of blocks or by what is kept.
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

TEST_CASE("checkpoint takes the row of blocks, the first of them, or what lies between kept ones") {
  CHECK(regions_of(R"(["auto"])") ==
        Regions{{"blocks.0"}, {"blocks.1"}, {"blocks.2"}, {"blocks.3"}});
  CHECK(regions_of(R"({"1": "blocks.*", "most": 2})") == Regions{{"blocks.0"}, {"blocks.1"}});
  CHECK(regions_of(R"({"1": "blocks.*", "most": 9, "group": 2})").size() == 2);
  // What lies behind the last one that is kept is not run again.
  CHECK(regions_of(R"({"kept": ["blocks.1"]})") == Regions{{"blocks.0", "blocks.1"}});
  CHECK(regions_of(R"({"kept": ["blocks.3", "blocks.0"]})") ==
        Regions{{"blocks.0"}, {"blocks.1", "blocks.2", "blocks.3"}});
}

TEST_CASE("checkpoint refuses what is in no row, and scopes beside kept ones") {
  CHECK_THROWS_WITH(regions_of(R"({"kept": ["block.1"]})"),
                    Contains("kept names modules of the row blocks.0 to blocks.3, but got "
                             "\"block.1\", did you mean \"blocks.1\"?"));
  CHECK_THROWS_WITH(regions_of(R"({"kept": []})"), Contains("at least one scope"));
  CHECK_THROWS_WITH(regions_of(R"({"1": "blocks.*", "kept": ["blocks.1"]})"),
                    Contains("without scopes, most, every and group"));
}

}  // namespace perigee::methods
