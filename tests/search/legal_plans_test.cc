// The plan that a search finds, against every legal plan, each of which is compiled and simulated.
#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "schedule/schedule.h"
#include "search/search.h"
#include "search/space/submeshes.h"
#include "tests/search/support_search.h"

using namespace perigee;
using search::ChainPlanner;
using search::cluster;

namespace {

// Compares the found plan with all legal plans, for every `step`-th of 20 pairs of model and cluster
// from `first` on.
void judge_all_plans(size_t first, size_t step) {
  struct Pair {
    search::Chain shape;
    int64_t world;
    double bandwidth = 1e9;  // of links, bytes per second
    double memory = 1;       // limit, as a share of the peak of plain data parallelism
  };
  std::vector<Pair> pairs;
  for (const int64_t width : {64, 512}) {
    for (const int64_t world : {2, 3, 4, 6}) {
      pairs.push_back({{.blocks = 4, .batch = world % 3 == 0 ? 12 : 8, .width = width}, world});
    }
  }
  for (const double bandwidth : {1e8, 1e10}) {
    for (const int64_t world : {2, 3, 4}) {
      pairs.push_back(
          {{.blocks = world == 4 ? 8 : 6, .batch = 12, .width = 256}, world, bandwidth});
    }
  }
  for (const double memory : {0.9, 0.7}) {
    for (const int64_t world : {2, 3, 4}) {
      pairs.push_back({{.blocks = 6, .batch = 24, .width = 128}, world, 1e9, memory});
    }
  }
  CHECK(pairs.size() == 20);
  std::set<std::string> judged;  // schedules
  for (size_t k = first; k < pairs.size(); k += step) {
    const auto& [shape, world, bandwidth, memory] = pairs[k];
    ChainPlanner planner(shape, world);
    auto on = cluster(world);
    on.links.front().bandwidth = bandwidth;
    if (memory < 1) {
      planner.request.pins = search::parse_pins({{"data", world}, {"zero", 0}});
      planner.request.memory_limit = memory * planner.find(on).best.peak_bytes;
      planner.request.pins = {};
    }
    const auto found = planner.find(on);
    CHECK(found.best.judged);
    CHECK(found.plan.mesh.size() == world);
    CHECK(found.plan.prediction.step_seconds == found.best.seconds);
    double best = found.best.seconds;
    std::string which;
    int legal = 0;
    // Without a limit the model excludes no combination; the peak of the programs decides.
    const auto limit = planner.request.memory_limit;
    planner.request.memory_limit = 0;
    const auto judge_all = [&](const nlohmann::json& pins, size_t most) {
      planner.request.pins = search::parse_pins(pins);
      for (const auto& candidate :
           search::candidates(planner.request, on, planner.none, planner.traces, most)) {
        try {
          double peak = 0;
          const double seconds = planner.judge(candidate, on, peak).step_seconds;
          if (limit > 0 && peak > limit) continue;
          ++legal;
          judged.insert(candidate.choice.schedule);
          if (seconds < best) {
            best = seconds;
            which = search::to_string(candidate.choice);
          }
        } catch (const Error&) {
        }
      }
    };
    judge_all({{"submeshes", false}}, 100000);
    // Unequal submeshes: all combinations for three ranks, else the best four of each row.
    const search::RowOptions rows{
        .ranks = world, .most_stages = shape.blocks, .node = world, .batch = shape.batch};
    for (const auto& row : search::rows_of_submeshes(rows)) {
      auto list = nlohmann::json::array();
      for (const auto& [tensor, data] : row) {
        list.push_back(nlohmann::json::array(
            {nlohmann::json::array({"tensor", tensor}), nlohmann::json::array({"data", data})}));
      }
      judge_all({{"submeshes", list}}, world == 3 ? 100000 : 4);
    }
    CAPTURE(shape.blocks, shape.width, world, bandwidth, memory, legal);
    CAPTURE(search::to_string(found.best.choice), which);
    CHECK(legal > 10);
    CHECK(found.best.seconds <= 1.02 * best);
  }
  // All schedules except gpipe, which is never faster than eager_1f1b.
  CHECK(judged.size() == schedule_names().size() - 1);
}

}  // namespace

TEST_CASE("the simulated step of the found plan is within 2% of the best of all legal plans") {
  judge_all_plans(2, 4);
}

TEST_CASE("the found plan is within 2% of the best of all legal plans of 20 models and clusters",
          "[.long]") {
  judge_all_plans(0, 1);
}
