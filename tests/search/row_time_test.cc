// Heterogeneous pipelines, timed section by section.
#include "search/model/pipeline/row_time.h"

#include <catch2/catch.hpp>

using perigee::search::RowStage;
using perigee::search::time_row;

TEST_CASE("identical stages take as long as their schedule's closed form") {
  for (const auto* schedule : {"1f1b", "eager_1f1b", "gpipe"}) {
    for (const int64_t stages : {1, 2, 3, 5}) {
      for (const int64_t microbatches : {1, 2, 6, 100, 1000}) {
        if (schedule == std::string("gpipe") && microbatches > 100) continue;
        const std::vector<RowStage> row(static_cast<size_t>(stages), {.forward = 1, .backward = 2});
        const auto times = time_row(schedule, row, microbatches);
        CAPTURE(schedule, stages, microbatches);
        CHECK(times.seconds == Approx(3 * (microbatches + stages - 1)));
        for (int64_t s = 0; s < stages; ++s) {
          CHECK(times.ends[static_cast<size_t>(s)] == Approx(times.seconds - 2.0 * double(s)));
        }
      }
    }
  }
}

TEST_CASE("the extrapolated time of many microbatches is at least that of the slowest stage") {
  // The last stage's tail is hidden after more microbatches.
  const RowStage slow{.forward = 32, .backward = 65}, fast{.forward = 1, .backward = 1},
      last{.forward = 3, .backward = 81, .tail = 30};
  const std::vector row{slow, fast, fast, last};
  const double few = time_row("1f1b", row, 16).seconds;
  CHECK(few - time_row("1f1b", row, 8).seconds < 8 * 97);
  CHECK(time_row("1f1b", row, 100).seconds == Approx(few + 84 * 97));
}

TEST_CASE("a fast stage is hidden by an earlier slow one, not by a later one") {
  const RowStage slow{.forward = 1, .backward = 2}, fast{.forward = 0.1, .backward = 0.2};
  CHECK(time_row("1f1b", std::vector{slow, fast}, 10).seconds == Approx(30));
  CHECK(time_row("1f1b", std::vector{fast, slow}, 10).seconds == Approx(30.3));
  CHECK(time_row("1f1b", std::vector{slow, fast}, 1).seconds == Approx(3.3));
  // The fast stage ends before the slow one's last two backward passes.
  CHECK(time_row("1f1b", std::vector{slow, fast}, 10).ends[1] < 28);
}

TEST_CASE("recomputation is hidden while a gradient is sent") {
  const RowStage stage{.forward = 1, .backward = 3, .recomputed = 1};
  // The first stage recomputes while it waits for the second stage's gradient.
  CHECK(time_row("1f1b", std::vector{stage, stage}, 1).seconds == Approx(7));
}

TEST_CASE("messages and other transfers on a link run one after the other") {
  const RowStage first{.forward = 1, .backward = 1, .send_seconds = 3, .return_seconds = 2},
      last{.forward = 1, .backward = 1};
  CHECK(time_row("1f1b", std::vector{first, last}, 1).seconds == Approx(9));
  // The links are the bottleneck: five seconds for each microbatch.
  const auto many = time_row("eager_1f1b", std::vector{first, last}, 200).seconds;
  CHECK(many >= 1000);
  CHECK(many <= 1010);
  auto shared = last;
  shared.forward_links = shared.backward_links = 1;
  const auto more = time_row("eager_1f1b", std::vector{first, shared}, 200).seconds;
  CHECK(more >= 1400);
  CHECK(more <= 1420);
}
