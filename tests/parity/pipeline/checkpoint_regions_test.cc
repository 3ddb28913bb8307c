// Recomputed regions that several parts of a pipeline share: each part recomputes its own share,
// and the activations that it sends on are kept.
#include <fmt/format.h>

#include <algorithm>

#include "compile/graph/recompute.h"
#include "exec/op_threads.h"
#include "plan/pipeline.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

constexpr int64_t kMicrobatches = 4;
const std::string kDeep =
    "kind = 'gpt'\nlayers = 6\nwidth = 24\nheads = 2\nhidden = 40\nvocab = 11\ndropout = 0.1\n";

const Given& deep() {
  static const Given given = [] {
    torch::manual_seed(5);
    return built_in(kDeep, kRows, kMicrobatches);
  }();
  return given;
}

plan::Plan plan_for(const std::string& axes, const std::string& pipeline,
                    const std::string& checkpoint) {
  auto methods = fmt::format(R"(["pipeline_parallel", {{{}}}])", pipeline);
  if (!checkpoint.empty()) methods += fmt::format(R"(, ["checkpoint", {{{}}}])", checkpoint);
  auto plan = plan_of(deep(), strategy_on(axes, methods, kMicrobatches), kRows);
  plan::verify(plan, deep().graph);
  return plan;
}

std::string grouped(int group) { return fmt::format(R"("1": "blocks.*", "group": {})", group); }

int64_t highest_peak(const plan::Plan& plan) {
  static DryRuns traces;
  exec::set_op_threads(1);
  int64_t peak = 0;
  for (const auto& program :
       compile::compile_all(deep().graph, plan, {.clip_norm = 0.5}, traces).programs) {
    peak = std::max(peak, program.peak_bytes);
  }
  return peak;
}

}  // namespace

TEST_CASE("regions that cross a stage's start train as one device does") {
  const auto one = train(
      deep(), plan_of(deep(), strategy_on(R"(["data", 1])", "", kMicrobatches), kRows))[0];
  const auto check = [&](const std::string& axes, const std::string& pipeline,
                         const std::string& checkpoint) {
    INFO(axes << ' ' << pipeline << ' ' << checkpoint);
    const auto plan = plan_for(axes, pipeline, checkpoint);
    const auto ranks = train(deep(), plan);
    CHECK(compare(one, ranks) == "");
    CHECK(compare_memory(deep(), plan, ranks) == "");
  };
  for (const int group : {2, 4, 6}) {
    check(R"(["pipe", 2])", R"("schedule": "1f1b")", grouped(group));
  }
  for (const char* schedule : {"gpipe", "interleaved", "zb1p", "zbv", "dualpipe_v"}) {
    check(R"(["pipe", 2])", fmt::format(R"("schedule": "{}")", schedule), grouped(6));
  }
  check(R"(["pipe", 2])", "", R"("kept": ["blocks.1", "blocks.4"])");
  check(R"(["pipe", 2])", "", grouped(4) + R"(, "keep": ["mm", "attention"])");
  check(R"(["pipe", 2])", "", grouped(4) + R"(, "kept_microbatches": 1)");
  check(R"(["tensor", 2], ["pipe", 2])", "", grouped(6));
}

TEST_CASE("a region that crosses a stage's start still saves memory") {
  const std::string axes = R"(["pipe", 2])";
  const auto none = highest_peak(plan_for(axes, "", "")),
             whole = highest_peak(plan_for(axes, "", grouped(6))),
             thirds = highest_peak(plan_for(axes, "", grouped(3)));
  CHECK(whole < none);
  // Each stage has three blocks, so a region of all six is one of three on each stage.
  CHECK(whole == thirds);
}

TEST_CASE("without parts, the activations that cross a stage's start are recomputed") {
  const auto plan = plan_for(R"(["pipe", 2])", "", grouped(6));
  const auto& graph = deep().graph;
  const auto cut = compile::recompute(graph, plan.recompute, plan::parts_of(graph, plan.pipeline));
  const auto uncut = compile::recompute(graph, plan.recompute);
  CHECK(cut.nodes.size() < uncut.nodes.size());
}

}  // namespace perigee::parity
