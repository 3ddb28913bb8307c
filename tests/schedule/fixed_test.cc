#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/schedule/support.h"

using namespace perigee;
using perigee::testing::violation;
using perigee::testing::words;

namespace {

Schedule legal(const ScheduleOptions& options) {
  auto schedule = make_schedule(options);
  INFO(options.name << " " << options.stages << " " << options.microbatches);
  CHECK(violation(options, schedule) == "");
  return schedule;
}

}  // namespace

TEST_CASE("1f1b with two stages and two microbatches prints the example of the format's page") {
  const auto schedule = legal({.name = "1f1b", .stages = 2, .microbatches = 2});
  CHECK(to_json(schedule) ==
        "{\"format\":\"perigee.schedule/"
        "1\",\"name\":\"1f1b\",\"stages\":2,\"microbatches\":2,\"chunks\":1,"
        "\"orders\":[[\"F0.0\",\"F1.0\",\"B0.0\",\"B1.0\"],[\"F0.0\",\"B0.0\",\"F1.0\",\"B1.0\"]],"
        "\"start\":[[0.0,1.0,4.0,7.0],[1.0,2.0,4.0,5.0]],\"makespan\":9.0,\"span\":[9.0,6.0],"
        "\"idle\":[3.0,0.0],\"peak_in_flight\":[2.0,1.0],\"parts\":[[0],[1]],"
        "\"bubble_ratio\":0.33333333333333337}\n");
  CHECK(to_text(schedule) ==
        "1f1b: 2 stages, 2 microbatches, 1 chunk per stage\n\n"
        "stage 0 |F0 F1       B0       B1\n"
        "stage 1 |   F0 B0    F1 B1\n\n"
        "F forward, B backward (input gradient where W follows), W weight gradient\n"
        "stage         span         idle peak in flight  parts\n"
        "    0            9            3              2  0\n"
        "    1            6            0              1  1\n"
        "makespan 9, longest span 9, bubble ratio 0.3333 (1 - busy / makespan)\n");
}

TEST_CASE("a split backward prints B and W, the V schedules list their parts") {
  const auto json = nlohmann::json::parse(
      to_json(legal({.name = "zbv", .stages = 1, .microbatches = 1})));
  CHECK(json["orders"][0] == nlohmann::json({"F0.0", "F0.1", "B0.1", "B0.0", "W0.1", "W0.0"}));
  CHECK(json["makespan"] == 3.0);
  CHECK(json["chunks"] == 2);
  const auto parts = legal({.name = "v_half", .stages = 3, .microbatches = 4}).parts;
  CHECK(parts == std::vector<std::vector<int>>{{0, 5}, {1, 4}, {2, 3}});
  const auto looped = legal({.name = "looped_bfs", .stages = 2, .microbatches = 2, .chunks = 3});
  CHECK(looped.parts == std::vector<std::vector<int>>{{0, 2, 4}, {1, 3, 5}});
  CHECK(to_text(looped).find("F0.2") != std::string::npos);
}

TEST_CASE("gpipe, 1f1b and eager_1f1b have the same makespan and the published peaks") {
  for (const int p : {1, 2, 4, 7}) {
    for (const int m : {1, 2, 5, 8, 20}) {
      for (const double w : {0.0, 1.0, 2.5}) {
        ScheduleOptions o{.name = "gpipe", .stages = p, .microbatches = m};
        o.forward = 2;
        o.backward = 1.5;
        o.wgrad = w;
        const double makespan = (m + p - 1) * (2 + 1.5 + w);
        for (const auto* name : {"gpipe", "1f1b", "eager_1f1b"}) {
          o.name = name;
          const auto schedule = legal(o);
          CHECK(schedule.makespan == Approx(makespan).epsilon(1e-12));
          for (int s = 0; s < p; ++s) {
            const int peak = o.name == "gpipe"  ? m
                             : o.name == "1f1b" ? std::min(m, p - s)
                                                : std::min(m, 2 * (p - s) - 1);
            CHECK(schedule.peak_in_flight[s] == peak);
          }
        }
      }
    }
  }
}

