// Plans with submeshes of unequal sizes.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "plan/pipeline.h"
#include "plan/plan.h"

using namespace perigee;
using namespace perigee::plan;
using nlohmann::json;

TEST_CASE("a plan file has the sizes of heterogeneous submeshes") {
  Plan plan;
  plan.mesh = mesh::parse_axes("data=2|tensor=3|data=1");
  const auto text = print(plan);
  CHECK(json::parse(text)["mesh"]["submeshes"] ==
        json::parse(R"([{"data": 2}, {"tensor": 3}, {}])"));
  CHECK(parse(text) == plan);
  auto wrong = json::parse(text);
  wrong["mesh"]["submeshes"][1] = {{"pipe", 3}};
  CHECK_THROWS_WITH(parse(wrong.dump(), "p.json"),
                    "[plan] p.json: mesh.submeshes[1] has sizes of axes before the last one, but "
                    "got {\"pipe\":3}");
  plan.mesh = mesh::parse_axes("data=2|data=2");
  CHECK_FALSE(json::parse(print(plan))["mesh"].contains("submeshes"));
}

TEST_CASE("a microbatch is split over the ranks of each stage") {
  Plan plan;
  plan.mesh = mesh::parse_axes("data=2|data=3|tensor=2");
  CHECK(batch_ranks(plan) == 6);
  CHECK(of_stage(plan, 1).mesh.size_of("data") == 3);
  plan.mesh = mesh::parse_axes("data=4,tensor=2");
  CHECK(batch_ranks(plan) == 4);
}
