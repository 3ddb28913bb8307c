#include "shard/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "graph/ops.h"
#include "shard/propagate/matched_rules.h"
#include "tests/shard/support.h"

namespace perigee::shard {
namespace {

TEST_CASE("data parallelism needs no collective: gradients and loss stay Partial") {
  const auto g = mlp();
  const auto plan = plan_for(g, "data=4");
  const auto sharding = propagate(g, plan);
  CHECK(placement(g, sharding, "fc1/addmm.0") == "S0");
  CHECK(placement(g, sharding, "fc2/'mm.0") == "P");
  CHECK(placement(g, sharding, "/mean.0") == "P");
  // The initial gradient of the loss is computed on the shard, not sliced.
  CHECK(placement(g, sharding, "/'expand.0") == "S0");
  CHECK(sharding.replicated_ops.empty());
  const auto local = local_graph(g, plan, 3);
  CHECK(collectives(local.graph) == "");
  CHECK(local.graph.type(local.graph.inputs[0].value).shape == std::vector<int64_t>{2, 4});
  for (const auto& placements : local.outputs) CHECK(mesh::to_string(placements) == "P");
}

TEST_CASE("a mean over a sharded dim is the local sum over the global count") {
  const auto local = local_graph(mlp(), plan_for(mlp(), "data=3"), 2);
  const auto* loss = local.graph.find_output(graph::Output::Kind::loss, "loss");
  const auto& node = local.graph.nodes[local.graph.values[loss->value.index].producer];
  CHECK(node.op == "aten::div.Scalar");
  CHECK(node.get<double>("other", 0) == 32.0);
}

TEST_CASE("column and row weights keep the activations between them sharded") {
  const auto g = mlp();
  const auto plan = plan_for(
      g, "tensor=2", {{"fc1.weight", "S1"}, {"fc1.bias", "S0"}, {"fc2.weight", "S0"}, {"x", "R"}});
  const auto sharding = propagate(g, plan);
  CHECK(placement(g, sharding, "fc1/addmm.0") == "S1");
  CHECK(placement(g, sharding, "fc2/mm.0") == "P");
  CHECK(placement(g, sharding, "fc1/'mm.0") == "S1");
  const auto local = local_graph(g, plan, 1);
  CHECK(collectives(local.graph) == "");
  CHECK(mesh::to_string(local.outputs[1]) == "S1");
  CHECK(local.graph.type(local.graph.outputs[1].value).shape == std::vector<int64_t>{4, 3});
}

TEST_CASE("redistributions of an output directly follow its producer") {
  auto g = mlp();
  const auto names = graph::value_names(g);
  const auto at_relu = std::find(names.begin(), names.end(), "fc1/relu.0") - names.begin();
  const graph::ValueId hidden{static_cast<int32_t>(at_relu)};
  g.add_input(graph::Input::Kind::buffer, "seen", g.type(hidden));  // replicated
  g.outputs.push_back({graph::Output::Kind::buffer, "seen", hidden});
  const auto plan = plan_for(
      g, "tensor=2", {{"fc1.weight", "S1"}, {"fc1.bias", "S0"}, {"fc2.weight", "S0"}, {"x", "R"}});
  const auto local = local_graph(g, plan, 1).graph;
  const auto at = [&](const std::string& op) {
    return std::find_if(local.nodes.begin(), local.nodes.end(),
                        [&](const auto& node) { return node.op == op; }) -
           local.nodes.begin();
  };
  CHECK(at("comm::all_gather") == at("aten::relu") + 1);
  CHECK(local.outputs.back().value == local.nodes[at("comm::all_gather")].outputs[0]);
}

TEST_CASE("a plan that forbids gathering uses another path, or reports that none exists") {
  const auto g = mlp();
  auto plan = plan_for(g, "tensor=2", {{"fc1/addmm.0", "S0"}, {"fc1/relu.0", "S1"}});
  const auto all = [&] { return collectives(local_graph(g, plan, 1).graph); };
  CHECK_THAT(all(), Catch::Contains("all_to_all"));
  plan.forbidden = {"all_to_all"};
  CHECK_THAT(all(), !Catch::Contains("all_to_all") && Catch::Contains("all_gather"));
  plan.forbidden = {"all_gather", "all_to_all"};
  CHECK_THROWS_WITH(all(), Catch::Contains("where all_gather, all_to_all is forbidden"));
}

TEST_CASE("if tensors may not be split over several axes, each is split over one") {
  const auto g = mlp();
  auto plan = plan_for(g, "tensor=2,data=2",
                       {{"fc1.weight", "S1,R"}, {"fc1.bias", "S0,R"}, {"fc2.weight", "S0,R"}});
  const auto twice = [&] {
    const auto sharding = propagate(g, plan);
    int64_t count = 0;
    const auto look = [&](const mesh::Placements& p) {
      count += p[0].is_shard() && p[1].is_shard();
    };
    for (const auto& placements : sharding.values) look(placements);
    for (const auto& operands : sharding.operands) std::ranges::for_each(operands, look);
    for (const auto& results : sharding.results) std::ranges::for_each(results, look);
    return count;
  };
  CHECK(twice() > 0);
  plan.forbidden = {"nd_shardings"};
  CHECK(twice() == 0);
  CHECK_NOTHROW(local_graph(g, plan, 3));
  plan.placements["fc1/relu.0"] = mesh::parse_placements("S1,S0");
  CHECK_THROWS_WITH(plan::verify(plan, g),
                    Catch::Contains("(nd_shardings is forbidden), but fc1/relu.0 is placed as"));
}

TEST_CASE("if replicated products are forbidden, every product is sharded") {
  const auto g = mlp();
  auto plan = plan_for(g, "tensor=2");
  const auto repeated = [&] {
    const auto sharding = propagate(g, plan);
    int64_t count = 0;
    for (size_t n = 0; n < g.nodes.size(); ++n) {
      const auto whole = [](const mesh::Placements& p) { return p[0].is_replicate(); };
      count += graph::is_product(g.nodes[n].op) &&
               std::ranges::all_of(sharding.operands[n], whole) &&
               std::ranges::all_of(sharding.results[n], whole);
    }
    return count;
  };
  CHECK(repeated() > 0);
  plan.forbidden = {"replicated_products"};
  CHECK(repeated() == 0);
  CHECK_NOTHROW(local_graph(g, plan, 1));
  plan = plan_for(g, "tensor=64");  // no dim has 64 elements
  plan.forbidden = {"replicated_products"};
  CHECK_THROWS_WITH(repeated(), Catch::Contains("where replicated_products is forbidden"));
}

TEST_CASE("a bias inside a product with its inner dim sharded is added once") {
  const auto g = mlp();
  const auto plan = plan_for(g, "tensor=2",
                             {{"x", "S1"}, {"fc1.weight", "S0"}, {"fc1/addmm.0", "P"}});
  const auto first = local_graph(g, plan, 0), second = local_graph(g, plan, 1);
  const auto fulls = [](const graph::Graph& graph) {
    int64_t count = 0;
    for (const auto& node : graph.nodes) {
      count += node.op == "perigee::full" && node.phase == graph::Phase::forward;
    }
    return count;
  };
  CHECK(fulls(first.graph) == 0);
  CHECK(fulls(second.graph) == 1);
  CHECK(collectives(first.graph) == collectives(second.graph));
}

TEST_CASE("a sharded parameter is gathered in each pass and its gradient scattered") {
  const auto g = mlp();
  const auto plan = plan_for(g, "data=2",
                             {{"fc2.weight", "S0"}, {"fc2/mm.0", "S0"}, {"fc2/'t.1", "R"}});
  CHECK(collectives(local_graph(g, plan).graph) ==
        "all_gather(data) reduce_scatter(data) all_gather(data)");
}

TEST_CASE("an op without a rule runs replicated and is listed once") {
  auto g = mlp();
  for (auto& node : g.nodes) {
    if (node.op == "aten::relu") node.op = "my::relu";
  }
  const auto sharding = propagate(g, plan_for(g, "data=2"));
  CHECK(sharding.replicated_ops == std::vector<std::string>{"my::relu"});
  CHECK(placement(g, sharding, "fc1/relu.0") == "R");
  const auto uncovered = uncovered_ops(g, plan_for(g, "data=2"));
  REQUIRE(uncovered.size() == 1);
  CHECK(uncovered[0].op == "my::relu");
  CHECK(uncovered[0].scope == "fc1");
}

TEST_CASE("a rule in the plan covers an op") {
  auto g = mlp();
  for (auto& node : g.nodes) {
    if (node.op == "aten::relu") node.op = "my::relu";
  }
  auto plan = plan_for(g, "data=2");
  plan.rules["my::relu"] = "b* -> b*";
  const auto sharding = propagate(g, plan);
  CHECK(sharding.replicated_ops.empty());
  CHECK(placement(g, sharding, "fc1/relu.0") == "S0");
}

TEST_CASE("propagation fills the open axes of a pin") {
  const auto g = mlp();
  const auto plan = plan_for(g, "tensor=2,data=2",
                             {{"fc1.weight", "S1,R"}, {"fc2.weight", "S0,R"}, {"fc2/mm.0", "R,-"}});
  CHECK(placement(g, propagate(g, plan), "fc2/mm.0") == "R,S0");
  CHECK_THROWS_WITH(plan_for(g, "tensor=2,data=2", {{"fc1.weight", "S1,-"}}),
                    Catch::Contains("a parameter is placed on every axis, but fc1.weight"));
}

TEST_CASE("a shard in runs draws the random numbers of its global indices") {
  const auto g = graph::parse(R"(perigee.graph/1
scope "" Net
input data %0: float64[4, 6, 5] = x
%1: float64[24, 5] = perigee::reshape(self=%0)   @ forward
%2: float64[24, 5] = perigee::dropout(self=%1, p=0.5, key=1)   @ forward
%3: float64[4, 6, 5] = perigee::reshape(self=%2)   @ forward
output result %3 = y
)");
  const auto local = local_graph(g, plan_for(g, "tensor=2", {{"x", "S1"}}), 1).graph;
  CHECK(collectives(local).find("all_to_all") == std::string::npos);
  const auto drawn = std::find_if(local.nodes.begin(), local.nodes.end(),
                                  [](auto& node) { return node.op == "perigee::dropout"; });
  REQUIRE(drawn != local.nodes.end());
  CHECK(local.type(drawn->outputs[0]).shape == std::vector<int64_t>{4, 3, 5});
  CHECK(drawn->get<std::vector<int64_t>>("global", {}) == std::vector<int64_t>{4, 6, 5});
  CHECK(drawn->get<std::vector<int64_t>>("begin", {}) == std::vector<int64_t>{0, 3, 0});
}

TEST_CASE("a sharded product is not replicated to save a little communication") {
  // Its operands take 75 + 100 MB to gather, its sum 201 MB to reduce.
  const auto text = [](int64_t inner) {
    return fmt::format(R"(perigee.graph/1
scope "" Net
input data %0: bfloat16[8192, {0}] = x
input parameter %1: bfloat16[{0}, 6144] = w
%2: bfloat16[8192, 6144] = aten::mm(self=%0, mat2=%1)   @ forward
%3: bfloat16[8192, 6144] = aten::relu(self=%2)   @ forward
output result %3 = y
)",
                       inner);
  };
  for (const int64_t inner : {6144, 3000}) {
    const auto g = graph::parse(text(inner));
    const auto plan = plan_for(g, "tensor=8", {{"x", "S1"}, {"w", "S0"}, {"/mm.0", "R"}});
    CHECK(collectives(local_graph(g, plan).graph) == "all_reduce(tensor)");
  }
}

TEST_CASE("an axis of one rank is planned like a larger one and communicates nothing") {
  const auto g = mlp();
  const auto plan = plan_for(g, "data=1", {{"fc2.weight", "S0"}, {"fc2/mm.0", "S0"}});
  CHECK(collectives(local_graph(g, plan).graph) == "");
  CHECK(placement(g, propagate(g, plan), "fc2/'mm.0") == "P");
}

TEST_CASE("a batch smaller than its axis is sharded, then gathered in each pass") {
  const auto g = mlp();
  for (int64_t rank : {0, 11}) {
    const auto local = local_graph(g, plan_for(g, "data=12"), rank);
    CHECK(local.graph.type(local.graph.inputs[0].value).shape[0] == (rank == 0 ? 1 : 0));
    CHECK(collectives(local.graph) == "all_gather(data) all_gather(data)");
  }
}

TEST_CASE("a value in several placements is redistributed from the one that costs least") {
  const auto g = graph::parse(R"(perigee.graph/1
scope "" Net
input data %0: float32[64, 64] = x
%1: float32[64, 64] = my::whole(self=%0)   @ forward
%2: float32[64, 64] = my::columns(self=%0)   @ forward
output result %1 = y
output result %2 = z
)");
  auto plan = plan_for(g, "tensor=2", {{"x", "S0"}, {"/columns.0", "S1"}});
  plan.rules["my::whole"] = "i^ j^ -> i^ j^";
  plan.rules["my::columns"] = "i^ j -> i^ j";
  // The columns are cut from the gathered value; from the rows they take an all-to-all.
  CHECK(collectives(local_graph(g, plan).graph) == "all_gather(tensor)");
  plan.rules["my::whole"] = "i j -> i j";
  CHECK(collectives(local_graph(g, plan).graph) == "all_to_all(tensor)");
}

TEST_CASE("a rank outside the mesh is refused") {
  const auto g = mlp();
  const auto plan = plan_for(g, "data=2");
  CHECK_THROWS_AS(partition(g, propagate(g, plan), plan, 2), Error);
}

}  // namespace
}  // namespace perigee::shard
