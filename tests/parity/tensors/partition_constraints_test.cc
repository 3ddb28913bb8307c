// The method partition_constraints: ops keep their constraints, and train as one device does.
#include <fmt/format.h>

#include "tests/support/torch_test.h"
//
#include "base/error.h"
#include "shard/partition.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"

namespace perigee::parity {
namespace {

using Catch::Matchers::Contains;

constexpr int64_t kConstraintsRows = 4;

std::string constraint(const std::string& op, const std::string& parent, const std::string& dims,
                       bool replica) {
  return fmt::format(
      R"({{"name": "{}", "parent_module": "{}", "allowed_partition_dims": [{}], "replica_allowed": {}}})",
      op, parent, dims, replica);
}

std::string strategy(const std::string& constraints) {
  return R"([["parallel_mode", [["tensor", 2], ["data", 1]]], ["tensor_parallel", {}])" +
         (constraints.empty() ? "" : R"(, ["partition_constraints", [)" + constraints + "]]") + "]";
}

// The placements of the inputs of a scope's forward op on the first axis: "R", "S1", ...
std::string input_placements(const Given& given, const plan::Plan& plan, const std::string& scope,
                             const std::string& op) {
  const auto sharding = shard::propagate(given.graph, plan);
  for (size_t n = 0; n < given.graph.nodes.size(); ++n) {
    const auto& node = given.graph.nodes[n];
    if (node.scope != scope || node.op != op || node.phase != graph::Phase::forward) continue;
    std::string text;
    for (const auto& placements : sharding.operands[n])
      text += mesh::to_string(placements[0]) + " ";
    return text;
  }
  return "none";
}

}  // namespace

TEST_CASE("ops run as their constraints allow, and train as one device does") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, kConstraintsRows);
  const auto one = train(
      given, plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kConstraintsRows))[0];
  const auto free = plan_of(given, strategy(""), kConstraintsRows);
  CHECK(input_placements(given, free, "blocks.0.mlp.up", "aten::mm") == "R S1 ");
  CHECK(input_placements(given, free, "blocks.0.mlp.down", "aten::mm") == "S1 S0 ");
  for (const auto& [constraints, up, down] : std::vector<std::array<std::string, 3>>{
           {constraint("aten::mm", "mlp", "", true), "R R ", "R R "},
           {constraint("aten::mm", "mlp.up", R"("0,1")", false), "S1 S0 ", "S1 S0 "},
           {constraint("aten::mm", "mlp", R"("0,0")", false), "S0 R ", "S0 R "},
           {constraint("aten::mm", "mlp", R"("0,0")", false) + ", " +
                constraint("aten::mm", "mlp.down", R"("1,1")", false),
            "S0 R ", "R S1 "},
           {constraint("aten::mm", "", R"("0,1", "1,1")", true), "R S1 ", "S1 S0 "}}) {
    INFO(constraints);
    const auto plan = plan_of(given, strategy(constraints), kConstraintsRows);
    CHECK(input_placements(given, plan, "blocks.1.mlp.up", "aten::mm") == up);
    CHECK(input_placements(given, plan, "blocks.1.mlp.down", "aten::mm") == down);
    CHECK((plan::parse(plan::print(plan)) == plan));
    CHECK(compare(one, train(given, plan)) == "");
    // Without its collectives the plan trains another model: the comparison can fail.
    const auto without = [](compile::Program& program) {
      for (auto& section : program.sections) {
        for (auto& i : section.instructions) {
          for (auto& [name, arg] : i.args) {
            if (name == "op" && arg == graph::Arg(std::string("sum"))) arg = std::string("max");
          }
        }
      }
    };
    CHECK(compare(one, train(given, plan, without)) != "");
  }
}

