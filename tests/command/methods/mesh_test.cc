// perigee mesh (runtime/meshes.md).
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

json groups_of(const std::string& arguments) {
  const auto ran = run("mesh --json " + arguments);
  REQUIRE(ran.status == 0);
  CHECK(ran.err == "");
  const auto parsed = json::parse(ran.out);
  CHECK(parsed["format"] == "perigee.mesh/1");
  return parsed["groups"];
}

std::string refusal(const std::string& arguments) {
  const auto ran = run("mesh " + arguments);
  CHECK(ran.status == 2);
  CHECK(ran.out == "");
  CHECK(is_short(ran.err));
  return ran.err;
}

}  // namespace

TEST_CASE("the first axis of a mesh varies fastest") {
  const auto groups = groups_of("tensor=2,pipe=3");
  CHECK(groups["tensor"] == json::parse("[[0,1],[2,3],[4,5]]"));
  CHECK(groups["pipe"] == json::parse("[[0,2,4],[1,3,5]]"));
}

TEST_CASE("submeshes of unequal sizes have groups of their own") {
  const auto groups = groups_of("data=2|tensor=2,data=1");
  CHECK(groups["data"] == json::parse("[[0,1],[2],[3]]"));
  CHECK(groups["tensor"] == json::parse("[[0],[1],[2,3]]"));
  CHECK_FALSE(groups.contains("pipe"));
  CHECK_THAT(refusal("data=2|tensor=1 --group pipe"), Contains("groups within each"));
}

TEST_CASE("groups over several axes keep the name as typed and list ranks in mesh order") {
  const auto groups = groups_of(
      "data=2,context=2,tensor=2 --group tensor,data --group data,tensor");
  CHECK(groups["tensor,data"] == json::parse("[[0,1,4,5],[2,3,6,7]]"));
  CHECK(groups["data,tensor"] == groups["tensor,data"]);
}

TEST_CASE("an order replaces the ranks, and axes of size 1 are kept") {
  const auto groups = groups_of("tensor=2,pipe=1,data=2 --order 0,4,1,5");
  CHECK(groups["tensor"] == json::parse("[[0,4],[1,5]]"));
  CHECK(groups["data"] == json::parse("[[0,1],[4,5]]"));
  CHECK(groups["pipe"] == json::parse("[[0],[4],[1],[5]]"));
}

TEST_CASE("without --json a mesh is printed as a short text") {
  CHECK(run("mesh tensor=2,data=2").out ==
        "mesh tensor=2 data=2, 4 ranks\ntensor  [0,1] [2,3]\ndata    [0,2] [1,3]\n");
}

TEST_CASE("invalid meshes are refused with the reason") {
  CHECK_THAT(refusal("tensor=0"), Contains("\"tensor\" has 0"));
  CHECK_THAT(refusal("tensor=-2"), Contains("-2"));
  CHECK_THAT(refusal("tensor=x"), Contains("\"tensor=x\""));
  CHECK_THAT(refusal("tensor"), Contains("\"tensor\""));
  CHECK_THAT(refusal("tensor=2,tensor=2"), Contains("tensor"));
  CHECK_THAT(refusal("tensor=99999999999,data=99999999999"), Contains("rank"));
  CHECK_THAT(refusal("tensor=2,pipe=2 --group pipee"), Contains("\"pipee\""));
  CHECK_THAT(refusal("tensor=2,pipe=2 --group tensor,"), Contains("axes"));
  CHECK_THAT(refusal("tensor=2 --order 0,1,2"), Contains("2 ranks, but got 3"));
  CHECK_THAT(refusal("tensor=2 --order 1,1"), Contains("1"));
  CHECK_THAT(refusal("tensor=2 --order 0,-1"), Contains("-1"));
  CHECK_THAT(refusal("tensor=2 --order 0,1,"), Contains("written like 0,4,1,5"));
  CHECK_THAT(refusal("tensor=2 --order 0,99999999999999999999"), Contains("99999999999999999999"));
}
