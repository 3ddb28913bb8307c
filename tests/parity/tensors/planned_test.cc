// Planned shardings: the exact solver's result trains as one device does, costs the solver's total,
// and no more than the built-in patterns or any choice of weights by name.
#include <cmath>

#include "base/error.h"
#include "graph/flops.h"
#include "graph/ops.h"
#include "shard/solver/planned_shardings.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

plan::Plan empty_plan(const graph::Graph& graph, const std::string& axes) {
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(graph);
  plan.mesh = mesh::parse_axes(axes);
  plan.batch_axes = "data";
  return plan;
}

// The cost of a rank's local graph in the solver's unit, counted from its nodes.
double cost_of(const graph::Graph& graph, const plan::Plan& plan) {
  const auto local = shard::partition(graph, shard::propagate(graph, plan), plan, 0);
  const shard::WorkPrices prices;
  double cost = 0;
  const auto moved = [&](const std::string& kind, double bytes, double n) {
    if (kind == "all_reduce") return 2 * (n - 1) / n * bytes;
    return kind == "all_gather" ? (n - 1) * bytes : (n - 1) / n * bytes;
  };
  for (const auto& node : local.graph.nodes) {
    if (graph::is_collective(node.op)) {
      double ranks = 1;
      for (const auto& axis : mesh::AxisSet::parse(node.get<std::string>("axis", ""))) {
        ranks *= static_cast<double>(plan.mesh.size_of(axis));
      }
      const auto& type = local.graph.type(node.get<graph::ValueId>("self", {}));
      cost += 1024 + moved(node.op.substr(6), static_cast<double>(type.bytes()), ranks);
      continue;
    }
    cost += prices.per_flop * graph::flops_of(local.graph, node);
    if (graph::is_view(node.op) || node.op == "perigee::reshape") continue;
    double bytes = static_cast<double>(graph::bytes_of(local.graph, node));
    if (node.op == "aten::embedding") {
      bytes -= static_cast<double>(
          local.graph.type(node.get<graph::ValueId>("weight", {})).bytes());
    }
    cost += prices.per_byte * bytes;
  }
  // The number of ranks of the axes with such a placement of a tensor.
  const auto ranks_where = [&](const mesh::Placements& placements, auto lies_so) {
    double ranks = 1;
    for (size_t a = 0; a < placements.size(); ++a) {
      if (lies_so(placements[a])) ranks *= static_cast<double>(plan.mesh.axes[a].size);
    }
    return ranks;
  };
  for (size_t o = 0; o < local.outputs.size(); ++o) {
    if (graph.outputs[o].kind != graph::Output::Kind::gradient) continue;
    const auto bytes = static_cast<double>(local.graph.type(local.graph.outputs[o].value).bytes());
    const double n = ranks_where(local.outputs[o], [](const auto& p) { return p.is_partial(); });
    if (n > 1) cost += 1024 + moved("all_reduce", bytes, n);
  }
  for (size_t i = 0; i < local.inputs.size(); ++i) {
    const auto& type = local.graph.type(local.graph.inputs[i].value);
    if (graph.inputs[i].kind != graph::Input::Kind::parameter || type.shape.size() < 2) continue;
    const double n = ranks_where(local.inputs[i], [](const auto& p) { return p.is_replicate(); });
    if (n > 1) cost += 1.01 * 3 * (1024 + (n - 1) / n * static_cast<double>(type.bytes()));
  }
  return cost;
}

std::string axis_of(int64_t ranks) { return "tensor=" + std::to_string(ranks); }

TEST_CASE("planned shardings cost the solver's total, and no more than the built-in patterns") {
  const std::string wide = "width = 96\nheads = 12\nhidden = 384\nvocab = 384\n";
  for (const auto& keys :
       {"kind = 'gpt'\nlayers = 3\n" + wide, "kind = 'llama'\nlayers = 3\n" + wide,
        std::string("kind = 'mlp'\ninputs = 48\nwidth = 96\nlayers = 4\n"
                    "outputs = 24\n")}) {
    const auto given = built_in(keys, 4, 1, "float32", 12);
    for (int64_t ranks : {2, 3, 4}) {
      INFO(keys << ranks);
      auto known = empty_plan(given.graph, axis_of(ranks)), planned = known;
      const auto named = plan_of(given,
                                 R"([["parallel_mode", [["tensor", )" + std::to_string(ranks) +
                                     R"(], ["data", 1]]], ["tensor_parallel", {}]])",
                                 4);
      for (const auto& [name, placements] : named.placements) {
        known.placements[name] = {placements[0]};
      }
      const auto found = shard::place_planned(planned, given.graph, {});
      const double cost = cost_of(given.graph, planned);
      INFO(found.cost << " by the solver, counted " << cost);
      CHECK(found.bound >= found.cost * (1 - 1e-9));
      CHECK(std::abs(cost - found.cost) < 0.05 * cost);
      CHECK(cost <= cost_of(given.graph, known));
      CHECK(!found.split.empty());
    }
  }
}

