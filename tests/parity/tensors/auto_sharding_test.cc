// Shardings, storage, recomputation and offload under a memory limit: the compiled programs stay
// within it, the chosen plan trains as one device does, and costs no more than any manual choice.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <cmath>
#include <regex>

#include "base/error.h"
#include "shard/solver/assignment.h"
#include "shard/solver/block_planner.h"
#include "shard/solver/repeated_blocks.h"
#include "solve/solve.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

const std::string kDeep =
    "kind = 'gpt'\nlayers = 4\nwidth = 32\nheads = 4\nhidden = 128\nvocab = 64\n";

// The largest peak of the ranks' compiled programs, as methods may request it.
double peak_of(const graph::Graph& graph, const plan::Plan& plan) {
  compile::NoTraces traces;
  const auto peaks = compile::predict_memory(graph, plan, {}, traces).peak_bytes;
  return static_cast<double>(*std::max_element(peaks.begin(), peaks.end()));
}

methods::PlanRequest request_of(const Given& given, int64_t rows) {
  methods::PlanRequest request;
  request.graph = &given.graph;
  request.global_batch = rows;
  request.peak_bytes = peak_of;
  return request;
}

plan::Plan made(const Given& given, const std::string& axes, const std::string& fields) {
  auto request = request_of(given, kRows);
  const auto strategy = methods::from_json(
      methods::Json::parse(R"([["parallel_mode", )" + axes + R"(], ["auto_sharding", )" + fields +
                           "]]"),
      "a test");
  for (const auto& axis : methods::Json::parse(axes)) request.world *= axis[1].get<int64_t>();
  return methods::make_plan(strategy, request);
}

std::string limit(double bytes) {
  return R"({"memory": )" + std::to_string(static_cast<int64_t>(bytes)) + "}";
}

TEST_CASE("compiled programs stay within a memory limit by sharding and recomputation") {
  torch::manual_seed(5);
  const auto given = built_in(kDeep, kRows);
  const std::string axes = R"([["tensor", 2], ["data", 2]])";
  const auto free = made(given, axes, limit(1e12));
  const double most = peak_of(given.graph, free);
  CHECK(free.recompute.regions.empty());
  CHECK(free.offload.activations.empty());
  bool stores = false, runs_again = false;
  for (const double share : {0.9, 0.8, 0.7, 0.65}) {
    INFO(share);
    const auto plan = made(given, axes, limit(share * most));
    plan::verify(plan, given.graph);
    CHECK(peak_of(given.graph, plan) <= share * most);
    stores = stores || !plan.units.empty();
    runs_again = runs_again || !plan.recompute.regions.empty();
  }
  CHECK(stores);
  CHECK(runs_again);
}

TEST_CASE("shardings under a memory limit train as one device does") {
  size_t combination = 0;
  for (const auto& keys : {kDeep, std::string(kLlama), std::string(kMoe)}) {
    torch::manual_seed(5);
    const auto given = built_in(keys, kRows);
    const auto one_device = plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kRows);
    const auto one = train(given, one_device)[0];
    for (const char* axes : {R"([["tensor", 2], ["data", 2]])", R"([["data", 2], ["tensor", 3]])",
                             R"([["tensor", 2], ["sequence", 2], ["data", 1]])"}) {
      const double most = peak_of(given.graph, made(given, axes, limit(1e12)));
      // Each model and each mesh has each share once.
      const double share = std::array{1.0, 0.7, 0.55}[(combination + combination / 3) % 3];
      ++combination;
      INFO(keys << axes << share);
      std::optional<plan::Plan> plan;
      try {
        plan = made(given, axes, limit(share * most));
      } catch (const Error& error) {
        CHECK(error.status() == Status::infeasible);
        continue;
      }
      const auto ranks = train(given, *plan);
      CHECK(compare(one, ranks) == "");
      CHECK(compare_memory(given, *plan, ranks) == "");
    }
  }
}

// The groups of nodes: those in no block, and those of each block.
std::vector<int> groups_of(const graph::Graph& graph) {
  std::map<std::string, int> known{{"", 0}};
  std::vector<int> groups;
  for (const auto& node : graph.nodes) {
    const std::string block(shard::block_of(node.scope));
    groups.push_back(known.try_emplace(block, static_cast<int>(known.size())).first->second);
  }
  return groups;
}

TEST_CASE("the costs of blocks add up to the solver's total") {
  for (const auto& keys : {kDeep, std::string(kLlama), std::string(kMoe)}) {
    const auto given = built_in(keys, kRows);
    for (const std::string mesh : {"tensor=2,data=2", "tensor=3,sequence=2"}) {
      INFO(keys << mesh);
      plan::Plan plan;
      plan.graph_hash = graph::structural_hash(given.graph);
      plan.mesh = mesh::parse_axes(mesh);
      plan.microbatches = 2;
      const std::vector<int> axes = mesh.find("sequence") == std::string::npos
                                        ? std::vector<int>{0}
                                        : std::vector<int>{0, 1};
      shard::Assignment assignment(given.graph, plan, axes, {.replicated_factor = 0});
      const auto result = solve::solve(assignment.problem());
      const auto times = assignment.times({result.choice}, groups_of(given.graph));
      double sum = 0, forward = 0;
      for (const auto& group : times.time) sum += group[0];
      for (const auto& group : times.forward) forward += group[0];
      for (const auto& [ends, table] : times.between) sum += table[0];
      CHECK(std::abs(sum - result.time) <= 1e-9 * sum);
      CHECK(forward > 0.2 * sum);
      CHECK(forward < 0.5 * sum);
    }
  }
}

