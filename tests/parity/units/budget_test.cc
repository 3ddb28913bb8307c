// A memory budget of checkpoint against all sets of regions.
#include <fmt/format.h>

#include <bit>

#include "base/error.h"
#include "exec/op_threads.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::StepSpec;

const StepSpec kSpec{.clip_norm = 0.5};
constexpr const char* kFour =
    "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\ndropout = 0.1\n";

std::string strategy(const std::string& axes, const std::string& checkpoint,
                     int64_t microbatches = 1, const std::string& more = "") {
  return fmt::format(
      R"([["parallel_mode", [{}]], ["gradient_accumulation", {{"microbatches": {}}}],
          ["checkpoint", {}]{}])",
      axes, microbatches, checkpoint, more);
}

int64_t peak_of(const Given& given, const plan::Plan& plan, DryRuns& traces) {
  const auto peaks = compile::predict_memory(given.graph, plan, kSpec, traces).peak_bytes;
  return *std::max_element(peaks.begin(), peaks.end());
}

plan::Plan with_regions(plan::Plan plan, size_t set) {
  std::vector<std::vector<std::string>> regions;
  for (size_t r = 0; r < plan.recompute.regions.size(); ++r) {
    if (set >> r & 1) regions.push_back(plan.recompute.regions[r]);
  }
  plan.recompute.regions = regions;
  return plan;
}

}  // namespace

