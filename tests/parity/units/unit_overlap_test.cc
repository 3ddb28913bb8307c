// Gathers and scatters of a unit overlap with the work of its neighbours: in a low precision, and
// where a unit has several flat tensors (those that tensor ranks shard, and others).
#include <fmt/format.h>

#include <map>
#include <set>

#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

const std::string kModel =
    "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\n";

Program program_of(const std::string& axes, const std::string& methods) {
  torch::manual_seed(5);
  static const auto given = built_in(kModel, kRows, 1, "float32");
  static DryRuns traces;
  const auto plan = plan_of(given, strategy_on(axes, methods), kRows);
  return compile::compile(given.graph, plan, {}, 0, traces);
}

// The least number of matrix products between a collective's start and wait, by unit and kind.
std::map<std::string, int> products_beside(const Program& program, const std::string& op,
                                           graph::Phase phase) {
  std::map<std::string, int> fewest;
  for (const auto& section : program.sections) {
    const auto& list = section.instructions;
    for (size_t i = 0; i < list.size(); ++i) {
      const bool of_unit = list[i].scope.starts_with("blocks.") && list[i].scope.size() == 8;
      if (list[i].op != op || list[i].phase != phase || !of_unit) continue;
      int products = 0;
      for (size_t k = i + 1; k < list.size(); ++k) {
        if (list[k].kind == Instruction::Kind::wait && list[k].event == list[i].event) break;
        products += list[k].op == "aten::mm" || list[k].op == "aten::addmm";
      }
      const auto [at, added] = fewest.emplace(list[i].scope, products);
      at->second = std::min(at->second, products);
    }
  }
  return fewest;
}

}  // namespace

TEST_CASE("low weights of a unit are gathered while the previous unit computes") {
  const std::string half = R"(["half", {"dtype": "bf16"}], )";
  for (const auto& [axes, methods] : std::vector<std::pair<std::string, std::string>>{
           {R"(["data", 2])", half},
           {R"(["tensor", 2], ["data", 2])", half + R"(["tensor_parallel", {}], )"}}) {
    INFO(axes);
    const auto program = program_of(axes, methods + R"(["fsdp", {}])");
    const auto forward = products_beside(program, "comm::all_gather", graph::Phase::forward),
               backward = products_beside(program, "comm::all_gather", graph::Phase::backward);
    REQUIRE(forward.size() == 4);
    for (const auto* unit : {"blocks.1", "blocks.2", "blocks.3"}) {
      INFO(unit);
      CHECK(forward.at(unit) > 0);
    }
    for (const auto* unit : {"blocks.0", "blocks.1", "blocks.2"}) {
      INFO(unit);
      CHECK(backward.at(unit) > 0);
    }
    const auto late = program_of(
        axes, methods + R"(["fsdp", {"forward_prefetch": false, "backward_prefetch": "none"}])");
    CHECK(products_beside(late, "comm::all_gather", graph::Phase::forward).at("blocks.2") == 0);
  }
}

TEST_CASE("all gradients of a unit are scattered while the previous unit computes") {
  for (const std::string half : {"", R"(["half", {"dtype": "bf16"}], )"}) {
    INFO(half);
    const auto program = program_of(R"(["tensor", 2], ["data", 2])",
                                    half + R"(["tensor_parallel", {}], ["fsdp", {}])");
    const auto beside = products_beside(program, "comm::reduce_scatter", graph::Phase::backward);
    REQUIRE(beside.size() == 4);
    for (const auto* unit : {"blocks.1", "blocks.2", "blocks.3"}) {
      INFO(unit);
      CHECK(beside.at(unit) > 0);
    }
    const auto at_once = program_of(
        R"(["tensor", 2], ["data", 2])",
        half + R"(["tensor_parallel", {}], ["grad_comm", {"overlap": false}], ["fsdp", {}])");
    CHECK(products_beside(at_once, "comm::reduce_scatter", graph::Phase::backward).at("blocks.2") ==
          0);
  }
}

}  // namespace perigee::parity
