// Sets of mesh axes.
#include "mesh/axis_set.h"

#include <catch2/catch.hpp>

#include "mesh/mesh.h"

namespace perigee::mesh {

TEST_CASE("axis sets with the same names are equal in any order") {
  CHECK(AxisSet("data,context") == AxisSet("context,data"));
  CHECK((AxisSet("data,context") <=> AxisSet("context,data")) == std::strong_ordering::equal);
  CHECK(AxisSet("data") != AxisSet("data,context"));
  CHECK(AxisSet("data") != AxisSet("datum"));
}

TEST_CASE("an axis set's text reads back in the same order") {
  CHECK(AxisSet("").empty());
  CHECK(AxisSet().text().empty());
  for (const char* text : {"data", "data,context", "context,data,tensor2"}) {
    CHECK(AxisSet::parse(text).text() == text);
  }
  CHECK_THROWS_WITH(AxisSet::parse("data,"),
                    "[mesh] axes are written like data,context, but got \"data,\"");
  CHECK_THROWS_WITH(AxisSet::parse(",data"),
                    "[mesh] axes are written like data,context, but got \",data\"");
  CHECK_THROWS_WITH(AxisSet::parse("data,data"),
                    "[mesh] a group names an axis once, but got \"data\" twice");
}

TEST_CASE("an axis set has whole names only") {
  AxisSet axes = "tensor2,data";
  CHECK(axes.contains("data"));
  CHECK_FALSE(axes.contains("tensor"));
  axes.insert("data");
  axes.insert("tensor");
  CHECK(axes.text() == "tensor2,data,tensor");
  axes.erase("data");
  CHECK(axes.text() == "tensor2,tensor");
  CHECK(axes.without("tensor").text() == "tensor2");
  CHECK(axes.intersection("tensor,pipe").text() == "tensor");
}

TEST_CASE("joined axis sets are in the mesh's order") {
  const Mesh mesh = parse_axes("tensor=2,pipe=1,data=2");
  CHECK(AxisSet("data").joined("tensor,data", mesh).text() == "tensor,data");
  CHECK(AxisSet("elsewhere").joined("", mesh).empty());
}

}  // namespace perigee::mesh
