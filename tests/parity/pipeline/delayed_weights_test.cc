// overlap's weights: weight gradients after input gradients, in the order of any schedule.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "schedule/schedule.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Program;

constexpr int64_t kDelayedMicrobatches = 4;
const std::string kDelayedDeep =
    "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\ndropout = 0.1\n";
const std::string kExperts =
    "kind = 'moe'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 12\nexperts = 6\n"
    "capacity_per = 'sample'\n";
const std::string kWeights = R"(["overlap", {"weights": true}])";

std::string scheduled(const std::string& schedule, const std::string& more = "") {
  return fmt::format(R"(["pipeline_parallel", {{"schedule": "{}"{}}}], )", schedule, more);
}

// A rank's runs of its microbatches: "F0 B0 W0 ...".
std::string order_of(const Program& program) {
  std::string order;
  for (const auto& run : program.order) {
    const auto& name = program.sections[run.section].name();
    const char* letter = name.starts_with("forward")    ? "F"
                         : name.starts_with("backward") ? "B"
                         : name.starts_with("weights")  ? "W"
                                                        : nullptr;
    if (letter) order += fmt::format("{}{}{}", order.empty() ? "" : " ", letter, run.microbatch);
  }
  return order;
}

TEST_CASE("delayed weight gradients equal those of one device") {
  const auto check = [](const std::string& keys, const std::string& axes,
                        const std::string& methods, int64_t microbatches) {
    torch::manual_seed(5);
    const auto given = built_in(keys, kRows, microbatches);
    const auto plan = plan_of(given, strategy_on(axes, methods, microbatches), kRows);
    const auto one_device = plan_of(given, strategy_on(R"(["data", 1])", "", microbatches), kRows);
    INFO(axes << methods);
    const auto ranks = train(given, plan);
    CHECK(compare(train(given, one_device)[0], ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  };
  check(kDelayedDeep, R"(["data", 1])", kWeights, 1);
  check(kDelayedDeep, R"(["data", 2])", kWeights + R"(, ["checkpoint", ["blocks.*"]])", 2);
  check(kDelayedDeep, R"(["tensor", 2], ["data", 2])",
        R"(["tensor_parallel", {"sequence": true}], ["zero2", {}], )" + kWeights, 2);
  check(kDelayedDeep, R"(["pipe", 2])", scheduled("1f1b") + kWeights, kDelayedMicrobatches);
  check(kDelayedDeep, R"(["pipe", 2], ["data", 2])", scheduled("gpipe") + kWeights,
        kDelayedMicrobatches);
  const std::string parts = R"(, "chunks": 3, "starts": ["blocks.0.mlp", "blocks.1", "blocks.1.mlp",
                                                         "blocks.2", "blocks.3"])";
  check(kDelayedDeep, R"(["pipe", 2])", scheduled("interleaved", parts) + kWeights,
        kDelayedMicrobatches);
  check(kExperts, R"(["expert", 2])",
        R"(["expert_parallel", {}], ["overlap", {"weights": true, "experts": true}])", 2);
}

TEST_CASE("a stage runs weight gradients after input gradients") {
  torch::manual_seed(5);
  const auto given = built_in(kDelayedDeep, kRows, 2);
  DryRuns traces;
  const auto order = [&](const std::string& axes, const std::string& methods, int64_t rank) {
    const auto plan = plan_of(given, strategy_on(axes, methods, 2), kRows);
    return order_of(compile::compile(given.graph, plan, {}, rank, traces));
  };
  CHECK(order(R"(["data", 1])", kWeights, 0) == "F0 B0 W0 F1 B1 W1");
  CHECK(order(R"(["pipe", 2])", scheduled("1f1b") + kWeights, 0) == "F0 F1 B0 W0 B1 W1");
}

TEST_CASE("delayed weight gradients keep a schedule's order and memory, and take less time") {
  const auto made = [](bool delays) {
    return make_schedule({.name = "interleaved",
                          .stages = 4,
                          .microbatches = 8,
                          .chunks = 3,
                          .delay_weights = delays});
  };
  const auto joint = made(false), delayed = made(true);
  CHECK(delayed.makespan < joint.makespan);
  const auto most = [](const Schedule& schedule) {
    return *std::max_element(schedule.peak_in_flight.begin(), schedule.peak_in_flight.end());
  };
  CHECK(most(delayed) <= most(joint));
  for (size_t stage = 0; stage < joint.orders.size(); ++stage) {
    std::vector<PipelineOp> kept;
    for (auto op : delayed.orders[stage]) {
      if (op.kind == PipelineKind::weight_grad) continue;
      if (op.kind == PipelineKind::input_grad) op.kind = PipelineKind::backward;
      kept.push_back(op);
    }
    CHECK((kept == joint.orders[stage]));
  }
}

TEST_CASE("weight gradients are not delayed twice") {
  torch::manual_seed(5);
  const auto given = built_in(kDelayedDeep, kRows, 2);
  const auto why = [&](const std::string& axes, const std::string& methods) -> std::string {
    try {
      DryRuns traces;
      const auto plan = plan_of(given, strategy_on(axes, methods, 2), kRows);
      compile::compile(given.graph, plan, {}, 0, traces);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(why(R"(["pipe", 2])", scheduled("zb1p") + kWeights),
             Catch::Contains("so does the schedule zb1p"));
  CHECK_THAT(why(R"(["pipe", 2])",
                 scheduled("1f1b") + R"(["overlap", {"weights": true, "deferred_head": true}])"),
             Catch::Contains("already defers the gradients of all weights"));
}

}  // namespace
}  // namespace perigee::parity
