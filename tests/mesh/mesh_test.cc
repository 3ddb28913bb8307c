#include "mesh/mesh.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "mesh/report.h"
#include "tests/mesh/support.h"

using namespace perigee;
using namespace perigee::mesh;

TEST_CASE("the first axis listed varies fastest over ranks") {
  const Mesh m = parse_axes("tensor=2,pipe=2,data=2");
  CHECK(m.size() == 8);
  CHECK(m.size_of("pipe") == 2);
  CHECK(m.size_of("expert") == 1);
  CHECK(of(m, "tensor") == Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CHECK(of(m, "pipe") == Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}});
  CHECK(of(m, "data") == Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(coordinates(m, 6) == std::vector<int64_t>{0, 1, 1});
}

TEST_CASE("a group over several axes lists its ranks in mesh order, however they are named") {
  const Mesh m = parse_axes("tensor=2,pipe=2,data=2");
  CHECK(of(m, "tensor,data") == Groups{{0, 1, 4, 5}, {2, 3, 6, 7}});
  CHECK(of(m, "data,tensor") == of(m, "tensor,data"));
  CHECK(of(m, "data,pipe,tensor") == Groups{{0, 1, 2, 3, 4, 5, 6, 7}});
}

TEST_CASE("an order assigns ranks to positions") {
  Mesh m = parse_axes("tensor=2,pipe=2,data=2");
  m.order = parse_order("0,4,1,5,2,6,3,7");
  verify(m);
  CHECK(of(m, "tensor") == Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(of(m, "data") == Groups{{0, 2}, {4, 6}, {1, 3}, {5, 7}});
  CHECK(coordinates(m, 5) == std::vector<int64_t>{1, 1, 0});
  m = parse_axes("data=2");
  m.order = {7, 3};
  verify(m);
  CHECK(of(m, "data") == Groups{{7, 3}});
  CHECK_THROWS_WITH(coordinates(m, 0),
                    "[mesh] the mesh uses 2 ranks, but rank 0 is not one of them");
}

TEST_CASE("axes of size 1 are kept") {
  const Mesh m = parse_axes("tensor=1,data=3");
  CHECK(of(m, "tensor") == Groups{{0}, {1}, {2}});
  CHECK(of(m, "data,tensor") == Groups{{0, 1, 2}});
}

TEST_CASE("groups partition the ranks and group_of finds each one's") {
  for (const auto* text : {"a=2,b=3,c=4", "a=1,b=5,c=2", "a=3,b=1,c=3"}) {
    const Mesh m = parse_axes(text);
    for (const auto* axes : {"a", "b", "c", "a,b", "c,a", "b,c", "c,b,a"}) {
      std::set<int64_t> seen;
      for (const auto& group : of(m, axes)) {
        for (auto rank : group) {
          CHECK(seen.insert(rank).second);
          CHECK(group_of(m, AxisSet::parse(axes), rank) == group);
        }
      }
      CHECK(static_cast<int64_t>(seen.size()) == m.size());
    }
  }
}

TEST_CASE("an invalid mesh is an error that names the reason") {
  const auto with_order = [](std::vector<int64_t> order) {
    return Mesh{{{"a", 2}, {"b", 4}}, std::move(order)};
  };
  CHECK_THROWS_WITH(verify(with_order({0, 1, 2, 3, 4, 5})),
                    "[mesh] axes multiply to 8 ranks, but got 6");
  CHECK_THROWS_WITH(verify(with_order({0, 1, 2, 3, 4, 5, 6, -7})),
                    "[mesh] ranks are at least 0, but the order holds -7");
  CHECK_THROWS_WITH(verify(with_order({0, 1, 2, 3, 4, 5, 6, 6})),
                    "[mesh] a mesh uses a rank once, but the order holds 6 twice");
  CHECK_NOTHROW(verify_ranks(with_order({7, 6, 5, 4, 3, 2, 1, 0}), 8));
  CHECK_THROWS_WITH(verify_ranks(with_order({0, 1, 2, 3, 4, 5, 6, 8}), 8),
                    "[mesh] the order of the mesh holds rank 8, but there are ranks 0 to 7 only");
  CHECK_THROWS_WITH(parse_axes(""), "[mesh] axes are written like tensor=2,data=4, but got \"\"");
  CHECK_THROWS_WITH(parse_axes("a=2,b"),
                    "[mesh] axes are written like tensor=2,data=4, but got \"b\"");
  CHECK_THROWS_WITH(parse_axes("a=two"),
                    "[mesh] axes are written like tensor=2,data=4, but got \"a=two\"");
  CHECK_THROWS_WITH(parse_axes("a=0"), "[mesh] the size of an axis is at least 1, but \"a\" has 0");
  CHECK_THROWS_WITH(parse_axes("=2"),
                    "[mesh] an axis has a name of letters, digits and _, but got \"\"");
  CHECK_THROWS_WITH(parse_axes("a=2,a=3"),
                    "[mesh] axes have distinct names, but \"a\" occurs twice");
  CHECK_THROWS_WITH(parse_axes("a=4294967296,b=4294967296"),
                    "[mesh] a mesh has at most 1048576 ranks, but the sizes of its axes multiply "
                    "to more");
  CHECK_NOTHROW(parse_axes("a=1024,b=1024"));
  CHECK_THROWS_WITH(parse_axes("a=1024,b=1025"),
                    Catch::Contains("a mesh has at most 1048576 ranks"));
  CHECK_THROWS_WITH(parse_order("0,x"),
                    "[mesh] an order of ranks is written like 0,4,1,5, but got \"x\"");
  const Mesh m = parse_axes("tensor=2,data=2");
  CHECK_THROWS_WITH(of(m, "tensr"),
                    "[mesh] a group is over axes of the mesh (tensor, data), but got \"tensr\", "
                    "did you mean \"tensor\"?");
  CHECK_THROWS_WITH(of(m, "data,data"),
                    "[mesh] a group names an axis once, but got \"data\" twice");
  CHECK_THROWS_WITH(AxisSet::parse("data,"),
                    "[mesh] axes are written like data,context, but got \"data,\"");
}

TEST_CASE("the report lists every axis and the groups asked for") {
  const Mesh m = parse_axes("tensor=2,data=2");
  const std::vector<std::string> extra = {"data,tensor", "data"};
  CHECK(to_text(m, extra) == R"(mesh tensor=2 data=2, 4 ranks
tensor       [0,1] [2,3]
data         [0,2] [1,3]
data,tensor  [0,1,2,3]
)");
  CHECK(to_json(m, extra) ==
        R"({ "format": "perigee.mesh/1", "axes": [["tensor",2],["data",2]], "groups": {
  "tensor": [[0,1],[2,3]],
  "data": [[0,2],[1,3]],
  "data,tensor": [[0,1,2,3]]
} }
)");
  CHECK(nlohmann::json::parse(to_json(m, extra))["groups"].size() == 3);
}
