// Automatic stages: submeshes, layers, the table of stages and its best sequence.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "base/error.h"
#include "graph/flops.h"
#include "methods/parallel/layer_cuts.h"
#include "methods/parallel/planned_stages.h"
#include "search/stages/make_stage_table.h"
#include "search/stages/plan_stages.h"
#include "shard/solver/block_planner.h"
#include "shard/solver/submesh_planner.h"
#include "tests/search/stages/job.h"
#include "tests/support/temporary_folder.h"

namespace perigee::search {
namespace {

using nlohmann::json;

std::vector<std::pair<int64_t, int64_t>> shapes_of(const SubmeshSpace& space) {
  std::vector<std::pair<int64_t, int64_t>> shapes;
  for (const auto& view : submesh_choices(space)) {
    const std::pair shape(view.hosts, view.devices);
    if (std::ranges::count(shapes, shape) == 0) shapes.push_back(shape);
  }
  return shapes;
}

TEST_CASE("submesh choices are parts of a host and whole hosts, as in Alpa") {
  using Shapes = std::vector<std::pair<int64_t, int64_t>>;
  const auto of = [](int64_t hosts, int64_t devices, const std::string& physical) {
    return shapes_of({.hosts = hosts, .devices = devices, .physical = physical, .samples = 15360});
  };
  const Shapes host = {{1, 1}, {1, 2}, {1, 4}, {1, 8}};
  const auto with = [&](Shapes more) {
    auto all = host;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  CHECK(of(1, 8, "all") == host);
  CHECK(of(5, 8, "all") == with({{2, 8}, {3, 8}, {4, 8}, {5, 8}}));
  CHECK(of(9, 8, "power_of_two") == with({{2, 8}, {4, 8}, {8, 8}}));
  CHECK(of(9, 8, "small_power_of_two") == with({{2, 8}, {4, 8}}));
  CHECK(of(1, 6, "all") == Shapes{{1, 1}, {1, 2}, {1, 4}, {1, 6}});
  SubmeshSpace manual{.hosts = 2, .devices = 4, .physical = "manual", .samples = 8};
  manual.manual = {{1, 3}, {2, 4}};
  CHECK(shapes_of(manual) == Shapes{{1, 3}, {2, 4}});
  manual.manual = {{2, 3}};
  CHECK_THROWS_WITH(submesh_choices(manual), Catch::Contains("but got 2 x 3"));
  CHECK_THROWS_WITH(of(1, 8, "powers_of_two"), Catch::Contains("did you mean \"power_of_two\"?"));
}

TEST_CASE("views of a submesh are data x tensor, and data divides a microbatch's samples") {
  const auto of = [](const std::string& logical, int64_t samples) {
    std::vector<std::pair<int64_t, int64_t>> views;
    const SubmeshSpace space{.hosts = 2,
                             .devices = 4,
                             .physical = "manual",
                             .manual = {{2, 4}},
                             .logical = logical,
                             .samples = samples};
    for (const auto& view : submesh_choices(space)) views.emplace_back(view.data, view.tensor);
    return views;
  };
  using Views = std::vector<std::pair<int64_t, int64_t>>;
  CHECK(of("same_as_physical", 8) == Views{{2, 4}});
  CHECK(of("data_parallel_only", 8) == Views{{8, 1}});
  CHECK(of("model_parallel_only", 8) == Views{{1, 8}});
  CHECK(of("single_node_model_parallel", 8) == Views{{8, 1}, {4, 2}, {2, 4}});
  CHECK(of("all", 8) == Views{{8, 1}, {4, 2}, {2, 4}, {1, 8}});
  CHECK(of("all", 2) == Views{{2, 4}, {1, 8}});
  CHECK(of("all", 12) == Views{{4, 2}, {2, 4}, {1, 8}});
  CHECK_THROWS_WITH(of("data_parallel_only", 4), Catch::Contains("divides the 4 samples"));
}

// Calls visit(starts) with every way to cut `count` things into `parts`.
void each_cut(int count, int parts, std::vector<int>& starts,
              const std::function<void(const std::vector<int>&)>& visit) {
  if (static_cast<int>(starts.size()) == parts - 1) return visit(starts);
  for (int next = starts.empty() ? 1 : starts.back() + 1; next < count; ++next) {
    starts.push_back(next);
    each_cut(count, parts, starts, visit);
    starts.pop_back();
  }
}

TEST_CASE("clustering minimises the bytes between layers within a tolerance of their work") {
  for (const auto& shape : {Chain{.blocks = 7, .gelus = 2}, Chain{.blocks = 6, .head = true},
                            Chain{.blocks = 5, .batch = 3, .width = 16, .gelus = 0}}) {
    const auto graph = chain(shape);
    // A chain has a module for each product: its cuts are those of its modules.
    std::vector<std::string> modules;
    for (const auto& node : graph.nodes) {
      if (node.phase != graph::Phase::forward || node.scope.empty()) continue;
      if (std::ranges::count(modules, node.scope) == 0) modules.push_back(node.scope);
    }
    const auto of_starts = [&](const std::vector<std::string>& starts) {
      plan::Pipeline pipeline;
      pipeline.axis = "pipe";
      pipeline.starts = starts;
      const auto layer_of = methods::parts_of_nodes(graph, pipeline);
      std::vector<double> work(starts.size() + 1);
      for (size_t n = 0; n < graph.nodes.size(); ++n) {
        work[layer_of[n]] += graph::flops_of(graph, graph.nodes[n]);
      }
      const auto layers = static_cast<int>(work.size());
      const auto bytes = methods::bytes_between_layers(graph, layer_of, layers);
      double most = 0, all = 0;
      for (int k = 0; k < layers; ++k) {
        most = std::max(most, bytes.in[k][k]);
        all += bytes.in[k][k];
      }
      return std::tuple(most, all, *std::ranges::max_element(work));
    };
    double total = 0;
    for (const auto& node : graph.nodes) total += graph::flops_of(graph, node);
    for (const int layers : {2, 3, 4}) {
      for (const double tolerance : {0.1, 0.5, 1.0}) {
        INFO(shape.blocks << " blocks, " << layers << " layers, " << tolerance);
        const double limit = (1 + tolerance) * total / layers;
        std::pair<double, double> least{std::numeric_limits<double>::infinity(), 0};
        std::vector<int> starts;
        each_cut(static_cast<int>(modules.size()), layers, starts, [&](const auto& cut) {
          std::vector<std::string> scopes;
          for (const int at : cut) scopes.push_back(modules[at]);
          const auto [most, all, work] = of_starts(scopes);
          if (work <= limit * (1 + 1e-9)) least = std::min(least, {most, all});
        });
        const methods::LayerCuts cuts{.layers = layers, .tolerance = tolerance};
        if (std::isinf(least.first)) {
          CHECK_THROWS_WITH(methods::cluster_layers(graph, cuts),
                            Catch::Contains("raise the tolerance"));
          continue;
        }
        const auto found = methods::cluster_layers(graph, cuts);
        REQUIRE(std::ssize(found) == layers - 1);
        const auto [most, all, work] = of_starts(found);
        CHECK(most == least.first);
        CHECK(all == least.second);
        CHECK(work <= limit * (1 + 1e-9));
      }
    }
    CHECK_THROWS_WITH(methods::cluster_layers(graph, {.layers = 40}),
                      Catch::Contains("ask for fewer layers"));
  }
}

TEST_CASE("clustering minimises the bytes of all cuts before it evens out the work") {
  // Six products in a row; only the value between the third and the fourth is narrow.
  const std::vector<int64_t> widths = {8, 8, 8, 4, 8, 8, 8};
  graph::Graph g;
  g.scopes = {{"", "Chain"}};
  const auto type = [](int64_t rows, int64_t columns) {
    return graph::TensorType{graph::DType::float32, {rows, columns}};
  };
  auto x = g.add_input(graph::Input::Kind::data, "x", type(1, widths[0]));
  for (size_t k = 0; k + 1 < widths.size(); ++k) {
    const auto name = "m" + std::to_string(k);
    g.scopes.push_back({name, "Linear"});
    const auto weight = g.add_input(graph::Input::Kind::parameter, name + ".weight",
                                    type(widths[k], widths[k + 1]));
    x = g.add_node("aten::mm", {{"self", x}, {"mat2", weight}}, {type(1, widths[k + 1])}, name)[0];
  }
  // Each two cuts have one of 32 bytes. With the narrow one the layers' work is 64, 96 and 160; the
  // most even cut, of 64, 128 and 128, has two of 32 bytes.
  const auto found = methods::cluster_layers(g, {.layers = 3, .tolerance = 1.0});
  CHECK(std::ranges::count(found, "m3") == 1);
}

TEST_CASE("the table has each range of layers on each view, with its cost and memory") {
  const Job job;
  const auto table = make_stage_table(job.request(), job.options());
  CHECK(table.layer_count() == 3);
  CHECK(table.rows.size() == 6 * table.views.size());
  const auto row_of = [&](int first, int last, int64_t data, int64_t tensor) {
    const auto found = std::ranges::find_if(table.rows, [&](const StageRow& row) {
      const auto& view = table.views[row.view];
      return row.first == first && row.last == last && view.data == data && view.tensor == tensor;
    });
    REQUIRE(found != table.rows.end());
    return *found;
  };
  constexpr double kActivation = 4.0 * 8 * 64;  // bytes between two blocks
  for (const auto& row : table.rows) {
    CHECK(row.cost > 0);
    CHECK(row.peak > row.temporary);
    CHECK(row.temporary > 0);
    CHECK(row.available == 1e9);
    CHECK(row.in == (row.first == 0 ? 0 : kActivation));
    CHECK(row.out == (row.last == 2 ? 0 : kActivation));
    // Each rank of the batch receives its samples' activations and gradients over the pipeline.
    const auto& view = table.views[row.view];
    const double received = view.ranks() < 4 ? 2 * row.in / static_cast<double>(view.data) : 0;
    CHECK(row.receive == Approx(received / 2e8));
  }
  // More layers cost more, and two ranks over the batch compute less each than one.
  CHECK(row_of(0, 1, 1, 1).cost > row_of(0, 0, 1, 1).cost);
  CHECK(row_of(0, 2, 1, 1).cost > row_of(0, 1, 1, 1).cost);
  CHECK(row_of(0, 2, 2, 1).cost < row_of(0, 2, 1, 1).cost);
  CHECK(row_of(0, 2, 1, 2).cost < row_of(0, 2, 1, 1).cost);
  CHECK(row_of(0, 2, 1, 2).peak < row_of(0, 2, 1, 1).peak);
}

// A stage on its submesh, as the exact solver takes it.
struct StageAlone {
  plan::Plan plan;
  shard::BlockPlanOptions planned;
  double link = 0;  // bytes a second of the axis that is planned
};

StageAlone stage_alone(const StageTable& table, const SubmeshView& view) {
  StageAlone stage;
  stage.plan.graph_hash = table.graph_hash;
  stage.plan.mesh.axes = {{"tensor", view.tensor}, {"data", view.data}};
  stage.plan.microbatches = table.microbatches;
  stage.link = view.tensor > 1 ? 2e8 : 1e9;
  auto& planned = stage.planned;
  planned.microbatches = 4;
  planned.storage_axis = view.data > 1 ? "data" : "";
  planned.storage_byte = stage.link / 2e8;
  planned.offload = false;
  planned.assignment.prices = {.per_flop = stage.link / 1e9, .per_byte = stage.link / 1e9};
  planned.trains = [](const graph::Input& input) { return input.trainable; };
  return stage;
}

TEST_CASE("a row's cost is that of the exact solver on the stage's submesh alone") {
  const Job job;
  auto options = job.options();
  options.choose = {"storage", "recompute"};
  options.layers = {};
  const auto table = make_stage_table(job.request(), options);
  CHECK(table.rows.size() == table.views.size());
  for (const auto& row : table.rows) {
    const auto& view = table.views[row.view];
    auto [plan, planned, link] = stage_alone(table, view);
    planned.host_byte = link / 1e8;
    const shard::BlockPlanner planner(job.graph, plan, {0}, planned);
    CHECK(row.cost == Approx(planner.fit(job.memory)->cost / link));
  }
}

TEST_CASE("a row has as many successors as its microbatches in flight have memory for") {
  Job job;
  job.graph = chain({.blocks = 6, .batch = 8, .width = 64, .gelus = 4});
  job.memory = 2.2e5;
  auto options = job.options();
  options.layers = {"blocks.1", "blocks.2", "blocks.4"};
  options.choose = {"recompute"};
  const auto table = make_stage_table(job.request(), options);
  plan::Pipeline pipeline;
  pipeline.axis = "pipe";
  pipeline.starts = options.layers;
  int limited = 0;
  for (const auto& row : table.rows) {
    const auto& view = table.views[row.view];
    auto [plan, planned, link] = stage_alone(table, view);
    planned.store = false;
    planned.stages = methods::parts_of_nodes(job.graph, pipeline);
    const shard::SubmeshPlanner planner(job.graph, plan, {0}, planned);
    const auto fitted = [&](int64_t in_flight) {
      return planner.fit({row.first, row.last, static_cast<double>(in_flight)}, job.memory, {});
    };
    const auto most = std::min<int64_t>(row.max_successors + 1, table.microbatches);
    const auto at_most = fitted(most);
    REQUIRE(at_most);
    CHECK(at_most->cost / link == Approx(row.cost));
    if (row.max_successors >= std::min<int64_t>(4 - row.last, 4) - 1) continue;
    ++limited;
    const auto beyond = fitted(most + 1);
    if (beyond) CHECK(beyond->cost > at_most->cost);
  }
  CHECK(limited > 0);
}

TEST_CASE("a strategy has the starts of its rows, and ranks of a stage within a host") {
  StageTable table{.devices = 8, .microbatches = 4, .layers = {"b.1", "b.2", "b.3"}};
  table.views = {{1, 2, 2, 1}, {1, 4, 1, 4}, {2, 4, 2, 4}};
  table.rows = {{.first = 0, .last = 0, .view = 0},
                {.first = 1, .last = 2, .view = 1},
                {.first = 3, .last = 3, .view = 0},
                {.first = 0, .last = 3, .view = 2}};
  const auto strategy = strategy_of(table, {.rows = {0, 1, 2}}, "gpipe", 4);
  const auto& mesh = strategy[0][1];
  CHECK(mesh["submeshes"] ==
        json::parse(R"([[["tensor", 1], ["data", 2]], [["tensor", 4], ["data", 1]],
                                            [["tensor", 1], ["data", 2]]])"));
  CHECK(mesh["order"] == json({4, 5, 0, 1, 2, 3, 6, 7}));
  CHECK(strategy[1][1] == json({{"starts", {"b.1", "b.3"}}, {"schedule", "gpipe"}}));
  StageTable uneven{.devices = 8, .microbatches = 4, .layers = {"b.1", "b.2", "b.3"}};
  uneven.views = {{1, 1, 1, 1}, {1, 3, 1, 3}, {1, 4, 1, 4}};
  uneven.rows = {{.first = 0, .last = 0, .view = 0},
                 {.first = 1, .last = 1, .view = 1},
                 {.first = 2, .last = 2, .view = 0},
                 {.first = 3, .last = 3, .view = 1}};
  const auto shared = strategy_of(uneven, {.rows = {0, 1, 2, 3}}, "", 4);
  CHECK(shared[0][1]["order"] == json({3, 0, 1, 2, 7, 4, 5, 6}));
  // No submesh spans two hosts of 3 devices, although none has all devices of a host.
  StageTable odd{.devices = 6, .microbatches = 4, .layers = {"b.1", "b.2", "b.3"}};
  odd.views = {{1, 1, 1, 1}, {1, 2, 1, 2}};
  odd.rows = {{.first = 0, .last = 0, .view = 1},
              {.first = 1, .last = 1, .view = 1},
              {.first = 2, .last = 2, .view = 0},
              {.first = 3, .last = 3, .view = 0}};
  const auto within = strategy_of(odd, {.rows = {0, 1, 2, 3}}, "", 3);
  CHECK(within[0][1]["order"] == json({0, 1, 3, 4, 2, 5}));
  const auto whole = strategy_of(table, {.rows = {3}}, "", 4);
  CHECK(whole[0] == json::parse(R"(["parallel_mode", [["tensor", 4], ["data", 2]]])"));
  CHECK(whole[1][0] == "gradient_accumulation");
}

TEST_CASE("given stages have their layers and equal submeshes, whose views are chosen") {
  const Job job;
  const auto request = stages_request(job);
  const json given = {{"layers", {"blocks.1", "blocks.2", "blocks.3"}},
                      {"stage_layers", {3, 1}},
                      {"microbatches", 4},
                      {"choose", json::array()}};
  const auto result = plan_stages(given, request);
  CHECK(result["layers"] == json{"blocks.3"});
  CHECK(result["submesh_choices"] == json::parse("[[1, 2]]"));
  CHECK(result["submeshes"].size() == 2);  // data 2 or tensor 2
  CHECK(result["rows"].size() == 4);
  for (const auto& row : result["rows"]) CHECK(row["first"] == row["last"]);
  for (const auto& judged : result["judged"]) {
    CHECK(judged["stages"].size() == 2);
    CHECK_FALSE(judged.contains("with"));
  }
  CHECK(result["judged"].size() >= 2);
  // A microbatch of one sample leaves only the view that splits ops.
  auto narrow = given;
  narrow["microbatches"] = 32;
  const auto split = plan_stages(narrow, request);
  REQUIRE(split["submeshes"].size() == 1);
  CHECK(split["submeshes"][0]["tensor"] == 2);
  const auto with = [&](const char* option, const json& value) {
    auto options = given;
    options[option] = value;
    return plan_stages(options, request);
  };
  CHECK_THROWS_WITH(with("stage_layers", {1, 2}),
                    Catch::Contains("with the sum 4 of layers, but got [1, 2]"));
  CHECK_THROWS_WITH(with("stage_layers", {4, 0}), Catch::Contains("numbers above 0"));
  CHECK_THROWS_WITH(with("stage_layers", {1, 1, 2}),
                    Catch::Contains("3 stages must have equal parts of a host or whole hosts"));
  auto two_hosts = request;
  two_hosts.hosts = 2;
  two_hosts.devices_per_host = 3;
  auto three = given;
  three["stage_layers"] = {2, 1, 1};
  CHECK_THROWS_WITH(plan_stages(three, two_hosts),
                    Catch::Contains("3 stages must have equal parts of a host or whole hosts"));
  CHECK_THROWS_WITH(with("submeshes", "all"), Catch::Contains("leave one of them out"));
}

// Returns the least time of all sequences of rows.
double least_time(const StageTable& table, int first, int64_t devices, int64_t successors,
                  double sum, double longest) {
  if (first == table.layer_count()) {
    const bool whole = devices == 0 && successors == 0;
    return whole ? sum + static_cast<double>(table.microbatches - 1) * longest
                 : std::numeric_limits<double>::infinity();
  }
  double least = std::numeric_limits<double>::infinity();
  for (const auto& row : table.rows) {
    const auto ranks = table.views[row.view].ranks();
    if (row.first != first || ranks > devices || successors == 0) continue;
    if (row.max_successors < successors - 1) continue;
    const double time = row.cost + row.receive;
    least = std::min(least, least_time(table, row.last + 1, devices - ranks, successors - 1,
                                       sum + time, std::max(longest, time)));
  }
  return least;
}

TEST_CASE("the best sequence is the best of all sequences of rows, within memory") {
  Job job;
  job.graph = chain({.blocks = 6, .batch = 8, .width = 64, .gelus = 4});
  std::vector<size_t> sizes;
  for (const double memory : {1e9, 3e5, 2.4e5, 1.9e5}) {
    INFO(memory);
    job.memory = memory;
    auto options = job.options();
    options.layers = {"blocks.1", "blocks.2", "blocks.4"};
    options.choose = {"recompute"};
    StageTable table;
    try {
      table = make_stage_table(job.request(), options);
    } catch (const Error& error) {
      CHECK(error.status() == Status::infeasible);
      continue;
    }
    for (const auto& row : table.rows) CHECK(row.peak <= memory * (1 + 1e-9));
    double least = std::numeric_limits<double>::infinity();
    for (int64_t stages = 1; stages <= 4; ++stages) {
      least = std::min(least, least_time(table, 0, 4, stages, 0, 0));
    }
    const auto best = best_sequence(table);
    REQUIRE(best.has_value() == std::isfinite(least));
    if (!best) continue;
    CHECK(best->seconds == Approx(least));
    CHECK(best->lower_bound == Approx(least));
    sizes.push_back(table.rows.size());
    for (int view = 0; view < std::ssize(table.views); ++view) {
      const auto uniform = best_sequence(table, view);
      if (!uniform) continue;
      CHECK(uniform->seconds >= best->seconds * (1 - 1e-9));
      for (const int row : uniform->rows) CHECK(table.rows[row].view == view);
    }
  }
  CHECK(sizes.size() > 1);
}

TEST_CASE("a table of stages is saved and read back") {
  const Job job;
  const auto table = make_stage_table(job.request(), job.options());
  CHECK(parse_table(print(table), "t.json") == table);
  auto broken = json::parse(print(table));
  broken["rows"][2]["last"] = 9;
  CHECK_THROWS_WITH(parse_table(broken.dump(), "t.json"),
                    Catch::Contains("t.json: row 2 must have layers below 3"));
  broken["rows"][2].erase("last");
  CHECK_THROWS_WITH(parse_table(broken.dump(), "t.json"), Catch::Contains("\"last\" is missing"));
  CHECK_THROWS_WITH(parse_table("{}", "t.json"), Catch::Contains("must be a table of stages"));
  CHECK_THROWS_WITH(parse_table(R"({"format": 1})", "t.json"),
                    Catch::Contains("must be a table of stages"));
  const auto refused = [&](const char* path, const json& value) {
    auto other = json::parse(print(table));
    other[json::json_pointer(path)] = value;
    CHECK_THROWS_AS(parse_table(other.dump(), "t.json"), Error);
  };
  refused("/devices", 1e300);
  refused("/microbatches", -1);
  refused("/submeshes/0/hosts", 0);
  refused("/submeshes", 3);
  refused("/rows/0/cost", -1.0);
  refused("/rows/0/max_successors", uint64_t{1} << 63);
  refused("/layers", json::array({1}));
  const auto text = to_text(table);
  CHECK(std::ranges::count(text, '\n') == std::ssize(table.rows) + 1);
}

TEST_CASE("stages are those whose strategy takes the least time, and the file is not replaced") {
  const Job job;
  const test::Folder folder;
  const auto file = folder.at("stages.json");
  int made = 0;
  StagesRequest request{.cluster = "a test",
                        .hosts = 1,
                        .devices_per_host = 4,
                        .global_batch = 32,
                        .request =
                            [&](int64_t samples) {
                              CHECK(samples == 8);
                              ++made;
                              return job.request();
                            },
                        .cost = {}};
  std::vector<json> strategies;
  // The last of the sequences is the fastest when it is simulated.
  request.cost = [&](const json& strategy) {
    strategies.push_back(strategy);
    return methods::PlanCost{.seconds = 100.0 - static_cast<double>(strategies.size())};
  };
  const json options = {
      {"layers", 3}, {"microbatches", 4}, {"file", file}, {"methods", json::array({"zero1"})}};
  const auto found = plan_stages(options, request);
  CHECK(found["judged"].size() == strategies.size());
  CHECK(strategies.size() > 2);
  CHECK(found["strategy"] == strategies.back());
  CHECK(found["stages"] == found["judged"].back()["stages"]);
  CHECK(found["layers"].size() == 2);
  CHECK(found["submesh_choices"] == json({{1, 1}, {1, 2}, {1, 4}}));
  CHECK(found["strategy"].back() == "zero1");
  for (const auto& strategy : strategies) {
    int64_t ranks = 0;
    for (const auto& use : strategy) {
      if (!use.is_array() || use[0] != "parallel_mode") continue;
      if (use[1].is_array()) ranks = use[1][0][1].get<int64_t>() * use[1][1][1].get<int64_t>();
      if (!use[1].is_object()) continue;
      for (const auto& stage : use[1]["submeshes"]) {
        ranks += stage[0][1].get<int64_t>() * stage[1][1].get<int64_t>();
      }
    }
    CHECK(ranks == 4);
  }
  CHECK(plan_stages(options, request)["rows"] == found["rows"]);
  auto other = options;
  other["microbatches"] = 4;
  other["views"] = "data_parallel_only";
  CHECK_THROWS_WITH(plan_stages(other, request),
                    Catch::Contains("was made for another plan (the submeshes)"));
  other = options;
  other["view"] = "all";
  CHECK_THROWS_WITH(plan_stages(other, request), Catch::Contains("did you mean \"views\"?"));
  request.cost = [](const json&) -> methods::PlanCost {
    throw Error(Status::invalid, "x", "no rule");
  };
  CHECK_THROWS_WITH(plan_stages(options, request), Catch::Contains("the last: [x] no rule"));
}

}  // namespace
}  // namespace perigee::search
