#include "plan/diff.h"

#include <catch2/catch.hpp>

namespace perigee::plan {
namespace {

Plan plan_of_blocks(int blocks, const char* placement) {
  Plan plan;
  plan.graph_hash = "0123456789abcdef0123456789abcdef";
  plan.mesh = {{{"tensor", 2}, {"data", 2}}, {}};
  for (int i = 0; i < blocks; ++i) {
    plan.placements["blocks." + std::to_string(i) + ".weight"] = mesh::parse_placements(placement);
  }
  plan.prediction = {.peak_bytes = {5, 7, 6, 6}, .step_seconds = 2};
  plan.decisions = {{"parallel_mode", "4 ranks"}};
  return plan;
}

TEST_CASE("a plan has no difference from itself") {
  const auto plan = plan_of_blocks(3, "S0,R");
  CHECK(difference(plan, plan).empty());
  CHECK(to_text({}, "a", "b") == "a and b are the same plan\n");
}

TEST_CASE("each difference is named, and equal differences of blocks are one line") {
  const auto a = plan_of_blocks(3, "S0,R");
  auto b = plan_of_blocks(3, "S1,R");
  b.mesh.axes[1] = {"pipe", 2};
  b.units = {{"all", {"blocks.0.weight"}, "data", 2, true}};
  b.recompute.regions = {{"blocks.0"}, {"blocks.1", "blocks.2"}};
  b.recompute.keep_in = {{"blocks.0", {}}, {"blocks.1", {"aten::mm"}}};
  b.prediction.peak_bytes = {5, 6, 7, 6};
  b.prediction.step_seconds = 1.5;
  b.decisions.push_back({"zero2", "2 of 3"});
  CHECK(to_text(difference(a, b), "a.json", "b.json") ==
        "from a.json to b.json:\n"
        "  prediction.step_seconds: 2.0 -> 1.5\n"
        "  - mesh.axes.data = 2\n"
        "  + mesh.axes.pipe = 2\n"
        "  placements.blocks.*.weight: \"S0,R\" -> \"S1,R\" (3 times)\n"
        "  + recompute.keep_in.blocks.0.nothing\n"
        "  + recompute.keep_in.blocks.1.aten::mm\n"
        "  + recompute.regions.blocks.0\n"
        "  + recompute.regions.blocks.1 + blocks.2\n"
        "  + units.all.axes = \"data\"\n"
        "  + units.all.level = 2\n"
        "  + units.all.parameters.blocks.0.weight\n"
        "  + units.all.reshard_after_forward\n"
        "  + decisions.zero2: 2 of 3\n");
}

TEST_CASE("plans that differ in an order alone are not the same plan") {
  const auto a = plan_of_blocks(2, "R,R");
  auto b = a;
  std::swap(b.mesh.axes[0], b.mesh.axes[1]);
  CHECK(to_text(difference(a, b), "a", "b") ==
        "from a to b:\n"
        "  mesh.axes: \"tensor,data\" -> \"data,tensor\"\n");
  b = a;
  b.prediction.peak_bytes = {7, 7, 6, 6};
  CHECK(to_text(difference(a, b), "a", "b") ==
        "from a to b:\n"
        "  prediction.peak_bytes: [5,7,6,6] -> [7,7,6,6]\n");
  auto units = a;
  units.units = {{"all", {"blocks.0.weight", "blocks.1.weight"}, "data", 2, true}};
  b = units;
  std::swap(b.units[0].parameters[0], b.units[0].parameters[1]);
  CHECK(to_text(difference(units, b), "a", "b") ==
        "from a to b:\n"
        "  units.0.parameters: [\"blocks.0.weight\",\"blocks.1.weight\"] -> "
        "[\"blocks.1.weight\",\"blocks.0.weight\"]\n");
}

TEST_CASE("units of one name are compared one by one") {
  auto a = plan_of_blocks(2, "R,R");
  a.units = {{"all", {"blocks.0.weight"}, "data", 2, true},
             {"all", {"blocks.1.weight"}, "data", 2, true}};
  auto b = a;
  b.units[0].level = 1;
  b.units[1].level = 3;
  CHECK(to_text(difference(a, b), "a", "b") ==
        "from a to b:\n"
        "  units.all (2).level: 2 -> 3\n"
        "  units.all.level: 2 -> 1\n");
}

TEST_CASE("differences are sorted: step time, memory, mesh, schedule, placements, decisions") {
  const auto a = plan_of_blocks(1, "S0,R");
  auto b = plan_of_blocks(1, "S1,R");
  b.prediction = {.peak_bytes = {5, 8, 6, 6}, .step_seconds = 1, .measured_share = 0.5};
  b.mesh.axes[0].size = 4;
  b.microbatches = 4;
  b.pipeline.axis = "data";
  b.overlap.weights = true;
  b.decisions = {{"a", "reason"}};
  std::vector<std::string> parts;
  for (const auto& one : difference(a, b)) {
    const auto part = one.path.substr(0, one.path.find('.'));
    if (parts.empty() || parts.back() != part) parts.push_back(part);
    if (parts.size() == 1 && one.path == "prediction.peak_bytes") {
      CHECK(one.from == "7");
      CHECK(one.to == "8");
    }
  }
  CHECK(parts == std::vector<std::string>{"prediction", "mesh", "pipeline", "microbatches",
                                          "placements", "overlap", "decisions"});
}

TEST_CASE("differences print as JSON, with null for a missing path") {
  const auto a = plan_of_blocks(1, "S0,R");
  auto b = a;
  b.microbatches = 4;
  b.pipeline.axis = "data";
  const auto text = to_json(difference(a, b));
  CHECK_THAT(text, Catch::Contains("\"format\": \"perigee.difference/1\""));
  CHECK_THAT(text, Catch::Contains("\"from\": 1,\n   \"path\": \"microbatches\",\n   \"to\": 4"));
  CHECK_THAT(text, Catch::Contains("\"from\": null,\n   \"path\": \"pipeline.axis\""));
}

}  // namespace
}  // namespace perigee::plan