TEST_CASE("no choice of the weights' placements costs less than the planned one") {
  for (const char* model : {"regression", "experts", "images"}) {
    torch::manual_seed(5);
    const auto given = capture_model(models().at(model)(12));
    for (int64_t ranks : {2, 3}) {
      INFO(model << " " << ranks);
      auto planned = empty_plan(given.graph, axis_of(ranks));
      const auto found = shard::place_planned(planned, given.graph, {});
      const double cost = cost_of(given.graph, planned);
      std::vector<const graph::Input*> weights;
      for (const auto& input : given.graph.inputs) {
        if (input.kind != graph::Input::Kind::parameter) continue;
        if (given.graph.type(input.value).shape.size() > 1) weights.push_back(&input);
      }
      double least = INFINITY;
      int count = 0;
      std::function<void(plan::Plan, size_t)> walk = [&](plan::Plan plan, size_t k) {
        if (k == weights.size()) {
          ++count;
          least = std::min(least, cost_of(given.graph, plan));
          return;
        }
        walk(plan, k + 1);
        const auto& shape = given.graph.type(weights[k]->value).shape;
        for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
          if (shape[d] < ranks) continue;
          plan.placements[weights[k]->name] = {mesh::Placement::shard(d)};
          walk(plan, k + 1);
        }
      };
      walk(empty_plan(given.graph, axis_of(ranks)), 0);
      INFO(found.cost << " by the solver, counted " << cost << ", of " << count << " " << least);
      CHECK(count > 10);
      CHECK(cost <= least * 1.0001);
    }
  }
}

// The cost of a plan for which these lists of axes are planned, one after the other.
double planned_cost(const graph::Graph& graph, const std::string& mesh,
                    const std::vector<std::vector<std::string>>& turns) {
  auto plan = empty_plan(graph, mesh);
  for (const auto& axes : turns) shard::place_planned(plan, graph, {.axes = axes});
  return cost_of(graph, plan);
}

TEST_CASE("axes planned together cost the solver's total, and no more than one after another") {
  const std::string wide = "width = 48\nheads = 12\nhidden = 96\nvocab = 96\n";
  int better = 0;
  for (const auto& keys :
       {"kind = 'gpt'\nlayers = 2\n" + wide, "kind = 'llama'\nlayers = 1\n" + wide,
        std::string("kind = 'mlp'\ninputs = 48\nwidth = 96\nlayers = 4\noutputs = 24\n")}) {
    const auto given = built_in(keys, 12, 1, "float32", 12);
    for (const std::string mesh : {"tensor=2,sequence=2", "tensor=2,sequence=3"}) {
      INFO(keys << mesh);
      auto planned = empty_plan(given.graph, mesh);
      const auto found = shard::place_planned(planned, given.graph,
                                              {.axes = {"tensor", "sequence"}});
      const double cost = cost_of(given.graph, planned);
      INFO(found.cost << " by the solver, counted " << cost);
      CHECK(found.bound >= found.cost * (1 - 1e-9));
      CHECK(std::abs(cost - found.cost) < 0.05 * cost);
      const double one = planned_cost(given.graph, mesh, {{"tensor"}, {"sequence"}});
      const double other = planned_cost(given.graph, mesh, {{"sequence"}, {"tensor"}});
      INFO("one after another " << one << " and " << other);
      CHECK(cost <= std::min(one, other) * 1.001);
      better += cost < 0.98 * std::min(one, other);
    }
  }
  CHECK(better > 0);
}

TEST_CASE("a plan that forbids tensors sharded over several axes has none") {
  const auto given = built_in(kGpt, kRows);
  for (const bool forbidden : {false, true}) {
    auto plan = empty_plan(given.graph, "tensor=2,sequence=2");
    if (forbidden) plan.forbidden = {"nd_shardings"};
    shard::place_planned(plan, given.graph, {.axes = {"tensor", "sequence"}});
    const auto sharding = shard::propagate(given.graph, plan);
    int most = 0;
    for (const auto& placements : sharding.values) {
      most = std::max(most, static_cast<int>(std::ranges::count_if(
                                placements, [](const auto& p) { return p.is_shard(); })));
    }
    CHECK(most == (forbidden ? 1 : 2));
  }
}