TEST_CASE("the parameter that a constrained op reads is placed on every axis") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, kConstraintsRows);
  const auto with = [&](const std::string& more) {
    const std::string axes = R"(["tensor", 2], ["data", 2])";
    const auto methods = R"(["tensor_parallel", {"sequence": true}])" + more;
    return plan_of(given, strategy_on(axes, methods, 1), kConstraintsRows);
  };
  const std::string scope = "blocks.1.norm1", op = "perigee::rms_norm";
  CHECK(input_placements(given, with(""), scope, op) != "R R ");
  const auto plan = with(R"(, ["partition_constraints", [)" + constraint(op, "norm1", "", true) +
                         "]]");
  CHECK_NOTHROW(plan::verify(plan, given.graph));
  CHECK(input_placements(given, plan, scope, op) == "R R ");
  CHECK(mesh::to_string(plan.placements.at("blocks.1.norm1.weight")) == "R,R");
  const auto one = train(given,
                         plan_of(given, strategy_on(R"(["data", 1])", "", 1), kConstraintsRows))[0];
  CHECK(compare(one, train(given, plan)) == "");
}

TEST_CASE("replicated ops combine with split backward passes, rounded or not") {
  const std::string deep =
      "kind = 'llama'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\n";
  for (const bool low : {false, true}) {
    const std::string amp = low ? R"(, ["amp_native", {"dtype": "bf16"}])" : "";
    torch::manual_seed(5);
    const auto given = built_in(deep, 2 * kConstraintsRows, 4, low ? "float32" : "float64", 12);
    const auto plan_for = [&](const std::string& axes, const std::string& methods) {
      return plan_of(given, strategy_on(axes, methods, 4), 2 * kConstraintsRows);
    };
    const auto one = train(given, plan_for(R"(["data", 1])", low ? amp.substr(2) : ""))[0];
    for (const auto& [schedule, context] : std::vector<std::pair<std::string, bool>>{
             {"zb1p", true}, {"zbv", false}, {"dualpipe_v", true}}) {
      INFO(schedule << amp);
      const auto plan = plan_for(
          context ? R"(["tensor", 2], ["context", 2], ["pipe", 2])"
                  : R"(["tensor", 2], ["pipe", 2])",
          fmt::format(R"(["tensor_parallel", {{}}], ["pipeline_parallel", {{"schedule": "{}"}}],
                         ["partition_constraints", [{}]]{}{})",
                      schedule, constraint("aten::mm", "mlp", "", true),
                      context ? R"(, ["context_parallel", {}])" : "", amp));
      const auto ranks = train(given, plan);
      CHECK(compare_memory(given, plan, ranks) == "");
      if (!low) {
        CHECK(compare(one, ranks) == "");
        continue;
      }
      for (const auto& rank : ranks) {
        for (size_t k = 0; k < one.losses.size(); ++k) {
          CHECK(rank.losses[k] == Approx(one.losses[k]).epsilon(2e-2));
        }
      }
    }
  }
}

TEST_CASE("constraints that no plan satisfies are refused") {
  const auto given = built_in(kLlama, kConstraintsRows);
  const auto refusal = [&](const std::string& constraints) -> std::string {
    try {
      plan_of(given, strategy(constraints), kConstraintsRows);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(refusal(constraint("aten::mm", "mlp", R"("0,7")", false)),
             Contains("item 1: none of the dims that are allowed for aten::mm in blocks.0.mlp"));
  CHECK_THAT(refusal(constraint("aten::mm", "mlp", R"("3,0")", true)),
             Contains("inputs of aten::mm are 0 to 1, but got 3"));
  CHECK_THAT(refusal(constraint("aten::mm", "mlp", "", false)),
             Contains("an op is split or replicated"));
  CHECK_THAT(refusal(R"({"name": "aten::mm", "parent_modul": "mlp"})"),
             Contains("a constraint has no \"parent_modul\", did you mean \"parent_module\"?"));
  CHECK_THAT(refusal("3"), Contains("a constraint is a table, but got 3"));
  const auto decisions = [&](const std::string& text) {
    std::string said;
    for (const auto& decision : plan_of(given, text, kConstraintsRows).decisions) {
      if (decision.by == "partition_constraints") said += decision.sentence + "\n";
    }
    return said;
  };
  CHECK(decisions(strategy(constraint("aten::mm", "conv", "", true))) ==
        "1 constraint on axis tensor: the sharding of 0 ops changes\n"
        "left out: item 1: no op aten::mm is in conv, as the graph names them\n");
  CHECK(decisions(R"([["parallel_mode", [["data", 2]]], ["partition_constraints", [)" +
                  constraint("aten::mm", "", "", true) + "]]]") ==
        "no op is split over axis tensor, which has one rank\n");
}

}  // namespace perigee::parity
