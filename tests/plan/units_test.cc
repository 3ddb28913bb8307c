#include "plan/units.h"

#include <rapidcheck.h>

#include <catch2/catch.hpp>

#include "base/error.h"

namespace perigee::plan {
namespace {

graph::Graph parameters(const std::vector<std::vector<int64_t>>& shapes) {
  graph::Graph g;
  for (size_t i = 0; i < shapes.size(); ++i) {
    g.add_input(graph::Input::Kind::parameter, "p" + std::to_string(i),
                {graph::DType::float32, shapes[i]});
  }
  return g;
}

TEST_CASE("a range of a tensor is boxes: whole rows between two partial rows") {
  using mesh::Range;
  CHECK(boxes({3, 4}, 2, 9) ==
        std::vector<std::vector<Range>>{{{0, 1}, {2, 2}}, {{1, 1}, {0, 4}}, {{2, 1}, {0, 1}}});
  CHECK(boxes({3, 4}, 5, 7) == std::vector<std::vector<Range>>{{{1, 1}, {1, 2}}});
  CHECK(boxes({3, 4}, 0, 12) == std::vector<std::vector<Range>>{{{0, 3}, {0, 4}}});
  CHECK(boxes({}, 0, 1) == std::vector<std::vector<Range>>{{}});
  CHECK(boxes({5}, 2, 2).empty());
}

TEST_CASE("a plan that forbids replicated parameters is refused if it has one") {
  const auto g = parameters({{4, 4}, {4}});
  Plan plan;
  plan.graph_hash = graph::structural_hash(g);
  plan.mesh.axes = {{"data", 2}};
  plan.forbidden = {"replicated_parameters"};
  CHECK(parse(print(plan)) == plan);
  CHECK_THROWS_WITH(verify(plan, g),
                    Catch::Contains("no parameter may be replicated on several ranks") &&
                        Catch::Contains("but p0 is: use fsdp"));
  plan.placements["p0"] = mesh::parse_placements("S0");
  CHECK_THROWS_WITH(verify(plan, g), Catch::Contains("but p1 is"));
  plan.units = {{.name = "u", .parameters = {"p1"}, .axes = "data", .level = 2}};
  CHECK_THROWS_WITH(verify(plan, g), Catch::Contains("but p1 is"));  // replicated
  plan.units[0].level = 3;
  CHECK_NOTHROW(verify(plan, g));
  plan.units.clear();
  plan.mesh.axes = {{"data", 1}};
  CHECK_NOTHROW(verify(plan, g));
  plan.forbidden = {"all_gathers"};
  CHECK_THROWS_WITH(verify(plan, g), Catch::Contains("did you mean \"all_gather\"?"));
}

TEST_CASE("a pipeline has a start for each part but the first") {
  const auto g = parameters({{4, 4}, {4}});
  Plan plan;
  plan.graph_hash = graph::structural_hash(g);
  plan.mesh.axes = {{"pipe", 2}};
  plan.pipeline = {.axis = "pipe"};
  CHECK_THROWS_WITH(
      verify(plan, g),
      Catch::Contains("a pipeline of 2 stages with 1 chunks has 1 starts, but got 0"));
  for (const auto dtype : {graph::DType::int8, graph::DType::float8_e4m3}) {
    plan.pipeline.dtype = dtype;
    CHECK_THROWS_WITH(verify(plan, g),
                      Catch::Contains("pipeline.dtype is float16, bfloat16, float32 or float64"));
  }
  plan.pipeline.dtype.reset();
  plan.pipeline.starts = {"fc1", "fc2"};
  CHECK_THROWS_WITH(verify(plan, g), Catch::Contains("has 1 starts, but got 2"));
}

TEST_CASE("the ranks' pieces of a parameter cover each element once, in order") {
  CHECK(rc::check("pieces partition", [] {
    std::vector<std::vector<int64_t>> shapes;
    for (int p = *rc::gen::inRange(1, 4); p > 0; --p) {
      shapes.push_back(*rc::gen::resize(
          3, rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(1, 5))));
    }
    const auto g = parameters(shapes);
    Plan plan;
    const auto ranks = *rc::gen::inRange<int64_t>(2, 9);
    plan.mesh.axes = {{"data", ranks}};
    plan.units = {{.name = "u", .parameters = {}, .axes = "data"}};
    for (const auto& input : g.inputs) plan.units[0].parameters.push_back(input.name);
    std::map<std::pair<std::string, std::vector<int64_t>>, int> seen;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto all = flats(plan, g, rank);
      RC_ASSERT(all.size() == 1u);
      const auto& flat = all[0];
      int64_t held = 0;
      for (const auto& member : flat.members) {
        for (const auto& piece : pieces_of(flat, member)) {
          std::vector<int64_t> at;
          for (const auto& range : piece.ranges) at.push_back(range.begin);
          for (int64_t k = 0;; ++k) {
            // Position k of the box in row-major order lies at offset + k of the flat tensor.
            int64_t index = 0;
            for (size_t d = 0; d < at.size(); ++d) index = index * member.shape[d] + at[d];
            RC_ASSERT(member.offset + index == piece.offset + k);
            ++seen[{member.name, at}];
            ++held;
            int64_t d = static_cast<int64_t>(at.size()) - 1;
            while (d >= 0 && ++at[d] == piece.ranges[d].begin + piece.ranges[d].length) {
              at[d] = piece.ranges[d].begin;
              --d;
            }
            if (d < 0) break;
          }
        }
      }
      RC_ASSERT(held == flat.held());
    }
    int64_t total = 0;
    for (const auto& input : g.inputs) total += g.type(input.value).numel();
    RC_ASSERT(static_cast<int64_t>(seen.size()) == total);
    for (const auto& [at, times] : seen) RC_ASSERT(times == 1);
  }));
}