TEST_CASE("no choice of the weights' placements on two axes costs less than the planned one") {
  torch::manual_seed(5);
  const auto given = capture_model(models().at("regression")(12));
  for (const std::string mesh : {"tensor=2,sequence=2", "tensor=3,sequence=2"}) {
    auto planned = empty_plan(given.graph, mesh);
    const auto found = shard::place_planned(planned, given.graph, {.axes = {"sequence", "tensor"}});
    const double cost = cost_of(given.graph, planned);
    std::vector<const graph::Input*> weights;
    for (const auto& input : given.graph.inputs) {
      if (input.kind != graph::Input::Kind::parameter) continue;
      if (given.graph.type(input.value).shape.size() > 1) weights.push_back(&input);
    }
    double least = INFINITY;
    int count = 0;
    std::function<void(plan::Plan, size_t)> walk = [&](plan::Plan plan, size_t k) {
      if (k == 2 * weights.size()) {
        ++count;
        least = std::min(least, cost_of(given.graph, plan));
        return;
      }
      walk(plan, k + 1);
      const auto& input = *weights[k / 2];
      const auto& shape = given.graph.type(input.value).shape;
      for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
        auto more = plan;
        auto& placements = more.placements[input.name];
        placements.resize(2);
        placements[k % 2] = mesh::Placement::shard(d);
        int64_t parts = 1;
        for (int a : {0, 1}) parts *= placements[a].dim == d ? plan.mesh.axes[a].size : 1;
        if (shape[d] >= parts) walk(std::move(more), k + 1);
      }
    };
    walk(empty_plan(given.graph, mesh), 0);
    INFO(mesh << ": " << found.cost << " by the solver, counted " << cost << ", of " << count << " "
              << least);
    CHECK(count > 100);
    CHECK(cost <= least * 1.0001);
  }
}

std::string planned_on(const std::string& axes, const std::string& fields) {
  return R"([["parallel_mode", )" + axes + R"(], ["tensor_parallel", )" + fields + "]]";
}

TEST_CASE("models of unknown layers train with planned shardings as on one device") {
  for (const char* model : {"gpt", "images", "regression", "recurrent", "experts"}) {
    for (const char* axes :
         {R"([["tensor", 2], ["data", 1]])", R"([["tensor", 3], ["data", 1]])",
          R"([["tensor", 4], ["data", 1]])", R"([["data", 2], ["tensor", 2]])"}) {
      torch::manual_seed(5);
      const auto given = capture_model(models().at(model)(kRows));
      INFO(model << " " << axes);
      const auto plan = plan_of(given, planned_on(axes, R"({"planned": true})"), kRows);
      const auto one_device = plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kRows);
      CHECK(compare(train(given, one_device)[0], train(given, plan)) == "");
    }
  }
  for (const char* keys : {kGpt, kLlama, kMlp, kResnet, kMoe}) {
    for (const char* fields : {R"({"planned": true})", R"({"planned": true, "sequence": true})"}) {
      torch::manual_seed(5);
      const auto given = built_in(keys, kRows);
      INFO(keys << fields);
      const auto plan = plan_of(given, planned_on(R"([["tensor", 3], ["data", 1]])", fields),
                                kRows);
      const auto one_device = plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kRows);
      CHECK(compare(train(given, one_device)[0], train(given, plan)) == "");
    }
  }
}

TEST_CASE("axes planned together train as one device does, in the predicted memory") {
  const auto trains = [](const Given& given, const std::string& axes) {
    const auto plan = plan_of(
        given, planned_on(axes, R"({"planned": true, "axis": ["tensor", "sequence"]})"), kRows);
    const auto one_device = plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kRows);
    const auto ranks = train(given, plan);
    CHECK(compare(train(given, one_device)[0], ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  };
  const std::string square = R"([["tensor", 2], ["sequence", 2], ["data", 1]])";
  const std::string unequal = R"([["tensor", 3], ["sequence", 2], ["data", 1]])";
  const std::string beside = R"([["data", 2], ["tensor", 2], ["sequence", 2]])";
  for (const char* model : {"gpt", "images", "regression", "recurrent", "experts"}) {
    torch::manual_seed(5);
    const auto given = capture_model(models().at(model)(kRows));
    for (const auto& axes : {square, unequal, beside}) {
      INFO(model << " " << axes);
      trains(given, axes);
    }
  }
  for (const char* keys : {kGpt, kLlama, kMlp, kResnet, kMoe}) {
    torch::manual_seed(5);
    const auto given = built_in(keys, kRows);
    for (const auto& axes : {square, unequal}) {
      INFO(keys << axes);
      trains(given, axes);
    }
  }
}

TEST_CASE("planned layers with buffers train beside other axes as on one device") {
  const auto given = built_in(kResnet, kRows);
  const auto one_device = plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kRows);
  const auto one = train(given, one_device)[0];
  for (const char* axes :
       {R"(["pipe", 2], ["tensor", 2], ["data", 1])", R"(["tensor", 2], ["pipe", 2], ["data", 2])",
        R"(["data", 2], ["tensor", 3])"}) {
    INFO(axes);
    const bool pipe = std::string(axes).find("pipe") != std::string::npos;
    const auto strategy = std::string(R"([["parallel_mode", [)") + axes +
                          R"(]], ["tensor_parallel", {"planned": true}])" +
                          (pipe ? R"(, ["pipeline_parallel", {}], ["gradient_accumulation",
                                  {"microbatches": 1}]])"
                                : "]");
    const auto plan = plan_of(given, strategy, kRows);
    CHECK(compare(one, train(given, plan)) == "");
  }
}

