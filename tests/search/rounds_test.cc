// Steps of pipelines whose stages run in rounds, and parts without a block.
#include "search/model/pipeline/rounds.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/search/support_search.h"

using namespace perigee;
using Json = nlohmann::json;
using search::ChainPlanner;
using search::Choice;
using search::cluster;
using search::PartTimes;

namespace {

Choice rounds_pipeline(const std::string& schedule, int64_t stages, int64_t chunks,
                       int64_t microbatches) {
  return {.pipe = stages, .microbatches = microbatches, .schedule = schedule, .chunks = chunks};
}

}  // namespace

TEST_CASE("steps of identical parts take the time of their schedule") {
  search::Rounds rounds;
  for (const char* name : {"interleaved", "looped_bfs"}) {
    for (const int64_t stages : {2, 3, 4}) {
      for (const int64_t chunks : {2, 3}) {
        // The largest number of microbatches is extrapolated.
        for (const int64_t microbatches : {stages, 2 * stages, 6 * stages}) {
          // Messages that passes hide, and longer ones, whose waits do not repeat in each round.
          for (const double transfer : {0.0, 0.2, 4.0}) {
            if (transfer > 1 && microbatches > 3 * stages) continue;
            const auto choice = rounds_pipeline(name, stages, chunks, microbatches);
            ScheduleOptions options{.name = name,
                                    .stages = int(stages),
                                    .microbatches = int(microbatches),
                                    .chunks = int(chunks)};
            options.forward = double(chunks), options.backward = 2.0 * double(chunks);
            options.wgrad = 0, options.transfer = transfer;
            const std::vector<PartTimes> parts(size_t(stages * chunks), {1, 2, 0});
            CAPTURE(name, stages, chunks, microbatches, transfer);
            CHECK(rounds.seconds(choice, parts, transfer) ==
                  Approx(make_schedule(options).makespan));
          }
        }
      }
    }
  }
}

TEST_CASE("a longer part delays other stages, and recomputation is hidden") {
  search::Rounds rounds;
  const auto choice = rounds_pipeline("interleaved", 4, 4, 16);
  std::vector<PartTimes> parts(16, {1, 2, 0});
  const double homogeneous = rounds.seconds(choice, parts, 0);
  auto last = parts;
  last.back() = {1.2, 2.4, 0};
  const double once = rounds.seconds(choice, last, 0);
  // The step grows by the longer part's own time; the other stages hide the delay.
  CHECK(once > homogeneous);
  CHECK(once < homogeneous + 1.5 * 16 * 0.6);
  // A longer round and a shorter one cost more than rounds of equal length.
  auto uneven = parts;
  for (int part = 4; part < 8; ++part) uneven[part] = {2, 4, 0};
  for (int part = 8; part < 12; ++part) uneven[part] = {0.1, 0.2, 0};
  CHECK(rounds.seconds(choice, uneven, 0) > 1.05 * homogeneous);
  auto recomputing = parts;
  for (auto& part : recomputing) part.recomputed = 0.5;
  CHECK(rounds.seconds(choice, recomputing, 0) < homogeneous - 1);
}

TEST_CASE("in-flight microbatches of the first and the last part are counted separately") {
  search::Rounds rounds;
  // The last part's forward pass is followed by its backward pass.
  const auto choice = rounds_pipeline("interleaved", 4, 4, 16);
  CHECK(rounds.in_flight(choice, false).first == 1);
  const auto [first, others] = rounds.in_flight(choice, true);
  // The stage runs (4 - 1) * 4 + 2 * 3 forward passes ahead, and parts share a frame.
  CHECK(first + others >= 19);
  CHECK(first <= 16);
  CHECK(others < 19);
  const auto all = rounds.in_flight(rounds_pipeline("looped_bfs", 4, 3, 10), true);
  CHECK(all.first == 10);
  CHECK(all.second == 20);
}

TEST_CASE("the first part and the last need no block where they have parameters") {
  const auto on = cluster(2);
  const Json pins{{"pipe", 2},  {"schedule", "interleaved"}, {"chunks", 4},
                  {"micro", 1}, {"checkpoint", false},       {"zero", 0}};
  ChainPlanner planner({.blocks = 6, .batch = 8, .head = true}, 2);
  const auto list = planner.candidates(on, pins);
  REQUIRE(list.size() == 1);
  CHECK(list[0].choice.starts == std::vector<std::string>{"blocks.0", "blocks.1", "blocks.2",
                                                          "blocks.3", "blocks.4", "blocks.5",
                                                          "head"});
  double peak = 0;
  const auto simulated = planner.judge(list[0], on, peak);
  CHECK(list[0].estimate.seconds == Approx(simulated.step_seconds).epsilon(0.1));
  CHECK(list[0].estimate.bytes == Approx(peak).epsilon(0.15));
  // The other chain's epilogue is the loss, without parameters.
  ChainPlanner without_head({.blocks = 6, .batch = 8}, 2);
  CHECK_THROWS_WITH(without_head.candidates(on, pins),
                    Catch::Contains("2 stages of 4 parts need 8 blocks"));
  // The search considers 4 chunks also without the pin.
  auto open = pins;
  open.erase("chunks");
  open.erase("schedule");
  int64_t most = 0;
  for (const auto& one : planner.candidates(on, open)) most = std::max(most, one.choice.chunks);
  CHECK(most == 4);
}

TEST_CASE("parts without a block may be pinned where stages have several parts") {
  const auto on = cluster(2);
  ChainPlanner planner({.blocks = 6, .batch = 8, .head = true}, 2);
  const auto list = planner.candidates(
      on, {{"starts", {"blocks.0", "blocks.3", "head"}}, {"schedule", "interleaved"}, {"pipe", 2}});
  REQUIRE_FALSE(list.empty());
  CHECK(list[0].choice.chunks == 2);
  CHECK(list[0].estimate.cuts == std::vector<int>{0, 3, 6});
  double peak = 0;
  CHECK(planner.judge(list[0], on, peak).step_seconds > 0);
  CHECK_THROWS_WITH(
      planner.candidates(on, {{"starts", {"blocks.0"}}, {"pipe", 2}, {"checkpoint", false}}),
      Catch::Contains("starts leaves the first or the last part without a block"));
}
