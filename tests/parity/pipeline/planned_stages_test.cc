// Stages whose ops the exact solver shards, each within its submesh and its memory, train as one
// device does.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "compile/compile.h"
#include "plan/pipeline.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/submeshes.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

constexpr int64_t kPlannedRows = 16, kPlannedMicrobatches = 4;

const std::string kPlannedDeep =
    "kind = 'gpt'\nlayers = 4\nwidth = 32\nheads = 4\nhidden = 128\nvocab = 64\n";

const std::string kPlannedUntied =
    "kind = 'llama'\nlayers = 4\nwidth = 24\nheads = 6\nkv_heads = 6\nhidden = 40\nvocab = 11\n";

double peak_of(const graph::Graph& graph, const plan::Plan& plan) {
  compile::NoTraces traces;
  const auto peaks = compile::predict_memory(graph, plan, {}, traces).peak_bytes;
  return static_cast<double>(std::ranges::max(peaks));
}

// Makes the plan of a strategy; with `memory` above 0 the programs of each rank stay within it.
// `flops`: a second, where a link moves 1e9 bytes in it; 0: the solver's own rates.
plan::Plan made(const Given& given, const std::string& strategy, int64_t world, double memory = 0,
                double flops = 0) {
  auto data = methods::Json::parse(strategy);
  auto& own = data.back()[1];
  own["memory"] = static_cast<int64_t>(memory > 0 ? memory : 1e12);
  methods::PlanRequest request;
  request.graph = &given.graph;
  request.global_batch = kPlannedRows;
  request.world = world;
  request.samples = kPlannedRows / kPlannedMicrobatches;
  request.peak_bytes = peak_of;
  if (flops > 0) {
    request.rates = [flops](const graph::Graph&, const plan::Plan& plan) {
      methods::DeviceRates rates{.flops = flops, .bytes = 1e10, .host = 1e8, .links = {}};
      for (const auto& axis : plan.mesh.axes) rates.links[axis.name] = 1e9;
      return rates;
    };
  }
  return methods::make_plan(methods::from_json(data, "a test"), request);
}

std::string on_mesh(const std::string& axes, const std::string& pipeline,
                    const std::string& before = "") {
  return fmt::format(R"([["parallel_mode", {}], ["pipeline_parallel", {}],
                         ["gradient_accumulation", {{"microbatches": {}}}], {}["auto_sharding", {{}}]])",
                     axes, pipeline, kPlannedMicrobatches, before);
}

// The number of values of each stage's ops that the plan places on the axis.
std::vector<int> placed_by_stage(const Given& given, const plan::Plan& plan,
                                 const std::string& axis) {
  const auto names = graph::value_names(given.graph);
  const auto parts = plan::parts_of(given.graph, plan.pipeline);
  const auto users = plan::first_users(given.graph, plan.pipeline);
  std::vector<int> placed(plan.pipeline.starts.size() + 1);
  const int a = plan.mesh.find(axis);
  for (size_t v = 0; v < names.size(); ++v) {
    const auto pin = plan.placements.find(names[v]);
    const auto producer = given.graph.values[v].producer;
    const int part = producer < 0 ? users[v] : parts[producer];
    if (pin != plan.placements.end() && part >= 0) placed[part] += pin->second[a].is_shard();
  }
  return placed;
}

