// Recomputation against one device without it, with a negative control.
#include <fmt/format.h>

#include "methods/method.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/parity/support/training.h"

using namespace perigee;
using namespace perigee::parity;

namespace {

// Applies checkpoint with the config to a plan.
auto checkpoint(std::string config) {
  return [=](plan::Plan& plan, const graph::Graph& graph) {
    const auto strategy = methods::from_json(
        methods::Json::array({methods::Json::array({"checkpoint", methods::Json::parse(config)})}),
        "test");
    strategy.methods[0].method->apply(plan, strategy.methods[0].config, {.graph = &graph});
  };
}

}  // namespace

TEST_CASE("recomputed blocks give the same numbers, with dropout, in less memory") {
  const GptShape shape{.sequence = 32, .width = 24, .layers = 4, .dropout = 0.2};
  const auto one = train_ranks(shape, {}, {});
  for (const char* config :
       {R"(["blocks.*"])", R"(["Block"])", R"({"1": "blocks.*", "every": 2})",
        R"({"1": "blocks.*", "group": 2})", R"({"1": "**", "ops": ["gelu", "dropout"]})",
        R"({"1": "blocks.*", "keep": ["mm", "attention"]})",
        R"({"1": "blocks.*", "keep": ["mm", "attention"], "full_every": 2})",
        R"({"wrap_class": "blocks.1"})"}) {
    INFO(config);
    const auto recomputed = train_ranks(shape, {}, {.plan = checkpoint(config)});
    // The same ops on the same operands: bit-equal.
    CHECK(compare(recomputed, one, 0) == "");
    CHECK(recomputed.peak_bytes < one.peak_bytes);
    CHECK(
        compare(train_ranks(shape, {}, {.count = 2, .microbatches = 2, .plan = checkpoint(config)}),
                one) == "");
  }
  // Only a block's input is kept: more than two thirds of four blocks' activations are freed.
  const auto all = train_ranks(shape, {}, {.plan = checkpoint(R"(["blocks.*"])")});
  const auto grouped = train_ranks(shape, {},
                                   {.plan = checkpoint(R"({"1": "blocks.*", "every": 2})")});
  CHECK(all.peak_bytes < grouped.peak_bytes);
  const auto kept = [&](const char* more) {
    const auto config = fmt::format(R"({{"1": "blocks.*", "keep": ["mm", "attention"]{}}})", more);
    return train_ranks(shape, {}, {.plan = checkpoint(config)}).peak_bytes;
  };
  const auto some = kept(""), mixed = kept(R"(, "full_every": 2)");
  CHECK(all.peak_bytes < mixed);
  CHECK(mixed < some);
  CHECK(all.peak_bytes < 0.6 * static_cast<double>(one.peak_bytes));
}

TEST_CASE("a recomputed block keeps the sums over ranks and reduces them once") {
  torch::manual_seed(5);
  constexpr int64_t kRows = 4;
  const auto given = built_in(kGpt, kRows);
  const auto plan = [&](const std::string& more) {
    return plan_of(
        given,
        R"([["parallel_mode", [["tensor", 2]]], ["tensor_parallel", {"sequence": true}])" + more +
            "]",
        kRows);
  };
  compile::NoTraces traces;
  const auto sums_behind = [&](const plan::Plan& plan) {
    int count = 0;
    const auto program = compile::compile(given.graph, plan, {}, 0, traces);
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        count += instruction.phase == graph::Phase::backward &&
                 instruction.op == "comm::reduce_scatter";
      }
    }
    return count;
  };
  const auto peak = [&](const plan::Plan& plan) {
    return compile::predict_memory(given.graph, plan, {}, traces).peak_bytes[0];
  };
  const auto
      none = plan(""),
      all = plan(R"(, ["checkpoint", ["blocks.*"]])"),
      some = plan(R"(, ["checkpoint", {"1": "blocks.*", "keep": ["mm", "attention"]}])"),
      mixed = plan(
          R"(, ["checkpoint", {"1": "blocks.*", "keep": ["mm", "attention"], "full_every": 2}])");
  CHECK(sums_behind(some) == sums_behind(none));
  CHECK(sums_behind(all) > sums_behind(none));
  CHECK(sums_behind(mixed) > sums_behind(some));
  CHECK(sums_behind(mixed) < sums_behind(all));
  CHECK(peak(mixed) < peak(some));
  CHECK(peak(some) < peak(none));
  const auto one = train(given, plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kRows))[0];
  for (const auto& kept : {some, mixed}) {
    const auto ranks = train(given, kept);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, kept, ranks) == "");
  }
}

TEST_CASE("a mask that a recomputed op draws anew is detected") {
  const GptShape shape{.dropout = 0.2};
  const auto other_mask = [](compile::Program& program) {
    for (auto& section : program.sections) {
      for (auto& instruction : section.instructions) {
        if (instruction.phase != graph::Phase::backward) continue;
        for (auto& [name, arg] : instruction.args) {
          auto* key = std::get_if<int64_t>(&arg);
          if (key && (name == "key" || name == "random_key")) *key += 1000;
        }
      }
    }
  };
  const auto one = train_ranks(shape, {}, {});
  for (const char* config :
       {R"(["blocks.*"])", R"({"1": "blocks.*", "keep": ["mm", "attention"], "full_every": 2})"}) {
    INFO(config);
    CHECK(compare(train_ranks(shape, {}, {.edit = other_mask, .plan = checkpoint(config)}), one) !=
          "");
  }
}
