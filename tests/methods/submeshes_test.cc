// parallel_mode's submeshes.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "graph/graph.h"
#include "methods/method.h"

using namespace perigee;
using namespace perigee::methods;
using Catch::Matchers::Contains;

namespace {

plan::Plan plan_of(const std::string& strategy, const PlanRequest& request = {}) {
  static const graph::Graph graph;
  auto given = request;
  given.graph = &graph;
  return make_plan(from_json(Json::parse(strategy), "test"), given);
}

std::string refusal(const std::string& strategy, const PlanRequest& request = {}) {
  try {
    plan_of(strategy, request);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("parallel_mode accepts a submesh for each stage") {
  const auto plan = plan_of(
      R"([["parallel_mode", {"submeshes": [[["data", 2]], [["tensor", 2], ["data", 1]], {}]}]])",
      {.global_batch = 4});
  CHECK(plan.mesh == mesh::parse_axes("data=2|tensor=2|data=1"));
  CHECK(plan.decisions.at(0).sentence == "stage 0 has 2 ranks (0, 1) as data=2,tensor=1");
  CHECK(plan.decisions.at(2).sentence == "stage 2 has 1 rank (4)");
  CHECK(plan_of(R"([["parallel_mode", {"submeshes": [[["data", 2]], [["data", 2]]]}]])",
                {.global_batch = 4})
            .mesh == mesh::parse_axes("data=2,pipe=2"));
}

TEST_CASE("the samples of a microbatch divide over the data ranks of every stage") {
  const std::string stages =
      R"([["parallel_mode", {"submeshes": [[["data", 2]], [["data", 3]]]}]])";
  CHECK(refusal(stages, {.global_batch = 12}) == "");
  CHECK_THAT(
      refusal(stages, {.global_batch = 4}),
      Contains("batch.global must divide over microbatches x data ranks, but got 4 for 1 x 6"));
}

TEST_CASE("submeshes refuse axes, instances and fixed sizes beside them") {
  const auto with = [](const std::string& fields) {
    return refusal(R"([["parallel_mode", {"submeshes": [[["data", 2]], []], )" + fields + "}]]",
                   {.global_batch = 4, .world = 4, .world_given = true});
  };
  CHECK_THAT(with(R"("1": ["data", 2])"),
             Contains("the mesh has axes, or submeshes with axes of their own, but got both"));
  CHECK_THAT(with(R"("instances": true)"), Contains("leave instances out"));
  CHECK_THAT(with(R"("exact": true)"), Contains("submeshes have fixed sizes"));
  CHECK_THAT(refusal(R"([["parallel_mode", {"submeshes": [[["pipe", 2]], []]}]])"),
             Contains("a submesh names each axis once, and not the outer axis pipe"));
}
