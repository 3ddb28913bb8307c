// Weights that both ends of a model use, where one stage has both: each end accumulates a gradient
// of its own.
#include <fmt/format.h>

#include <algorithm>

#include "compile/compile.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Frame;
using compile::Instruction;
using compile::Program;

constexpr int64_t kTiedStageRows = 16, kMicrobatches = 8;

const char* const kTied =
    "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 90\ndropout = 0.1\n";

plan::Plan tied_stage_plan(const Given& given, const std::string& axes,
                           const std::string& methods) {
  return plan_of(given, strategy_on(axes, methods, kMicrobatches), kTiedStageRows);
}

std::string in_v_shape(const std::string& schedule, const std::string& more = "") {
  return R"(["pipeline_parallel", {"schedule": ")" + schedule + R"("}])" + more;
}

// The values of the tied gradient's shape that a program keeps for each microbatch.
int64_t kept_gradients(const Program& program) {
  return std::ranges::count_if(program.values, [&](const auto& value) {
    const auto frame = value.place.frame;
    return value.type.shape == std::vector<int64_t>{90, 24} && frame >= 0 &&
           program.frames[static_cast<size_t>(frame)].kind == Frame::Kind::microbatch;
  });
}

TEST_CASE("a stage with both ends of a tied model trains as one device does") {
  torch::manual_seed(5);
  const auto given = built_in(kTied, kTiedStageRows, kMicrobatches);
  const auto one = train(given, tied_stage_plan(given, R"(["data", 1])", ""))[0];
  const std::string stages = R"(["pipe", 2])", copies = R"(["data", 2], ["pipe", 2])";
  const std::pair<std::string, std::string> cases[] = {
      {stages, in_v_shape("zbv")},
      {stages, in_v_shape("v_half")},
      {stages, in_v_shape("dualpipe_v")},
      {stages, in_v_shape("zbv", R"(, ["checkpoint", ["blocks.*"]])")},
      {stages, in_v_shape("zbv", R"(, ["checkpoint", {"1": "blocks.*",
                                      "kept_microbatches": 1}])")},
      {copies, in_v_shape("dualpipe_v")},
      {copies, in_v_shape("zbv", R"(, ["zero1", {}])")},
      {copies, in_v_shape("zbv", R"(, ["zero2", {}])")},
      {copies, in_v_shape("zbv", R"(, ["fsdp", {}])")},
      {R"(["tensor", 2], ["pipe", 2])", in_v_shape("zbv", R"(, ["tensor_parallel", {}])")}};
  for (const auto& [axes, methods] : cases) {
    INFO(axes << " " << methods);
    const auto plan = tied_stage_plan(given, axes, methods);
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("a tied gradient accumulates instead of being kept for each microbatch in flight") {
  torch::manual_seed(5);
  const auto given = built_in(kTied, kTiedStageRows, kMicrobatches);
  DryRuns traces;
  for (const std::string more :
       {"", R"(, ["zero1", {}])", R"(, ["zero2", {}])", R"(, ["fsdp", {}])"}) {
    for (const std::string schedule : {"zbv", "v_half", "dualpipe_v"}) {
      INFO(schedule << more);
      const auto plan = tied_stage_plan(given, R"(["data", 2], ["pipe", 2])",
                                        in_v_shape(schedule, more));
      const auto copies = [&](int64_t rank) {
        const auto program = compile::compile(given.graph, plan, {}, rank, traces);
        CHECK(kept_gradients(program) == 0);
        int64_t most = 0;
        for (const auto& frame : program.frames) {
          if (frame.kind == Frame::Kind::microbatch) most += frame.copies;
        }
        return most;
      };
      // The stage has as many microbatches in flight as one with neither end.
      CHECK(copies(0) <= copies(3) + 1);
    }
  }
}

TEST_CASE("a missing contribution of either end to a tied gradient is detected") {
  torch::manual_seed(5);
  const auto given = built_in(kTied, kTiedStageRows, kMicrobatches);
  const auto one = train(given, tied_stage_plan(given, R"(["data", 1])", ""))[0];
  const auto plan = tied_stage_plan(given, R"(["pipe", 2])", in_v_shape("dualpipe_v"));
  CHECK(compare(one, train(given, plan)) == "");
  const auto is_tied = [](const Program& program, const Instruction& i) {
    return (i.op == "perigee::accumulate_" || i.op == "perigee::embedding_backward_") &&
           program.values[i.outputs.front().index].name == "gradient:embed.weight";
  };
  for (const std::string part : {".0", ".3"}) {
    INFO(part);
    int64_t left_out = 0;
    CHECK(compare(one, train(given, plan, [&](Program& program) {
                    for (auto& section : program.sections) {
                      if (section.name().find(part) == std::string::npos) continue;
                      left_out += static_cast<int64_t>(
                          std::erase_if(section.instructions,
                                        [&](const Instruction& i) { return is_tied(program, i); }));
                    }
                  })) != "");
    CHECK(left_out > 0);
  }
}

}  // namespace
}  // namespace perigee::parity
