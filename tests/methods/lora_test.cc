// The method lora: adapted weights, the plan's graph, and refused configs.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "methods/method.h"
#include "tests/graph/support.h"

namespace perigee::methods {
namespace {

using Catch::Matchers::Contains;
using Names = std::vector<std::string>;

plan::Plan plan_of(const std::string& methods, const graph::Graph& graph = graph::two_layers(),
                   const Names& frozen = {}) {
  return make_plan(
      from_json(Json::parse(methods), "test"),
      {.graph = &graph, .global_batch = 2, .world = 2, .world_given = true, .frozen = frozen});
}

std::string why(const std::string& methods, const Names& frozen = {}) {
  try {
    plan_of(methods, graph::two_layers(), frozen);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("lora names its weights in the plan, which is for the graph with the adapters") {
  const auto graph = graph::two_layers();
  for (const char* match : {R"("fc*")", R"(["fc2", "fc1"])", R"(["fc1.weight", "fc2"])"}) {
    const auto plan = plan_of(R"([["lora", {"rank": 3, "alpha": 6, "match": )" +
                              std::string(match) + "}]]");
    REQUIRE(plan.adapters);
    CHECK(plan.adapters->weights == Names{"fc1.weight", "fc2.weight"});
    CHECK(plan.adapters->scale() == 2);
    const auto adapted = graph::adapt(graph, *plan.adapters);
    CHECK(plan.graph_hash == graph::structural_hash(adapted));
    CHECK_NOTHROW(plan::verify(plan, adapted));
    CHECK_THROWS(plan::verify(plan, graph));
    CHECK(plan::parse(plan::print(plan)) == plan);
  }
  CHECK(plan_of(R"([["lora", {"match": "fc2", "rank": 5}]])").adapters->alpha == 5);
}

TEST_CASE("lora makes the same plan for a graph that has its adapters") {
  const std::string methods = R"([["lora", {"match": "fc1", "dropout": 0.1, "rslora": true}]])";
  const auto plan = plan_of(methods);
  CHECK(plan_of(methods, graph::adapt(graph::two_layers(), *plan.adapters)) == plan);
}

TEST_CASE("methods after lora see its adapters, trained and frozen parameters apart") {
  const auto plan = plan_of(
      R"([["parallel_mode", [["data", 2]]], ["fsdp", {"match": "fc*"}], ["lora", {"match": "fc1"}]])");
  Names of_units;
  for (const auto& unit : plan.units) {
    for (const auto& name : unit.parameters) of_units.push_back(unit.name + ": " + name);
  }
  CHECK(of_units == Names{"fc1 frozen: fc1.weight", "fc1: fc1.lora_A.weight",
                          "fc1: fc1.lora_B.weight", "fc2 frozen: fc2.weight"});
}

TEST_CASE("the decision of lora counts what is trained") {
  const auto plan = plan_of(R"([["lora", {"match": "fc2", "rank": 2, "dropout": 0.05}]])");
  bool found = false;
  for (const auto& decision : plan.decisions) {
    found = found || decision.sentence ==
                         "1 weight (fc2.weight) has an adapter of rank 2 with scale 1 and dropout "
                         "0.05; 40 of 232 parameters are trained (17.2%)";
  }
  CHECK(found);
}

TEST_CASE("a lora that cannot be applied says why") {
  CHECK_THAT(
      why(R"([["lora", {"match": "fc3"}]])"),
      Contains("match must name linear layers, but \"fc3\" matches no module, did you mean"));
  CHECK_THAT(why(R"([["lora", {}]])"), Contains("match"));
  auto tied = graph::two_layers();
  tied.scopes.push_back({"head", "Linear"});
  CHECK_THROWS_WITH(plan_of(R"([["lora", {"match": "head"}]])", tied),
                    Contains("\"head\" matches head (Linear), which has no weight of its own"));
  CHECK_THAT(why(R"([["lora", {"match": []}]])"), Contains("empty list"));
  CHECK_THAT(why(R"([["lora", {"match": "fc1", "rank": 0}]])"), Contains("rank"));
  CHECK_THAT(why(R"([["lora", {"match": "fc1", "dropout": 1}]])"), Contains("dropout"));
  CHECK_THAT(why(R"([["lora", {"match": "fc1", "alpha": 0}]])"), Contains("alpha"));
  CHECK_THAT(why(R"([["lora", {"match": "fc1", "trained": "fc1.weight"}]])"),
             Contains("fc1.weight is matched by match and trained"));
  CHECK_THAT(why(R"([["lora", {"match": "fc1", "trained": "head.**"}]])"),
             Contains("trained must match parameters of the model, but \"head.**\" matches none"));
  CHECK_THAT(why(R"([["lora", {"match": "fc1"}], ["lora", {"match": "fc2"}]])"),
             Contains("a method may be listed once, but lora is listed twice"));
  CHECK_THAT(why(R"([["lora", {"match": "fc1"}]])", {"fc1.**"}),
             Contains("model.frozen matches fc1.lora_A.weight"));
  CHECK(why(R"([["lora", {"match": "fc1"}]])", {"fc2.**"}) == "");
}

TEST_CASE("lora refuses weights that are read by other ops, by name") {
  auto graph = graph::two_layers();
  const auto w = graph.find_input("fc2.weight")->value;
  const auto rows = graph.add_node("aten::relu", {{"self", w}}, {graph.type(w)}, "tied");
  graph.outputs.push_back({graph::Output::Kind::result, "rows", rows[0]});
  CHECK_THROWS_WITH(plan_of(R"([["lora", {"match": "fc*"}]])", graph),
                    Contains("\"fc*\" matches fc2.weight, which is read by aten::relu"));
  CHECK_NOTHROW(plan_of(R"([["lora", {"match": "fc1"}]])", graph));
}

}  // namespace perigee::methods