TEST_CASE("a unit splits where its parameters differ in type or in sharding") {
  auto g = parameters({{4, 4}, {4}, {6}, {2, 2}});
  g.values[g.inputs[2].value.index].type.dtype = graph::DType::float64;
  Plan plan;
  plan.graph_hash = graph::structural_hash(g);
  plan.mesh.axes = {{"tensor", 2}, {"data", 2}};
  plan.placements["p0"] = mesh::parse_placements("S1,R");
  plan.units = {{.name = "u", .parameters = {"p0", "p1", "p2", "p3"}, .axes = "data"}};
  verify(plan, g);
  const auto all = flats(plan, g, 3);
  REQUIRE(all.size() == 3);
  CHECK(all[0].name == "u");
  CHECK(all[0].shard_axes == "tensor");
  CHECK(all[0].elements == 8);
  CHECK(all[0].begin == 4);
  // The second half of the rows of p0's right half.
  CHECK(pieces_of(all[0], all[0].members[0])[0].ranges == std::vector<mesh::Range>{{2, 2}, {2, 2}});
  CHECK(all[1].name == "u.1");
  CHECK(all[1].members[1].name == "p3");
  CHECK(all[2].elements == 6);
  plan.mesh.axes[1].size = 1;
  CHECK(flats(plan, g, 1).empty());
}

TEST_CASE("units that overlap, or shard a sharded parameter, are refused") {
  const auto g = parameters({{4, 4}, {4}});
  Plan plan;
  plan.graph_hash = graph::structural_hash(g);
  plan.mesh.axes = {{"data", 2}};
  const auto why = [&](std::vector<Unit> units) {
    plan.units = std::move(units);
    try {
      verify(plan, g);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(why({{.name = "u", .parameters = {"p0", "p1"}, .axes = "data"}}) == "");
  CHECK(why({{.name = "u", .parameters = {"p0"}, .axes = "data"},
             {.name = "v", .parameters = {"p0"}, .axes = "data"}}) ==
        "[plan] a parameter is in at most one unit, but p0 is in u and v");
  for (const int level : {0, 4}) {
    CHECK(why({{.name = "u", .parameters = {"p0"}, .axes = "data", .level = level}})
              .starts_with("[plan] a unit has level 1, 2 or 3, but u has "));
  }
  CHECK(why({{.name = "u", .parameters = {"p9"}, .axes = "data"}})
            .starts_with("[plan] a unit holds parameters of the graph, but u holds \"p9\""));
  CHECK(why({{.name = "u", .parameters = {"p0"}, .axes = "date"}})
            .starts_with("[plan] a unit is cut over axes of the mesh, but u over \"date\", did you "
                         "mean \"data\""));
  plan.placements["p0"] = mesh::parse_placements("S0");
  CHECK(why({{.name = "u", .parameters = {"p0"}, .axes = "data"}}) ==
        "[plan] a unit shards parameters that are replicated on its axes, but p0 of u is placed as "
        "S0 on axis data");
}

}  // namespace
}  // namespace perigee::plan
