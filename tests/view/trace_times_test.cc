// Where the time of a traced step went.
#include "view/trace_times.h"

#include <catch2/catch.hpp>

#include "compile/timeline.h"
#include "tests/support/temporary_folder.h"

namespace perigee::view {
namespace {

using compile::Interval;
using nlohmann::json;

// Times in microseconds, as nanoseconds of a clock that began earlier.
Interval interval(const std::string& op, int32_t stream, int64_t begin, int64_t end) {
  return {.name = op,
          .scope = "net",
          .stream = stream,
          .begin = 5000 + 1000 * begin,
          .end = 5000 + 1000 * end};
}

std::string trace_of(const std::vector<Interval>& intervals, int64_t rank) {
  return compile::chrome_trace(intervals, rank, {compile::Stream::compute()}, 5000);
}

}  // namespace

TEST_CASE("a step's time is split into compute, exposed communication and idle time") {
  const auto trace = compile::join_traces(
      {trace_of(
           {interval("mm", 0, 0, 40), interval("reduce", 1, 30, 70), interval("add", 0, 60, 80)},
           0),
       trace_of(
           {interval("mm", 0, 0, 10), interval("mul", 0, 10, 90), interval("send", 1, 95, 100)},
           1)});
  const auto times = trace_times(trace);
  CHECK(times["seconds"].get<double>() == Approx(100e-6));
  const auto check = [&](size_t rank, double compute, double exposed, double hidden, double idle) {
    const auto& of = times["ranks"][rank];
    INFO(of.dump());
    CHECK(of["rank"] == rank);
    CHECK(of["compute"].get<double>() == Approx(1e-6 * compute));
    CHECK(of["exposed"].get<double>() == Approx(1e-6 * exposed));
    CHECK(of["hidden"].get<double>() == Approx(1e-6 * hidden));
    CHECK(of["idle"].get<double>() == Approx(1e-6 * idle));
  };
  check(0, 60, 20, 20, 20);
  check(1, 90, 5, 0, 5);
}

TEST_CASE("the longest gaps of the compute stream are listed with the ops around them") {
  const auto times = trace_times(trace_of({interval("mm", 0, 5, 40), interval("reduce", 1, 30, 70),
                                           interval("add", 0, 60, 80), interval("late", 0, 90, 91)},
                                          0));
  const auto& gaps = times["gaps"];
  REQUIRE(gaps.size() == 2);  // the step begins with the first event
  CHECK(gaps[0]["seconds"].get<double>() == Approx(20e-6));
  CHECK(gaps[0]["begin"].get<double>() == Approx(35e-6));
  CHECK(gaps[0]["kind"] == "exposed");
  CHECK(gaps[0]["after"] == "mm in net");
  CHECK(gaps[0]["before"] == "add in net");
  CHECK(gaps[1]["kind"] == "idle");
  CHECK(gaps[1]["before"] == "late in net");
  std::vector<Interval> many;
  for (int64_t k = 0; k < 30; ++k) many.push_back(interval("op", 0, 10 * k, 10 * k + 5));
  CHECK(trace_times(trace_of(many, 0))["gaps"].size() == 10);
}

TEST_CASE("a text that is no trace is refused, and an empty trace has no ranks") {
  CHECK_THAT(test::error_of([] { trace_times("{\"traceEvents\":[{\"ph\":\"X\"}]}"); }),
             Catch::StartsWith("[trace] a trace has Chrome trace events"));
  CHECK_THAT(test::error_of([] { trace_times("{"); }), Catch::StartsWith("[trace]"));
  CHECK(trace_times(trace_of({}, 0))["ranks"].empty());
}

}  // namespace perigee::view
