#include <catch2/catch.hpp>
#include <numeric>

#include "base/text/bytes.h"
#include "methods/method.h"
#include "search/explain/html.h"
#include "simulate/memory_kinds.h"
#include "simulate/op_table.h"
#include "simulate/report.h"
#include "simulate/utilisation.h"
#include "tests/search/support.h"

using namespace perigee;

namespace {

compile::Programs compiled(const graph::Graph& graph, const nlohmann::json& strategy, int64_t world,
                           plan::Plan& plan) {
  methods::PlanRequest request{
      .graph = &graph, .global_batch = 16, .world = world, .world_given = true};
  plan = methods::make_plan(methods::from_json(strategy, "test"), request);
  compile::NoTraces traces;
  return compile::compile_all(graph, plan, {}, traces);
}

double of(const std::vector<simulate::MemoryKind>& kinds, const std::string& name) {
  for (const auto& kind : kinds) {
    if (kind.name == name) return kind.bytes;
  }
  return -1;
}

}  // namespace

TEST_CASE("kinds of memory add up to the peak for any plan") {
  using nlohmann::json;
  const auto mode = [](const char* axis) {
    return json::array({"parallel_mode", json::array({json::array({axis, 4})})});
  };
  const std::vector<json> strategies = {
      json::array({mode("data")}),
      json::array({mode("data"), json::array({"zero1", json::object()})}),
      json::array({mode("data"), json::array({"fsdp", json::object()})}),
      json::array({mode("data"), json::array({"checkpoint", json::array({"blocks.*"})})}),
      json::array({mode("pipe"), json::array({"pipeline_parallel", json::object()}),
                   json::array({"gradient_accumulation", json{{"microbatches", 4}}})})};
  for (const auto& strategy : strategies) {
    CAPTURE(strategy.dump());
    plan::Plan plan;
    const bool pipeline = strategy.dump().find("pipe") != std::string::npos;
    const auto graph = search::chain({.blocks = 6, .batch = pipeline ? 4 : 16});
    const auto programs = compiled(graph, strategy, 4, plan);
    for (const auto& program : programs.programs) {
      const auto kinds = simulate::memory_by_kind(program);
      double sum = 0;
      for (const auto& kind : kinds) {
        CHECK(kind.bytes >= 0);
        sum += kind.bytes;
      }
      CHECK(sum == static_cast<double>(program.peak_bytes));
      CHECK(of(kinds, "saved activations") > 0);
      CHECK(of(kinds, "optimizer state") > 0);
    }
  }
}

TEST_CASE("the memory of parameters, gradients and states equals the model's sizes") {
  plan::Plan plan;
  const auto graph = search::chain({.blocks = 3, .batch = 16, .width = 64});
  const auto programs = compiled(
      graph, nlohmann::json::parse(R"([["parallel_mode", [["data", 1]]]])"), 1, plan);
  const auto kinds = simulate::memory_by_kind(programs.programs.front());
  const double weights = 4 * 64 * 64 * 4;
  CHECK(of(kinds, "parameters") == weights);
  CHECK(of(kinds, "gradients") == weights);
  CHECK(of(kinds, "optimizer state") == 2 * weights);
  CHECK(of(kinds, "buffers") == 0);
}

TEST_CASE("costs by op sum all runs of a step") {
  plan::Plan plan;
  const auto graph = search::chain({.blocks = 3, .batch = 4});
  const auto programs = compiled(
      graph,
      nlohmann::json::parse(
          R"([["parallel_mode", [["data", 1]]], ["gradient_accumulation", {"microbatches": 4}]])"),
      1, plan);
  cost::DeviceSpec device{.name = "d", .count = 1, .memory = 1e9, .bandwidth = 1e10};
  device.peak = {{graph::DType::float32, 1e12}};
  device.vector = 1e11;
  const cost::Cluster cluster{"test", {device}, {}};
  cost::NoMeasurements none;
  simulate::OpCosts costs(cluster, none);
  const auto rows = simulate::op_table(programs.programs.front(), plan.mesh, costs);
  const auto mm = std::find_if(rows.begin(), rows.end(),
                               [](const auto& row) { return row.name == "aten::mm"; });
  REQUIRE(mm != rows.end());
  // Each microbatch has 4 forward products and 4 + 3 backward products.
  CHECK(mm->runs == 4 * 11);
  CHECK(mm->flops == 4 * 11 * 2.0 * 4 * 64 * 64);
  CHECK(mm->measured == 0);
  CHECK(std::is_sorted(rows.begin(), rows.end(),
                       [](const auto& a, const auto& b) { return a.seconds > b.seconds; }));
  const auto used = simulate::utilisation(graph, plan, cluster, 1e-3);
  CHECK(used.flops == mm->flops);
  CHECK(used.mfu == Approx(mm->flops / 1e12 / 1e-3));
}

TEST_CASE("text in pages is escaped, and numbers have units of their magnitude") {
  CHECK(search::html::escape("<a href=\"x\">'&\n") == "&lt;a href=&quot;x&quot;&gt;&#39;&amp; ");
  CHECK(search::html::to_html({{"a"}, {true}, {{"<td>"}}}) ==
        "<table>\n<thead><tr><th class=\"n\">a</th></tr>\n</thead>\n<tbody>\n"
        "<tr><td class=\"n\">&lt;td&gt;</td></tr>\n</tbody>\n</table>\n");
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(512) == "512 B");
  CHECK(bytes_text(999.6) == "0.976 KiB");
  CHECK(bytes_text(7.68e4 * (1 << 30)) == "75 TiB");
  CHECK(bytes_text(68.5 * (1 << 30)) == "68.5 GiB");
  CHECK(simulate::count_text(1.75e11) == "175 G");
  CHECK(simulate::seconds_text(1234.5) == "1234 s");
}
