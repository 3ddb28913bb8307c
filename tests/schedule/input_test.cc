#include <fmt/format.h>
#include <rapidcheck.h>

#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"
#include "tests/schedule/support.h"

using namespace perigee;
using perigee::testing::violation;

namespace {

std::string error(const ScheduleOptions& options) {
  try {
    make_schedule(options);
  } catch (const Error& e) {
    CHECK(e.status() == Status::invalid);
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("an unknown schedule is an error with the nearest name and all names") {
  CHECK(error({.name = "zbw"}) ==
        "[schedule] unknown schedule \"zbw\", did you mean \"zbv\"?; there are gpipe, 1f1b, "
        "interleaved, eager_1f1b, zb1p, zb2p, zbv, v_half, v_min, dualpipe_v, looped_bfs");
}

TEST_CASE("counts without a schedule are an error with the valid counts") {
  CHECK(error({.name = "gpipe", .stages = 0}) == "[schedule] stages must be at least 1, but got 0");
  CHECK(error({.name = "gpipe", .microbatches = -2}) ==
        "[schedule] microbatches must be at least 1, but got -2");
  CHECK(error({.name = "interleaved", .stages = 4, .microbatches = 6}) ==
        "[schedule] interleaved with 4 stages and groups of 4 exists for microbatches that are a "
        "multiple of 4, but got 6");
  CHECK(error({.name = "interleaved", .stages = 4, .microbatches = 11, .group = 8}) ==
        "[schedule] interleaved with 4 stages and groups of 8 exists for microbatches that are a "
        "multiple of 8 or leave at least 4 over, but got 11");
  CHECK(error({.name = "interleaved", .stages = 4, .microbatches = 2}) ==
        "[schedule] interleaved with 4 stages exists for at least 4 microbatches, but got 2");
  for (const int group : {-1, 0, 3, 9}) {
    CHECK(
        error({.name = "interleaved", .stages = 4, .microbatches = 8, .group = group}) ==
        fmt::format("[schedule] interleaved with 4 stages and 8 microbatches exists for a group of "
                    "4 to 8, but got {}",
                    group));
  }
  CHECK(error({.name = "dualpipe_v", .stages = 4, .microbatches = 7}) ==
        "[schedule] dualpipe_v with 4 stages exists for at least 8 microbatches, but got 7");
  CHECK(error({.name = "v_min", .stages = 3, .microbatches = 8}) ==
        "[schedule] v_min exists for at least 4 stages, but got 3");
  CHECK(error({.name = "zbv", .chunks = 3}) == "[schedule] zbv has 2 chunks per stage, but got 3");
  CHECK(error({.name = "zb1p", .chunks = 2}) == "[schedule] zb1p has 1 chunk per stage, but got 2");
  CHECK(error({.name = "looped_bfs", .chunks = 0}) ==
        "[schedule] chunks must be at least 1, but got 0");
  CHECK(
      error({.name = "gpipe", .stages = 100'000, .microbatches = 100'000}) ==
      "[schedule] stages * microbatches * chunks must be at most 4194304, but got 100000 * 100000 "
      "* 1");
}

TEST_CASE("options of other schedules are errors") {
  CHECK(error({.name = "1f1b", .group = 2}) ==
        "[schedule] only interleaved has a group, but got group 2 for 1f1b");
  CHECK(error({.name = "gpipe", .extra = 1}) ==
        "[schedule] only 1f1b has extra, but got extra 1 for gpipe");
  CHECK(error({.name = "1f1b", .extra = -1}) == "[schedule] extra must be at least 0, but got -1");
}

TEST_CASE("costs must be finite and not negative") {
  CHECK(error({.forward = -1}) ==
        "[schedule] forward must be a finite number of at least 0, but got -1");
  CHECK(error({.transfer = std::numeric_limits<double>::infinity()}) ==
        "[schedule] transfer must be a finite number of at least 0, but got inf");
  CHECK(error({.wgrad = std::numeric_limits<double>::quiet_NaN()}) ==
        "[schedule] wgrad must be a finite number of at least 0, but got nan");
  CHECK(error({.forward = 1e308}) ==
        "[schedule] forward must be at most 1000000000000000, but got 1e+308");
  CHECK(error({.forward = 0, .backward = 0, .wgrad = 0}) ==
        "[schedule] forward, backward and wgrad must not all be 0");
}

TEST_CASE("a memory limit that is too small is an error with the needed memory") {
  CHECK(
      error({.name = "1f1b", .stages = 4, .microbatches = 8, .memory_limit = 3}) ==
      "[schedule] 1f1b with 4 stages and 8 microbatches holds 4 in flight, but got memory-limit 3");
  CHECK(error({.name = "zbv", .stages = 4, .microbatches = 8, .memory_limit = 0.5}) ==
        "[schedule] zbv holds at least 1 microbatch per stage, but got memory-limit 0.5");
  CHECK(error({.name = "zb1p", .stages = 4, .microbatches = 8, .memory_limit = 0}) ==
        "[schedule] zb1p holds at least 1 microbatch per stage, but got memory-limit 0");
  CHECK(error({.name = "1f1b", .stages = 4, .microbatches = 8, .memory_limit = 4}) == "no error");
}

TEST_CASE("any counts and costs give a legal schedule or an error") {
  const bool held = rc::check("legal or refused", [] {
    const auto names = schedule_names();
    ScheduleOptions o;
    o.name = names[*rc::gen::inRange<size_t>(0, names.size())];
    o.stages = *rc::gen::inRange(1, 10);
    o.microbatches = *rc::gen::inRange(1, 30);
    if (o.name == "interleaved" || o.name == "looped_bfs") {
      if (*rc::gen::arbitrary<bool>()) o.chunks = *rc::gen::inRange(1, 5);
    }
    if (o.name == "interleaved" && *rc::gen::arbitrary<bool>()) {
      o.group = *rc::gen::inRange(1, 12);
    }
    if (o.name == "1f1b") o.extra = *rc::gen::inRange(0, 4);
    o.forward = *rc::gen::inRange(1, 40) / 8.0;
    o.backward = *rc::gen::inRange(0, 40) / 7.0;
    o.wgrad = *rc::gen::inRange(0, 40) / 9.0;
    o.transfer = *rc::gen::inRange(0, 16) / 10.0;
    if (*rc::gen::inRange(0, 4) == 0) o.memory_limit = *rc::gen::inRange(1, 20) / 2.0;
    try {
      const auto schedule = make_schedule(o);
      const auto wrong = violation(o, schedule);
      if (!wrong.empty()) RC_LOG() << o.name << ": " << wrong << "\n" << to_text(schedule);
      RC_ASSERT(wrong.empty());
    } catch (const Error& e) {
      RC_LOG() << e.what() << "\n";
      // These exist for all counts; only a memory limit can refuse them.
      const bool always = o.name == "gpipe" || o.name == "1f1b" || o.name == "eager_1f1b" ||
                          o.name == "looped_bfs" || o.name == "zb1p" || o.name == "zb2p" ||
                          o.name == "zbv" || o.name == "v_half";
      RC_ASSERT(!always || o.memory_limit.has_value());
    }
  });
  CHECK(held);
}