TEST_CASE("a larger memory limit never costs more, and a smaller one never uses more memory") {
  const auto given = built_in(kDeep, kRows);
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(given.graph);
  plan.mesh = mesh::parse_axes("tensor=2,data=2");
  shard::BlockPlanOptions options;
  options.storage_axis = "data";
  options.trains = [](const graph::Input&) { return true; };
  const shard::BlockPlanner fitting(given.graph, plan, {0}, options);
  const auto free = fitting.fit({});
  REQUIRE(free.has_value());
  double cost = free->cost;
  int choices = 0;
  for (double limit = free->memory; limit > fitting.least_memory(); limit *= 0.93) {
    const auto fitted = fitting.fit(limit);
    if (!fitted) break;
    INFO(limit << " of " << free->memory);
    CHECK(fitted->memory <= limit * (1 + 1e-9));
    CHECK(fitted->cost >= cost * (1 - 2e-4));
    CHECK(fitted->bound <= fitted->cost);
    CHECK(fitted->bound >= fitted->cost * (1 - 1e-3));
    cost = fitted->cost;
    ++choices;
  }
  CHECK(choices > 4);
  CHECK(!fitting.fit(0.5 * fitting.least_memory()).has_value());
}

TEST_CASE("auto_sharding beside other methods trains as one device does") {
  struct Row {
    std::string keys, axes, before;
    std::string fields = R"({"memory": "1GB"})";
  };
  const std::string moe =
      "kind = 'moe'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 12\nexperts = 6\n"
      "capacity_per = 'sample'\n";
  const std::vector<Row> rows = {
      {kDeep, R"([["tensor", 2], ["zero", 2], ["data", 2]])", ""},
      {kDeep, R"([["tensor", 2], ["context", 2]])", R"(["context_parallel", {}], )"},
      {kDeep, R"([["tensor", 2], ["sequence", 2], ["data", 1]])", R"(["sequence_parallel", {}], )"},
      {kDeep, R"([["tensor", 2], ["data", 2]])", R"(["checkpoint", ["blocks.*"]], )"},
      {kDeep, R"([["tensor", 2], ["data", 2]])", R"(["fsdp", {}], )"},
      {kDeep, R"([["tensor", 2], ["data", 2]])", R"(["zero1", {}], ["offload", ["blocks.*"]], )"},
      {kDeep, R"([["tensor", 2], ["data", 2]])",
       R"(["gradient_accumulation", {"microbatches": 2}], )"},
      {kDeep, R"([["tensor2", 2], ["tensor", 2], ["data", 1]])",
       R"(["tensor_parallel", {"axis": "tensor"}], )", R"({"axis": "tensor2"})"},
      {moe, R"([["tensor", 2], ["expert", 2]])", R"(["expert_parallel", {}], )"},
  };
  for (const auto& row : rows) {
    torch::manual_seed(5);
    const auto strategy = R"([["parallel_mode", )" + row.axes + "], " + row.before +
                          R"(["auto_sharding", )" + row.fields + "]]";
    INFO(row.keys << strategy);
    const int64_t pieces = row.before.find("microbatches") != std::string::npos ? 2 : 1;
    const auto given = built_in(row.keys, kRows, pieces);
    const auto one_device = plan_of(given,
                                    pieces == 1 ? R"([["parallel_mode", [["data", 1]]]])"
                                                : R"([["parallel_mode", [["data", 1]]],
                                          ["gradient_accumulation", {"microbatches": 2}]])",
                                    kRows);
    auto plan = plan_of(given, strategy, kRows);
    plan::verify(plan, given.graph);
    const auto ranks = train(given, plan);
    CHECK(compare(train(given, one_device)[0], ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
    auto request = request_of(given, kRows);
    for (const auto& axis : methods::Json::parse(row.axes)) request.world *= axis[1].get<int64_t>();
    auto tight = methods::Json::parse(strategy);
    tight.back()[1]["memory"] = static_cast<int64_t>(0.8 * peak_of(given.graph, plan));
    std::optional<plan::Plan> less;
    try {
      less = methods::make_plan(methods::from_json(tight, "a test"), request);
    } catch (const Error& error) {
      CHECK(error.status() == Status::infeasible);
      continue;
    }
    CHECK(compare(train(given, one_device)[0], train(given, *less)) == "");
  }
}