TEST_CASE("1f1b with extra K holds K more microbatches") {
  for (const int extra : {0, 1, 3}) {
    const auto schedule = legal({.name = "1f1b", .stages = 4, .microbatches = 6, .extra = extra});
    for (int s = 0; s < 4; ++s) {
      CHECK(schedule.peak_in_flight[s] == std::min(6, 4 - s + extra));
    }
    CHECK(schedule.makespan == 27);
  }
}

TEST_CASE("eager_1f1b hides transfers that 1f1b waits for") {
  ScheduleOptions o{.name = "1f1b", .stages = 4, .microbatches = 16, .transfer = 0.5};
  const double plain = legal(o).makespan;
  o.name = "eager_1f1b";
  const double eager = legal(o).makespan;
  // Only the transfers of the first forward and the last backward pass are exposed.
  CHECK(eager == Approx(19 * 3 + 6 * 0.5));
  CHECK(eager < plain);
}

TEST_CASE("interleaved divides 1f1b's bubble by the number of chunks") {
  for (const int p : {2, 4, 8}) {
    for (const int v : {1, 2, 3, 4}) {
      for (const int k : {1, 2, 5}) {
        ScheduleOptions o{.name = "interleaved", .stages = p, .microbatches = p * k, .chunks = v};
        o.backward = 1.5;
        const auto schedule = legal(o);
        CHECK(schedule.makespan == Approx((p * k + (p - 1.0) / v) * 3.5).epsilon(1e-12));
        // Chunks in flight: Megatron's warm-up and one more.
        for (int s = 0; s < p; ++s) {
          const int held = std::min(p * k * v, 2 * (p - 1 - s) + (v - 1) * p + 1);
          CHECK(schedule.peak_in_flight[s] == Approx(held / double(v)));
        }
      }
    }
  }
  // A group larger than the stages, and a last group that is smaller.
  legal({.name = "interleaved", .stages = 3, .microbatches = 8, .chunks = 2, .group = 5});
  legal({.name = "interleaved", .stages = 3, .microbatches = 8, .chunks = 3, .group = 8});
}

TEST_CASE("looped_bfs runs chunk by chunk, and the backward passes in the reverse order") {
  const auto schedule = legal({.name = "looped_bfs", .stages = 2, .microbatches = 2, .chunks = 2});
  for (const auto& order : schedule.orders) {
    CHECK(words(order) == "F0.0 F1.0 F0.1 F1.1 B1.1 B0.1 B1.0 B0.0");
  }
  for (const int p : {2, 4}) {
    for (const int v : {1, 2, 4}) {
      const auto s = legal({.name = "looped_bfs", .stages = p, .microbatches = 2 * p, .chunks = v});
      CHECK(s.makespan == Approx((2 * p + (p - 1.0) / v) * 3).epsilon(1e-12));
      for (const double peak : s.peak_in_flight) CHECK(peak == 2 * p);
    }
  }
}

TEST_CASE("the checker catches a broken schedule") {
  const ScheduleOptions o{.name = "zb1p", .stages = 3, .microbatches = 4};
  const auto good = make_schedule(o);
  CHECK(violation(o, good) == "");

  auto broken = good;
  std::swap(broken.orders[0].front(), broken.orders[0].back());
  CHECK(violation(o, broken) != "");
  broken = good;
  broken.orders[1].pop_back();
  broken.start[1].pop_back();
  CHECK(violation(o, broken) == "stage 1: microbatch 3 chunk 0 has not each op once");
  broken = good;
  broken.orders[2][0] = broken.orders[2][2];
  CHECK(violation(o, broken) != "");
  broken = good;
  broken.start[2][1] += 0.5;
  CHECK(violation(o, broken) != "");
  broken = good;
  broken.makespan -= 1;
  CHECK(violation(o, broken) == "makespan");
  broken = good;
  broken.idle[0] += 1;
  CHECK(violation(o, broken) == "stage 0: idle");
  // gpipe's order breaks zb1p's cap.
  broken = make_schedule({.name = "gpipe", .stages = 3, .microbatches = 4});
  broken.name = "zb1p";
  CHECK(violation(o, broken) == "stage 0: holds 4, at most 3");
}
