// The cut of blocks into homogeneous stages, and the lower bound of all cuts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "base/error.h"
#include "tests/search/support_search.h"

using namespace perigee;
using search::ChainPlanner;
using search::cluster;
using Json = nlohmann::json;

namespace {

// Returns all lists of first blocks of `parts` further parts, at or after block `from`.
std::vector<std::vector<std::string>> all_starts(int64_t blocks, int64_t parts, int64_t from = 1) {
  if (parts == 0) return {{}};
  std::vector<std::vector<std::string>> all;
  for (int64_t block = from; block < blocks; ++block) {
    for (auto& rest : all_starts(blocks, parts - 1, block + 1)) {
      rest.insert(rest.begin(), "blocks." + std::to_string(block));
      all.push_back(std::move(rest));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("no cut into stages is faster than the chosen one for any number of microbatches") {
  constexpr int64_t kBlocks = 6;
  std::set<int64_t> microbatches;
  for (const int64_t pipe : {2, 3}) {
    for (const int64_t data : {1, 2}) {
      ChainPlanner planner({.blocks = kBlocks, .batch = 16, .width = 128}, pipe * data);
      const auto on = cluster(pipe * data);
      Json pins{{"submeshes", false}, {"pipe", pipe}, {"data", data},
                {"offload", false},   {"every", 1},   {"chunks", 1}};
      const auto taken = planner.candidates(on, pins);
      std::map<std::string, double> least;
      for (const auto& starts : all_starts(kBlocks, pipe - 1)) {
        pins["starts"] = starts;
        for (const auto& candidate : planner.candidates(on, pins)) {
          auto& seconds = least
                              .try_emplace(search::to_string(candidate.choice),
                                           candidate.estimate.seconds)
                              .first->second;
          seconds = std::min(seconds, candidate.estimate.seconds);
        }
      }
      CHECK(taken.size() == least.size());
      for (const auto& candidate : taken) {
        const auto name = search::to_string(candidate.choice);
        CAPTURE(name);
        CHECK(candidate.estimate.seconds == Approx(least.at(name)).epsilon(1e-9));
        CHECK(candidate.estimate.lower_bound <= least.at(name) * (1 + 1e-9));
        microbatches.insert(candidate.choice.microbatches);
      }
    }
  }
  CHECK(microbatches == std::set<int64_t>{1, 2, 4, 8, 16});
}

TEST_CASE("no combination is faster than the lower bound of a search") {
  for (const int64_t world : {2, 4}) {
    ChainPlanner planner({.blocks = 4, .batch = 8, .width = 128}, world);
    const auto on = cluster(world);
    const auto found = planner.find(on);
    const auto all = planner.candidates(on, Json::object());
    CHECK(found.lower_bound <= all.front().estimate.seconds * (1 + 1e-9));
    CHECK(found.lower_bound > 0.5 * all.front().estimate.seconds);
    for (const auto& one : all) {
      CHECK(one.estimate.lower_bound <= one.estimate.seconds * (1 + 1e-9));
      CHECK(found.lower_bound <= one.estimate.lower_bound * (1 + 1e-9));
    }
  }
}

TEST_CASE("the bound of a search holds for cuts that it did not look at") {
  ChainPlanner planner({.blocks = 13, .batch = 8, .width = 128, .head = true}, 4);
  const auto on = cluster(4);
  planner.request.pins = search::parse_pins(
      {{"submeshes", false}, {"pipe", 4}, {"offload", false}, {"checkpoint", false}});
  const auto found = planner.find(on);
  const auto least = std::ranges::min(found.others, {},
                                      [](const auto& one) { return one.estimate.lower_bound; });
  // It proves less than the best time, since cuts are left.
  REQUIRE(least.estimate.lower_bound < found.others.front().estimate.seconds * (1 - 1e-6));
  CHECK(found.lower_bound == least.estimate.lower_bound);
}

TEST_CASE("temporary memory of the optimizer does not reduce the room for activations") {
  // No activations exist while the optimizer steps: the peak is the larger of the two, not
  // their sum.
  for (const std::string schedule : {"1f1b", "eager_1f1b", "gpipe", "zb1p"}) {
    ChainPlanner planner({.blocks = 8, .batch = 32, .width = 256}, 4);
    Json pins{{"submeshes", false}, {"pipe", 4},           {"micro", 2},          {"zero", 0},
              {"offload", false},   {"checkpoint", false}, {"schedule", schedule}};
    const auto saved = planner.candidates(cluster(4), pins).front().estimate;
    pins["optimizer_transient"] = 8.0;
    const auto rich = planner.candidates(cluster(4), pins).front().estimate;
    CHECK(rich.bytes > 1.5 * saved.bytes);
    pins["memory"] = rich.bytes;
    CAPTURE(schedule);
    CHECK(planner.candidates(cluster(4), pins).front().estimate.seconds == rich.seconds);
    pins["memory"] = 0.999 * rich.bytes;
    CHECK_THROWS_WITH(planner.candidates(cluster(4), pins), Catch::Contains("no plan fits"));
  }
  ChainPlanner planner({.blocks = 8, .batch = 32, .width = 256}, 1);
  Json pins{{"micro", 32}, {"offload", false}, {"optimizer_transient", 8.0}, {"solver", "labels"}};
  pins["memory"] = planner.candidates(cluster(1), pins).front().estimate.bytes;
  CHECK(planner.candidates(cluster(1), pins).front().choice.recomputed_blocks.empty());
  pins["memory"] = 0.999 * pins["memory"].get<double>();
  CHECK_THROWS_WITH(planner.candidates(cluster(1), pins), Catch::Contains("no plan fits"));
}