TEST_CASE("the precision is chosen with the shardings, by the devices' speed and the memory") {
  torch::manual_seed(5);
  constexpr int64_t kMany = 64;  // rows; activations dominate the memory
  const auto given = built_in(kDeep, kMany, 1, "float32");
  const auto choose = [&](double low_flops, double memory, const std::string& precision,
                          const std::string& before = "") {
    auto request = request_of(given, kMany);
    request.world = 4;
    request.as_computed = compile::as_computed;
    request.rates = [&](const graph::Graph&, const plan::Plan& plan) {
      return methods::DeviceRates{.flops = plan.precision.dtype ? low_flops : 1e9,
                                  .bytes = 1e9,
                                  .host = 1e8,
                                  .links = {{"tensor", 1e8}, {"data", 1e8}}};
    };
    const auto strategy = methods::Json::parse(
        R"([["parallel_mode", [["tensor", 2], ["data", 2]]], )" + before +
        R"(["auto_sharding", {"choose": ["storage"], )" + precision + R"("memory": )" +
        std::to_string(static_cast<int64_t>(memory)) + "}]]");
    return methods::make_plan(methods::from_json(strategy, "a test"), request);
  };
  const std::string any = R"("precision": ["none", "amp_native", "half"], )";
  const auto quick = choose(1e10, 1e12, any), slow = choose(1e7, 1e12, any);
  CHECK(quick.precision.dtype == graph::DType::bfloat16);
  CHECK_FALSE(slow.precision.dtype);
  // Where float32 does not fit with all activations kept, another precision is chosen, however
  // slow it is.
  const auto most = peak_of(given.graph, slow);
  double share = 0.95;
  const auto fits = [&] {
    try {
      choose(1e7, share * most, R"("precision": ["none"], )");
      return true;
    } catch (const Error& error) {
      CHECK(error.status() == Status::infeasible);
      return false;
    }
  };
  while (fits()) share -= 0.02;
  const auto small = choose(1e7, share * most, any);
  CHECK(small.precision.dtype == graph::DType::bfloat16);
  CHECK(peak_of(given.graph, small) <= share * most);
  CHECK(compare_memory(given, small, train(given, small)) == "");
  // The plan equals that of an explicit method.
  for (const std::string method : {"amp_native", "half"}) {
    auto chosen = choose(1e10, 1e12, R"("precision": [")" + method + R"("], )");
    auto said = choose(1e10, 1e12, "", R"([")" + method + R"(", {"dtype": "bf16"}], )");
    chosen.decisions.clear(), said.decisions.clear();
    CHECK((chosen == said));
  }
  CHECK_THROWS_WITH(choose(1e10, 1e12, any, R"(["half", {"dtype": "bf16"}], )"),
                    Catch::Contains("the plan computes in bfloat16"));
  CHECK_THROWS_WITH(choose(1e10, 1e12, R"("precision": ["haf"], )"),
                    Catch::Contains("did you mean \"half\"?"));
  CHECK_THROWS_WITH(choose(1e10, 1e5, any), Catch::Contains("but the least that was found needs"));
}

TEST_CASE("blocks without parameters and work cost nothing to keep equal") {
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::ReLU(), torch::nn::Flatten(),
                            torch::nn::Linear(16, 4));
  net->to(torch::kDouble);
  const auto given = capture_model({net.ptr(),
                                    {{"x", torch::randn({8, 2, 6}, torch::kDouble)}},
                                    [net](const Batch& batch) mutable {
                                      return Result{net->forward(batch.at("x")).pow(2).mean()};
                                    }});
  auto request = request_of(given, 8);
  request.world = 4;
  const auto plan = methods::make_plan(
      methods::from_json(
          methods::Json::parse(
              R"([["parallel_mode", [["tensor", 2], ["data", 2]]], "auto_sharding"])"),
          "a test"),
      request);
  CHECK(compare(train(given, plan_of(given, R"([["parallel_mode", [["data", 1]]]])", 8))[0],
                train(given, plan)) == "");
}

TEST_CASE("a memory limit that nothing meets is refused with the least possible one, which fits") {
  const auto given = built_in(kDeep, kRows);
  const auto least = [&](int64_t bytes) {
    try {
      made(given, R"([["tensor", 2], ["data", 2]])", limit(bytes));
    } catch (const Error& error) {
      CHECK(error.status() == Status::infeasible);
      std::smatch said;
      const std::string text = error.what();
      INFO(text);
      REQUIRE(std::regex_search(text, said,
                                std::regex("the least that was found needs ([0-9.]+) (KiB|MiB):")));
      return std::stod(said[1]) * (said[2] == "KiB" ? 1 << 10 : 1 << 20);
    }
    FAIL("a plan in " << bytes << " bytes");
    return 0.0;
  };
  const double found = least(10'000);
  CHECK(least(int64_t(0.9 * found)) == found);
  const auto fits = int64_t(1.001 * found);  // the text is rounded
  CHECK(peak_of(given.graph, made(given, R"([["tensor", 2], ["data", 2]])", limit(fits))) <= fits);
}

}  // namespace
}  // namespace perigee::parity
