// Closed forms of bubbles against the replay of each schedule's orders, for random counts
// and costs.
#include "schedule/bubble.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

#include "schedule/description.h"
#include "tests/schedule/support.h"

using namespace perigee;
using schedule::Description;
using schedule::PipelineTimes;

namespace {

constexpr double kRounding = 1e-9;

int pick(int least, int most) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(least, most + 1));
}

// A schedule with counts for which it exists, and costs of a stage.
ScheduleOptions random_options() {
  const auto descriptions = schedule::descriptions();
  for (;;) {
    const auto& one = descriptions[static_cast<size_t>(pick(0, int(descriptions.size()) - 1))];
    ScheduleOptions options{.name = one.name, .stages = pick(2, 6), .microbatches = pick(1, 24)};
    options.chunks = one.free_chunks ? pick(2, 4) : one.default_chunks();
    if (!one.exists_for(options.stages, options.microbatches, *options.chunks)) continue;
    options.forward = pick(1, 40) / 8.0;
    options.backward = pick(0, 40) / 7.0;
    options.wgrad = pick(0, 40) / 9.0;
    return options;
  }
}

PipelineTimes times_of(const ScheduleOptions& options) {
  const double chunks = *options.chunks;
  const double pass = options.forward + options.backward + options.wgrad;
  return {.stages = double(options.stages),
          .chunks = chunks,
          .microbatches = double(options.microbatches),
          .forward = options.forward / chunks,
          .backward = options.backward / chunks,
          .weights = options.wgrad / chunks,
          .transfer = options.transfer,
          .all_stages = options.stages * pass,
          .slowest = pass};
}

std::string text(const ScheduleOptions& o) {
  return fmt::format("{} of {} stages, {} microbatches, {} chunks; {} {} {} transfer {}", o.name,
                     o.stages, o.microbatches, *o.chunks, o.forward, o.backward, o.wgrad,
                     o.transfer);
}

// Returns the seconds of the orders beyond a stage's own, after an independent check of the start
// of each op.
double replayed_bubble(const ScheduleOptions& options) {
  const auto made = make_schedule(options);
  RC_ASSERT(perigee::testing::violation(options, made) == "");
  return made.makespan -
         options.microbatches * (options.forward + options.backward + options.wgrad);
}

}  // namespace

TEST_CASE("a closed form is the bubble of the orders, or a lower bound where they are searched") {
  CHECK(rc::check("bubbles without messages", [] {
    const auto options = random_options();
    const auto& described = schedule::describe(options.name);
    const double closed = described.bubble_seconds(times_of(options));
    const double built = replayed_bubble(options);
    RC_LOG() << text(options) << fmt::format(": closed {}, built {}", closed, built);
    const double margin = kRounding * (1 + built);
    RC_ASSERT(closed <= built + margin);
    if (!described.searched) RC_ASSERT(closed >= built - margin);
  }));
}

TEST_CASE("a closed form with messages between stages does not exceed the bubble of the orders") {
  CHECK(rc::check("bubbles with messages", [] {
    auto options = random_options();
    options.transfer = pick(0, 100) / 20.0;
    const double closed = schedule::describe(options.name).bubble_seconds(times_of(options));
    const double built = replayed_bubble(options);
    RC_LOG() << text(options) << fmt::format(": closed {}, built {}", closed, built);
    RC_ASSERT(closed <= built + kRounding * (1 + built));
  }));
}

TEST_CASE("a stage of 1f1b waits for its messages in both directions") {
  const ScheduleOptions options{.name = "1f1b",
                                .stages = 4,
                                .microbatches = 16,
                                .chunks = 1,
                                .forward = 1,
                                .backward = 2,
                                .wgrad = 0,
                                .transfer = 0.5};
  CHECK(schedule::describe("1f1b").bubble_seconds(times_of(options)) ==
        Approx(replayed_bubble(options)));
}

TEST_CASE("messages of interleaved chunks that are longer than a pass wait at the most in flight") {
  for (const int stages : {2, 3}) {
    for (const int chunks : {2, 3}) {
      const ScheduleOptions options{.name = "interleaved",
                                    .stages = stages,
                                    .microbatches = 8 * stages,
                                    .chunks = chunks,
                                    .forward = 1,
                                    .backward = 1,
                                    .wgrad = 0,
                                    .transfer = 4};
      const auto times = times_of(options);
      const double closed = schedule::interleaved_bubble(times);
      const double built = replayed_bubble(options);
      CAPTURE(text(options), closed, built);
      CHECK(closed > schedule::fill_and_drain_bubble(times));
      CHECK(closed <= built * (1 + kRounding));
    }
  }
}

TEST_CASE("the bound of many microbatches in V shape is within a pass of their orders") {
  for (const auto& [name, stages] : {std::pair("v_half", 2), {"zbv", 2}, {"v_min", 4}}) {
    for (const double transfer : {1.0, 4.0}) {
      const ScheduleOptions options{.name = name,
                                    .stages = stages,
                                    .microbatches = 256,
                                    .chunks = 2,
                                    .forward = 1,
                                    .backward = 1,
                                    .wgrad = 0,
                                    .transfer = transfer};
      const double busy = options.microbatches * 2;
      const double closed = busy + schedule::describe(name).bubble_seconds(times_of(options));
      const double built = busy + replayed_bubble(options);
      // All the time the most parts are in flight: the orders keep each for one more pass.
      const double parts = 2 * schedule::describe(name).flight_cap(stages);
      const double one_more = options.microbatches / parts;
      CAPTURE(text(options), closed, one_more, built);
      CHECK(closed > busy);
      CHECK(closed <= built);
      CHECK(closed + one_more >= 0.97 * built);
    }
  }
}

TEST_CASE("a step's bound grows with its stages, and holds whichever stage is the slowest") {
  CHECK(rc::check("monotone bubbles", [] {
    auto options = random_options();
    options.transfer = pick(0, 40) / 20.0;
    const auto& described = schedule::describe(options.name);
    auto times = times_of(options);
    times.recomputed = times.backward * pick(0, 10) / 10;
    const auto step = [&](const PipelineTimes& of) {
      return of.microbatches * of.slowest + described.bubble_seconds(of);
    };
    // Stages that take longer, by exchanges of units or uneven parts.
    auto slower = times;
    slower.all_stages *= 1 + pick(0, 20) / 20.0;
    const double before = described.bubble_seconds(times);
    RC_LOG() << text(options) << " recomputed " << times.recomputed;
    RC_ASSERT(described.bubble_seconds(slower) >= before - kRounding * (1 + before));
    slower.slowest *= 1 + pick(0, 40) / 20.0;
    slower.all_stages = std::max(slower.all_stages, slower.slowest);
    auto slowest = slower;
    slowest.slowest *= 1 + pick(0, 20) / 20.0;
    RC_LOG() << fmt::format("\n{} {} {}", step(times), step(slower), step(slowest));
    RC_ASSERT(step(slowest) >= step(slower) * (1 - kRounding));
    for (double stage = 0; stage < times.stages; ++stage) {
      auto known = slower;
      known.slowest_stage = stage;
      RC_ASSERT(step(slower) <= step(known) * (1 + kRounding));
    }
  }));
}
