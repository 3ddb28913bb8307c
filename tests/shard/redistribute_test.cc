#include "shard/redistribute.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"

namespace perigee::shard {
namespace {

const mesh::Mesh kMesh{{{"tensor", 2}, {"data", 4}}, {}};

// Returns the steps as text: "all_gather(tensor) slice(data)".
std::string steps(const std::string& from, const std::string& to,
                  std::vector<int64_t> shape = {16, 8}, const mesh::Mesh& mesh = kMesh) {
  Redistributor redistributor(mesh);
  const char* names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                         "slice",      "zigzag",         "restore",    "part"};
  std::string text;
  for (const auto& step : redistributor
                              .path({graph::DType::float32, std::move(shape)},
                                    mesh::parse_placements(from), mesh::parse_placements(to))
                              .steps) {
    std::string axes;
    for (int a : step.axes) axes += (axes.empty() ? "" : ",") + mesh.axes[a].name;
    text += std::string(text.empty() ? "" : " ") + names[static_cast<int>(step.kind)] + "(" + axes +
            ")";
  }
  return text;
}

TEST_CASE("one collective redistributes from each placement to each other one") {
  CHECK(steps("R,R", "R,R") == "");
  CHECK(steps("P,R", "R,R") == "all_reduce(tensor)");
  CHECK(steps("P,R", "S0,R") == "reduce_scatter(tensor)");
  CHECK(steps("S0,R", "R,R") == "all_gather(tensor)");
  CHECK(steps("S0,R", "S1,R") == "all_to_all(tensor)");
  CHECK(steps("R,R", "S1,R") == "slice(tensor)");
  CHECK(steps("R,R", "P,R") == "part(tensor)");
}

TEST_CASE("forbidden steps are avoided, and without another path the cost is infinite") {
  const graph::TensorType type{graph::DType::float32, {16, 8}};
  const auto cost = [&](const std::string& from, const std::string& to,
                        const std::vector<std::string>& forbidden, const mesh::Mesh& mesh = kMesh) {
    Redistributor redistributor(mesh, "", forbidden);
    return redistributor.path(type, mesh::parse_placements(from), mesh::parse_placements(to)).cost;
  };
  CHECK(std::isfinite(cost("S0,R", "R,R", {"all_to_all"})));
  CHECK(std::isinf(cost("S0,R", "R,R", {"all_gather"})));
  CHECK(std::isinf(cost("S0,R", "S1,R", {"all_gather", "all_to_all"})));
  // The alternative is gather and slice, at a higher cost.
  CHECK(std::isfinite(cost("S0,R", "S1,R", {"all_to_all"})));
  CHECK(cost("S0,R", "S1,R", {"all_to_all"}) > cost("S0,R", "S1,R", {}));
  CHECK(cost("P,R", "R,R", {"all_gather", "all_to_all"}) == cost("P,R", "R,R", {}));
  // An axis of one rank has no transfer.
  CHECK(std::isfinite(cost("S0,R", "R,R", {"all_gather"}, {{{"tensor", 1}, {"data", 4}}, {}})));
}

TEST_CASE("axes that change in the same way share one collective") {
  CHECK(steps("P,P", "R,R") == "all_reduce(tensor,data)");
  CHECK(steps("S0,S0", "R,R") == "all_gather(tensor,data)");
  CHECK(steps("P,P", "S0,S0") == "reduce_scatter(tensor,data)");
  CHECK(steps("P,R", "R,S0") == "slice(data) all_reduce(tensor)");
}

TEST_CASE("uneven shards over several axes are redistributed axis by axis") {
  CHECK(steps("S0,S0", "R,R", {7, 8}) == "all_gather(tensor) all_gather(data)");
}

TEST_CASE("the outer axis of a dim cannot change under the inner one") {
  CHECK(steps("S0,S0", "R,S0") == "all_gather(tensor)");
  // data is outermost: the other axes must be gathered and sliced.
  CHECK(steps("S0,S0", "S0,R") == "all_gather(tensor,data) slice(tensor)");
}

TEST_CASE("a dim is sliced for another axis before it is reduced") {
  CHECK(steps("P,R", "S0,S0") == "slice(data) reduce_scatter(tensor)");
}

TEST_CASE("runs and zigzags that do not divide a dim are refused") {
  const auto why = [](const std::string& from, const std::string& to) -> std::string {
    try {
      return steps(from, to, {10, 8});
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::string rule = "[shard] a dim must be cut into equal runs that make it up";
  using Catch::StartsWith;
  // 10 elements have no 4 runs of equal length, two runs of 5 do not divide over four ranks, and 10
  // elements have no zigzag shards of two ranks.
  for (const std::string wrong : {"S0/4,R", "S0/5,S0", "S0z,R", "R,S0z"}) {
    INFO(wrong);
    CHECK_THAT(why(wrong, "R,R"), StartsWith(rule));
    CHECK_THAT(why("R,R", wrong), StartsWith(rule));
    CHECK_THAT(why("S0,R", wrong), StartsWith(rule));
    CHECK_THAT(why(wrong, "S1,R"), StartsWith(rule));
    CHECK(why(wrong, wrong) == "");
  }
  CHECK_THAT(why("S0/4,R", "R,R"), Catch::EndsWith("but [10, 8] goes from S0/4,R to R,R"));
  CHECK(why("S0/2,R", "R,R") == "all_gather(tensor)");
}

TEST_CASE("a dim sharded in runs is redistributed as the dim of its view") {
  CHECK(steps("S0/4,R", "R,R") == "all_gather(tensor)");
  CHECK(steps("P,R", "S0/4,R") == "reduce_scatter(tensor)");
  CHECK(steps("R,R", "S0/4,R") == "slice(tensor)");
  CHECK(steps("S0/4,R", "S1,R") == "all_to_all(tensor)");
  CHECK(steps("S0/4,S0", "R,S0") == "all_gather(tensor)");
  CHECK(steps("R,S0", "S0/4,S0") == "slice(tensor)");
  // No view has both runs of 4 and runs of 6 as dims.
  CHECK(steps("S0/4,R", "S0/6,R", {24, 8}) == "all_gather(tensor) slice(tensor)");
}

TEST_CASE("zigzag shards are redistributed as plain shards of a reordered dim") {
  CHECK(steps("S0z,R", "R,R") == "all_gather(tensor) restore()");
  CHECK(steps("P,R", "S0z,R") == "zigzag() reduce_scatter(tensor)");
  CHECK(steps("R,R", "S0z,R") == "zigzag() slice(tensor)");
  CHECK(steps("S0z,R", "S1,R") == "all_to_all(tensor) restore()");
  CHECK(steps("S0,S0z", "S1,S0z") == "all_to_all(tensor)");
  CHECK(steps("S0/8z,S0", "R,S0", {32, 8}) == "all_gather(tensor) restore()");
  CHECK(steps("S0z,R", "S0,R") == "all_gather(tensor) restore() slice(tensor)");
}

TEST_CASE("a maximum is not mixed with a sum") {
  CHECK(steps("P(max),R", "P,R") == "all_reduce(tensor) part(tensor)");
}

}  // namespace
}  // namespace perigee::shard
