// Submeshes of unequal sizes, one after the other on the last axis.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "mesh/report.h"
#include "tests/mesh/support.h"

using namespace perigee;
using namespace perigee::mesh;

TEST_CASE("submeshes of unequal sizes have consecutive ranks") {
  const Mesh m = parse_axes("data=2|tensor=3|data=1");
  CHECK(m.is_ragged());
  CHECK(m.size() == 6);
  CHECK(m.axes == std::vector<Axis>{{"data", 2}, {"tensor", 3}, {"pipe", 3}});
  CHECK(m.stages == Groups{{2, 1}, {1, 3}, {1, 1}});
  CHECK(ranks_of_stage(m, 0) == std::vector<int64_t>{0, 1});
  CHECK(ranks_of_stage(m, 1) == std::vector<int64_t>{2, 3, 4});
  CHECK(ranks_of_stage(m, 2) == std::vector<int64_t>{5});
  CHECK(stage_of(m, 4) == 1);
  CHECK(coordinates(m, 1) == std::vector<int64_t>{1, 0, 0});
  CHECK(coordinates(m, 4) == std::vector<int64_t>{0, 2, 1});
  CHECK(coordinates(m, 5) == std::vector<int64_t>{0, 0, 2});
}

TEST_CASE("identical submeshes form a rectangular mesh") {
  const Mesh m = parse_axes("tensor=2,data=2|tensor=2,data=2");
  CHECK(m == parse_axes("tensor=2,data=2,pipe=2"));
  CHECK(ranks_of_stage(m, 1) == std::vector<int64_t>{4, 5, 6, 7});
  CHECK(stage_of(m, 5) == 1);
  CHECK(of_rank(m, 3) == m);
}

TEST_CASE("groups are within a submesh or over all ranks") {
  Mesh m = parse_axes("data=2|tensor=2,data=2");
  CHECK(of(m, "data") == Groups{{0, 1}, {2, 3}, {4, 5}});
  CHECK(of(m, "tensor") == Groups{{0}, {1}, {2, 4}, {3, 5}});
  CHECK(of(m, "data,tensor") == Groups{{0, 1}, {2, 3, 4, 5}});
  CHECK(of(m, "pipe,data,tensor") == Groups{{0, 1, 2, 3, 4, 5}});
  const std::vector<std::string> tensor = {"tensor"}, pipe = {"pipe"};
  CHECK(group_of(m, tensor, 3) == std::vector<int64_t>{3, 5});
  CHECK_THROWS_WITH(
      group_of(m, pipe, 0),
      "[mesh] submeshes of unequal sizes have groups within each, or one over all "
      "axes, but a group is over pipe and not over data: make the submeshes identical");
  m.order = {5, 4, 3, 2, 1, 0};
  verify(m);
  CHECK(of(m, "data") == Groups{{5, 4}, {3, 2}, {1, 0}});
  CHECK(coordinates(m, 0) == std::vector<int64_t>{1, 1, 1});
}

TEST_CASE("tensors are sharded by the sizes of the rank's own submesh") {
  const Mesh m = parse_axes("data=2|data=3");
  const auto cut = parse_placements("S0,R");
  CHECK(local_ranges({6}, cut, m, 1) == std::vector<Range>{{3, 3}});
  CHECK(local_ranges({6}, cut, m, 4) == std::vector<Range>{{4, 2}});
  CHECK(local_shape({6}, cut, m, 0) == std::vector<int64_t>{3});
  CHECK(local_shape({6}, cut, m, 2) == std::vector<int64_t>{2});
}

TEST_CASE("a rank's local mesh treats all stages as having its own sizes") {
  const Mesh m = parse_axes("data=2|tensor=3");
  const Mesh own = of_rank(m, 3);
  verify(own);
  CHECK_FALSE(own.is_ragged());
  CHECK(own.axes == std::vector<Axis>{{"data", 1}, {"tensor", 3}, {"pipe", 2}});
  CHECK(coordinates(own, 3) == coordinates(m, 3));
  const std::vector<std::string> tensor = {"tensor"};
  CHECK(group_of(own, tensor, 3) == std::vector<int64_t>{2, 3, 4});
  CHECK_THROWS_AS(coordinates(own, 0), Error);
}

TEST_CASE("invalid submeshes are errors that name the reason") {
  const auto message = [](Mesh m) -> std::string {
    try {
      verify(m);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(message({{{"data", 2}, {"pipe", 2}}, {}, {{2}, {2}}}) ==
        "[mesh] identical submeshes are a mesh without submeshes");
  CHECK(message({{{"data", 3}, {"pipe", 2}}, {}, {{2}, {1}}}) ==
        "[mesh] an axis has the largest of its submeshes' sizes, but \"data\" has 3, not 2");
  CHECK(message({{{"data", 2}, {"pipe", 3}}, {}, {{2}, {1}}}) ==
        "[mesh] a mesh needs one submesh for each of the 3 positions of the last axis, but got 2");
  CHECK(message({{{"data", 2}, {"pipe", 2}}, {0, 1}, {{2}, {1}}}) ==
        "[mesh] axes multiply to 3 ranks, but got 2");
  CHECK_THROWS_WITH(parse_axes("data=0|data=0"),
                    "[mesh] the size of an axis is at least 1, but \"data\" has 0");
  CHECK_THROWS_WITH(
      parse_axes("data=2,data=3|data=1"),
      "[mesh] a submesh names each axis once, and not the outer axis pipe, but got \"data\"");
}

TEST_CASE("the report of submeshes has their groups and ranks") {
  const Mesh m = parse_axes("data=2|tensor=1");
  CHECK(to_text(m, {}) ==
        "mesh data=2,tensor=1 | data=1,tensor=1, 3 ranks\n"
        "data            [0,1] [2]\n"
        "tensor          [0] [1] [2]\n"
        "pipe positions  [0,1] [2]\n");
  CHECK(to_json(m, {}) ==
        "{ \"format\": \"perigee.mesh/1\", \"axes\": [[\"data\",2],[\"tensor\",1],[\"pipe\",2]], "
        "\"submeshes\": [[2,1],[1,1]], \"groups\": {\n"
        "  \"data\": [[0,1],[2]],\n  \"tensor\": [[0],[1],[2]]\n} }\n");
}