TEST_CASE("stages that the solver shards train as one device does") {
  struct Row {
    std::string keys, axes, pipeline, before;
    int64_t world;
  };
  const std::vector<Row> rows = {
      {kPlannedDeep, R"([["tensor", 2], ["pipe", 2]])", "{}", "", 4},
      {kPlannedDeep, R"([["tensor", 2], ["data", 2], ["pipe", 2]])", R"({"schedule": "zb1p"})", "",
       8},
      {kPlannedDeep, R"([["pipe", 2], ["tensor", 2]])", R"({"schedule": "interleaved"})", "", 4},
      {kPlannedDeep, R"([["tensor", 2], ["pipe", 2]])", R"({"starts": ["blocks.1.mlp"]})", "", 4},
      {kPlannedDeep, R"([["tensor", 2], ["data", 2], ["pipe", 2]])", "{}", R"(["fsdp", {}], )", 8},
      {kLlama, R"([["tensor", 3], ["pipe", 2]])", "{}", "", 6},
      {kMoe, R"([["tensor", 2], ["pipe", 2]])", "{}", "", 4},
  };
  for (const auto& row : rows) {
    torch::manual_seed(5);
    INFO(row.keys << row.axes << row.pipeline << row.before);
    const auto given = built_in(row.keys, kPlannedRows, kPlannedMicrobatches);
    const auto one = train_on_one_device(given, kPlannedMicrobatches, kPlannedRows);
    const auto plan = made(given, on_mesh(row.axes, row.pipeline, row.before), row.world);
    plan::verify(plan, given.graph);
    CHECK(plan::parse(plan::print(plan)) == plan);
    for (const int placed : placed_by_stage(given, plan, "tensor")) CHECK(placed > 0);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("each stage has shardings, storage and recomputation of its own within a memory limit") {
  torch::manual_seed(5);
  const auto given = built_in(kPlannedDeep, kPlannedRows, kPlannedMicrobatches);
  const auto one = train_on_one_device(given, kPlannedMicrobatches, kPlannedRows);
  const auto strategy = on_mesh(R"([["tensor", 2], ["data", 2], ["pipe", 2]])", "{}");
  const auto free = made(given, strategy, 8);
  CHECK(free.recompute.regions.empty());
  const auto most = peak_of(given.graph, free);
  int unequal = 0, fitting = 0;
  for (const double share : {0.95, 0.9, 0.85, 0.8}) {
    INFO(share);
    plan::Plan plan;
    try {
      plan = made(given, strategy, 8, share * most);
    } catch (const Error& error) {
      CHECK(error.status() == Status::infeasible);
      continue;
    }
    ++fitting;
    plan::verify(plan, given.graph);
    CHECK(peak_of(given.graph, plan) <= share * most);
    // Blocks 0 and 1 are on stage 0, with two microbatches in flight, 2 and 3 on stage 1 with one.
    const auto differs = [&](const std::string& parameter) {
      const auto of = [&](int block) {
        const auto at = plan.placements.find(fmt::format("blocks.{}.{}", block, parameter));
        return at == plan.placements.end() ? mesh::Placements(3) : at->second;
      };
      return of(0) != of(2) || of(1) != of(3);
    };
    std::set<std::string> recomputed;
    for (const auto& region : plan.recompute.regions) recomputed.insert(region.front());
    const bool own = recomputed.contains("blocks.0") != recomputed.contains("blocks.2") ||
                     recomputed.contains("blocks.1") != recomputed.contains("blocks.3");
    const bool placed = std::ranges::any_of(given.graph.inputs, [&](const auto& input) {
      return input.name.starts_with("blocks.0.") && differs(input.name.substr(9));
    });
    unequal += own || placed;
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
  CHECK(fitting > 1);
  CHECK(unequal > 0);
  CHECK_THROWS_WITH(made(given, strategy, 8, 20'000),
                    Catch::Contains("but the least that was found needs"));
}

TEST_CASE("stages of unequal submeshes have shardings of their own") {
  torch::manual_seed(5);
  const auto given = built_in(kPlannedUntied, kPlannedRows, kPlannedMicrobatches);
  const auto one = train_on_one_device(given, kPlannedMicrobatches, kPlannedRows);
  struct Row {
    Submeshes submeshes;
    std::vector<bool> splits;  // the stages whose ops the solver shards over tensor
    int64_t world;
  };
  const std::vector<Row> rows = {
      {{{{"tensor", 2}}, {{"data", 2}}}, {true, false}, 4},
      {{{{"data", 2}}, {{"tensor", 2}}, {}}, {false, true, false}, 5},
      {{{{"tensor", 2}, {"data", 2}}, {{"tensor", 2}}}, {true, false}, 6},
      {{{{"tensor", 3}}, {{"tensor", 2}}}, {true, true}, 5},
  };
  for (const auto& row : rows) {
    INFO(text_of(row.submeshes));
    const auto strategy = staged(row.submeshes, "{}", R"(["auto_sharding", {}])",
                                 kPlannedMicrobatches);
    const auto plan = made(given, strategy, row.world);
    plan::verify(plan, given.graph);
    CHECK(plan::parse(plan::print(plan)) == plan);
    const auto placed = placed_by_stage(given, plan, "tensor");
    for (size_t stage = 0; stage < placed.size(); ++stage) {
      CHECK((placed[stage] > 0) == row.splits[stage]);
    }
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
    const auto most = peak_of(given.graph, plan);
    const auto less = made(given, strategy, row.world, 0.95 * most);
    CHECK(peak_of(given.graph, less) <= 0.95 * most);
    CHECK(compare(one, train(given, less)) == "");
  }
}

// Returns the dim of each of a block's parameters that is split over tensor, by the name within the
// block; -1: it is replicated.
std::map<std::string, int> dims_of_block(const Given& given, const plan::Plan& plan, int block) {
  const auto scope = fmt::format("blocks.{}.", block);
  const int tensor = plan.mesh.find("tensor");
  std::map<std::string, int> dims;
  for (const auto& input : given.graph.inputs) {
    if (!input.name.starts_with(scope)) continue;
    const auto at = plan.placements.find(input.name);
    const bool split = at != plan.placements.end() && at->second[tensor].is_shard();
    dims[input.name.substr(scope.size())] = split ? static_cast<int>(at->second[tensor].dim) : -1;
  }
  return dims;
}

TEST_CASE("the same ops of two stages are split over tensor in unequal ways") {
  torch::manual_seed(5);
  const auto given = built_in(kPlannedUntied, kPlannedRows, kPlannedMicrobatches);
  const auto one = train_on_one_device(given, kPlannedMicrobatches, kPlannedRows);
  struct Row {
    Submeshes submeshes;
    int64_t world;
    double flops;
    int split;      // stages that split weights; the others split the batch over tensor
    bool opposite;  // whether a weight is split over one dim on one stage, another on the other
  };
  const std::vector<Row> rows = {
      {{{{"tensor", 2}, {"data", 2}}, {{"tensor", 2}}}, 6, 3e10, 1, false},
      {{{{"tensor", 2}, {"data", 2}}, {{"tensor", 3}, {"data", 2}}}, 10, 1e9, 2, false},
      {{{{"tensor", 4}, {"data", 2}}, {{"tensor", 3}, {"data", 2}}}, 14, 1e9, 2, true},
  };
  for (const auto& row : rows) {
    INFO(text_of(row.submeshes));
    const auto strategy = staged(row.submeshes, "{}", R"(["auto_sharding", {}])",
                                 kPlannedMicrobatches);
    const auto plan = made(given, strategy, row.world, 0, row.flops);
    plan::verify(plan, given.graph);
    CHECK(plan::parse(plan::print(plan)) == plan);
    for (const int placed : placed_by_stage(given, plan, "tensor")) CHECK(placed > 0);
    // Blocks 0 and 1 are on the first stage, 2 and 3 on the second.
    const auto first = dims_of_block(given, plan, 1), second = dims_of_block(given, plan, 3);
    CHECK(first != second);
    int split = 0, opposite = 0;
    for (const auto* stage : {&first, &second}) {
      split += std::ranges::any_of(*stage, [](const auto& weight) { return weight.second >= 0; });
    }
    for (const auto& [weight, dim] : first) {
      const int other = second.at(weight);
      opposite += dim >= 0 && other >= 0 && dim != other;
    }
    CHECK(split == row.split);
    CHECK((opposite > 0) == row.opposite);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("a placement that a stage's ranks do not agree on is detected") {
  torch::manual_seed(5);
  const auto given = built_in(kPlannedDeep, kPlannedRows, kPlannedMicrobatches);
  const auto one = train_on_one_device(given, kPlannedMicrobatches, kPlannedRows);
  const auto plan = made(given, on_mesh(R"([["tensor", 2], ["pipe", 2]])", "{}"), 4);
  const auto without = [&](int64_t stage) {
    return compare(one, train(given, plan, [&](compile::Program& program) {
                     if (program.rank / 2 != stage) return;
                     for (auto& section : program.sections) {
                       for (auto& i : section.instructions) {
                         if (i.op != "comm::all_reduce" || axis_of(i) != "tensor") continue;
                         for (auto& [name, arg] : i.args) {
                           if (name == "op") arg = std::string("avg");
                         }
                       }
                     }
                   }));
  };
  CHECK(without(2) == "");
  CHECK(without(0) != "");
  CHECK(without(1) != "");
}

TEST_CASE("an axis has a pipeline's stages or splits ops") {
  const auto given = built_in(kPlannedDeep, kPlannedRows, kPlannedMicrobatches);
  auto data = methods::Json::parse(on_mesh(R"([["tensor", 2], ["pipe", 2]])", "{}"));
  data.back()[1]["axis"] = {"tensor", "pipe"};
  CHECK_THROWS_WITH(made(given, data.dump(), 4), Catch::Contains("but pipe has the stages"));
}

}  // namespace
}  // namespace perigee::parity