TEST_CASE("a missing collective of planned shardings is detected") {
  torch::manual_seed(5);
  const auto given = capture_model(models().at("gpt")(kRows));
  const auto one = train(given, plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kRows))[0];
  const auto plan = plan_of(given, planned_on(R"([["tensor", 2], ["data", 1]])", "{}"), kRows);
  CHECK(compare(one, train(given, plan)) == "");
  for (const auto phase : {graph::Phase::forward, graph::Phase::backward}) {
    CHECK(compare(one, train(given, plan, [phase](Program& program) {
                    for (auto& section : program.sections) {
                      std::erase_if(section.instructions, [&](const Instruction& i) {
                        return i.kind == Instruction::Kind::collective && i.phase == phase;
                      });
                    }
                  })) != "");
  }
}

TEST_CASE("planned shardings report the sharded weights, or why none can be") {
  const auto given = built_in(kResnet, kRows);
  const auto plan = plan_of(given, planned_on(R"([["tensor", 2], ["data", 1]])", "{}"), kRows);
  bool said = false;
  for (const auto& decision : plan.decisions) {
    said = said || (decision.by == "tensor_parallel" &&
                    decision.sentence.find("as the solver found") != std::string::npos &&
                    decision.sentence.find("which is optimal") != std::string::npos);
  }
  CHECK(said);
  const auto refused = [](const char* keys, const std::string& axes, const std::string& config) {
    const auto given = built_in(keys, kRows);
    try {
      plan_of(given, planned_on(axes, config), kRows);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string two = R"([["tensor", 2], ["data", 1]])";
  CHECK(refused(kMlp, R"([["tensor", 16], ["data", 1]])", R"({"planned": true})") ==
        "[tensor_parallel] no weight can be split over the 16 ranks of axis tensor; the largest: "
        "blocks.1.weight [10, 10] (no dim has as many elements as there are ranks), "
        "blocks.0.weight [10, 9] (no dim has as many elements as there are ranks), "
        "head.weight [5, 10] (no dim has as many elements as there are ranks): give the axis "
        "fewer ranks, or leave tensor_parallel out");
  CHECK_THAT(refused(kMlp, two, R"({"planned": true, "smallest": 1000})"),
             Catch::Contains("800 bytes, fewer than smallest"));
  // Samples are split where weights are too small.
  const auto many = built_in(kMlp, 2 * kRows);
  const auto shared = plan_of(
      many, planned_on(R"([["tensor", 16], ["data", 1]])", R"({"planned": true})"), 2 * kRows);
  CHECK(std::ranges::any_of(shared.decisions, [](const auto& decision) {
    return decision.sentence.starts_with("no weights are split over the 16 ranks");
  }));
  const std::string three = R"([["tensor", 2], ["sequence", 2], ["data", 2]])";
  CHECK(refused(kGpt, three, R"({"axis": ["tensor", "tensor"], "planned": true})") ==
        "[tensor_parallel] axis must name axes such as \"data,context\" or a list, each once, "
        "but got [\"tensor\",\"tensor\"]");
  CHECK_THAT(refused(kGpt, three, R"({"axis": ["tensor", "data"], "planned": true})"),
             Catch::Contains("but data splits the batch"));
  CHECK(refused(kGpt, two, R"({"planned": true, "column": ["blocks.*.mlp.up"]})") ==
        "[tensor_parallel] with planned = true the solver finds the split weights, but column, row "
        "or vocab name them: leave one of them out");
  CHECK_THAT(refused(kResnet, two, R"({"planned": false})"),
             Catch::Contains("must be named as column, row and vocab, or planned"));
}

}  // namespace
}  // namespace perigee::parity