TEST_CASE("a budget recomputes the fewest of equal blocks that fit") {
  exec::set_op_threads(1);
  torch::manual_seed(3);
  const auto given = built_in(kFour, kRows);
  DryRuns traces;
  const auto all = plan_of(given, strategy(R"(["data", 1])", R"(["blocks.*"])"), kRows);
  REQUIRE(all.recompute.regions.size() == 4);
  std::vector<int64_t> peaks;
  for (size_t set = 0; set < 16; ++set) {
    peaks.push_back(peak_of(given, with_regions(all, set), traces));
  }
  CHECK(peaks[15] < peaks[0]);
  const auto one = train(given, with_regions(all, 0))[0];
  for (const int64_t budget : {peaks[0], peaks[0] - 1, (2 * peaks[0] + peaks[15]) / 3,
                               (peaks[0] + peaks[15]) / 2, peaks[15] + 100, peaks[15]}) {
    INFO("budget " << budget << " of " << peaks[0] << " to " << peaks[15]);
    int least = 5;
    for (size_t set = 0; set < 16; ++set) {
      if (peaks[set] <= budget) least = std::min(least, std::popcount(set));
    }
    const auto asked = plan_of(
        given,
        strategy(R"(["data", 1])", fmt::format(R"({{"1": "blocks.*", "memory": {}}})", budget)),
        kRows);
    CHECK_THROWS_WITH(compile::compile(given.graph, asked, kSpec, 0, traces),
                      Catch::Contains("fit_recompute"));
    const auto plan = compile::fit_recompute(given.graph, asked, kSpec, traces);
    CHECK(plan.recompute.budget_bytes == 0);
    CHECK(static_cast<int>(plan.recompute.regions.size()) == least);
    CHECK(peak_of(given, plan, traces) <= budget);
    CHECK(plan.decisions.size() == asked.decisions.size() + 1);
    CHECK_THAT(plan.decisions.back().sentence, Catch::Contains("to stay within"));
    const auto ranks = train(given, plan);
    CHECK(compare(one, ranks, 0) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
  const auto asked = plan_of(
      given,
      strategy(R"(["data", 1])",
               fmt::format(R"({{"1": "blocks.*", "memory": {}}})", peaks[15] - 7)),
      kRows);
  CHECK_THROWS_WITH(compile::fit_recompute(given.graph, asked, kSpec, traces),
                    Catch::Contains("rank 0 needs") && Catch::Contains(", 7 too many"));
}

TEST_CASE("each stage of a pipeline fits its own budget") {
  exec::set_op_threads(1);
  torch::manual_seed(3);
  const auto given = built_in(kFour, kRows, 4);
  DryRuns traces;
  const std::string axes = R"(["pipe", 2], ["data", 2])",
                    pipeline = R"(, ["pipeline_parallel", {"schedule": "gpipe"}])";
  const auto all = plan_of(given, strategy(axes, R"(["blocks.*"])", 4, pipeline), kRows);
  const auto least = compile::predict_memory(given.graph, all, kSpec, traces).peak_bytes;
  const auto most =
      compile::predict_memory(given.graph, with_regions(all, 0), kSpec, traces).peak_bytes;
  const auto budget = (*std::max_element(least.begin(), least.end()) +
                       *std::max_element(most.begin(), most.end())) /
                      2;
  const auto asked = plan_of(
      given,
      strategy(axes, fmt::format(R"({{"1": "blocks.*", "memory": "{}B"}})", budget), 4, pipeline),
      kRows);
  const auto plan = compile::fit_recompute(given.graph, asked, kSpec, traces);
  CHECK(!plan.recompute.regions.empty());
  CHECK(plan.recompute.regions.size() < 4);
  CHECK(peak_of(given, plan, traces) <= budget);
  CHECK(plan.decisions.size() == asked.decisions.size() + 2);
  CHECK_THAT(plan.decisions.back().sentence, Catch::Contains("on stage 1"));
  const auto ranks = train(given, plan);
  CHECK(compare_memory(given, plan, ranks) == "");
  const auto one = train(
      given,
      with_regions(plan_of(given, strategy(R"(["data", 1])", R"(["blocks.*"])", 4), kRows), 0))[0];
  CHECK(compare(one, ranks) == "");
  auto tight = asked;
  tight.recompute.budget_bytes = *std::max_element(least.begin(), least.end()) - 1;
  CHECK_THROWS_WITH(compile::fit_recompute(given.graph, tight, kSpec, traces),
                    Catch::Contains("stage"));
}

TEST_CASE("a plan lists no kept values of regions that a budget leaves out") {
  exec::set_op_threads(1);
  torch::manual_seed(3);
  const auto given = built_in(kFour, kRows);
  DryRuns traces;
  const std::string config = R"("1": "blocks.*", "keep": ["mm", "attention"], "full_every": 2)";
  const auto all = plan_of(given, strategy(R"(["data", 1])", fmt::format("{{{}}}", config)), kRows);
  const auto budget = (peak_of(given, all, traces) + peak_of(given, with_regions(all, 0), traces)) /
                      2;
  const auto asked = plan_of(
      given, strategy(R"(["data", 1])", fmt::format(R"({{{}, "memory": {}}})", config, budget)),
      kRows);
  const auto plan = compile::fit_recompute(given.graph, asked, kSpec, traces);
  REQUIRE(plan.recompute.regions.size() < 4);
  CHECK(plan.recompute.keep_in.size() < asked.recompute.keep_in.size());
  CHECK(plan.recompute.keep == asked.recompute.keep);
  CHECK_NOTHROW(plan::verify(plan, given.graph));
  CHECK(peak_of(given, plan, traces) <= budget);
}

TEST_CASE("a budget that is not a size is refused") {
  torch::manual_seed(3);
  const auto given = built_in(kMlp, kRows);
  const auto bytes = [&](const char* memory) -> int64_t {
    return plan_of(
               given,
               strategy(R"(["data", 1])", fmt::format(R"({{"1": "**", "memory": {}}})", memory)),
               kRows)
        .recompute.budget_bytes;
  };
  CHECK(bytes("\"40GB\"") == 40'000'000'000);
  CHECK(bytes("\"1.5 KiB\"") == 1536);
  CHECK(bytes("12345") == 12345);
  for (const char* bad : {"\"40 gigs\"", "\"GB\"", "\"-1GB\"", "0", "-3", "true", "[1]"}) {
    INFO(bad);
    CHECK_THROWS_WITH(bytes(bad), Catch::Contains("memory is a number of bytes"));
  }
}

}  // namespace perigee::parity
