// The missing memory of plans with known peaks.
#include "search/shortage.h"

#include <catch2/catch.hpp>
#include <regex>
#include <vector>

#include "base/error.h"
#include "base/text/bytes.h"
#include "simulate/report.h"
#include "tests/search/support_search.h"

using namespace perigee::search;

TEST_CASE("the reported missing memory is sufficient, and within 2% of the least") {
  for (const double guess : {1.0, 90.0, 5000.0}) {
    std::vector<double> tried;
    const auto found = least_missing_memory({.limit = 1000, .guess = guess}, 1e9,
                                            [&](double more) -> std::optional<Fitting> {
                                              tried.push_back(more);
                                              if (more < 777) return std::nullopt;
                                              return Fitting{.extra_bytes = more, .bytes = 1700};
                                            });
    REQUIRE(found);
    CHECK(found->bytes == 1700);
    CHECK(found->extra_bytes >= 777);
    CHECK(found->extra_bytes <= 777 + 0.02 * (1000 + 777) + 1);
    CHECK(std::ranges::count(tried, found->extra_bytes) == 1);
  }
}

TEST_CASE("a search for the missing memory ends at its time limit with the best plan found") {
  const auto fits = [](double more) -> std::optional<Fitting> {
    if (more < 5) return std::nullopt;
    return Fitting{.extra_bytes = more};
  };
  CHECK_FALSE(least_missing_memory({.limit = 10, .guess = 1}, 0, fits));
  // The time limit allows no second attempt.
  const auto found = least_missing_memory({.limit = 10, .guess = 9}, 1e-9, fits);
  REQUIRE(found);
  CHECK(found->extra_bytes == 9);
}

TEST_CASE("a plan that needs more than the tried memory reports the missing memory, too") {
  std::vector<double> tried;
  const auto found = least_missing_memory({.limit = 1000, .guess = 100}, 1e9,
                                          [&](double more) -> std::optional<Fitting> {
                                            tried.push_back(more);
                                            if (more < 300)
                                              return Fitting{.extra_bytes = 900, .bytes = 1900};
                                            return Fitting{.extra_bytes = 310, .bytes = 1310};
                                          });
  REQUIRE(found);
  CHECK(found->extra_bytes == 310);
  CHECK(found->bytes == 1310);
  CHECK(tried.size() < 8);
  CHECK(tried.back() < 310);
}

TEST_CASE("if no plan fits, the error has the missing memory, found with few graphs") {
  using namespace perigee;
  ChainPlanner planner({.blocks = 8, .batch = 64, .width = 32}, 4);
  int64_t graphs = 0;
  const auto graph = planner.request.graph;
  planner.request.graph = [&](int64_t samples) -> const graph::Graph& {
    ++graphs;
    return graph(samples);
  };
  planner.request.seconds_for_more = 100;
  planner.request.pins = parse_pins({{"memory", 1000}});
  try {
    planner.find(cluster(4));
    FAIL("a plan fits");
  } catch (const Error& error) {
    CHECK(error.status() == Status::infeasible);
    std::smatch said;
    const std::string text = error.what();
    CAPTURE(text);
    REQUIRE(std::regex_search(text, said, std::regex("fits with ([0-9.]+) KiB more")));
    CHECK(graphs < 30);
    // With the reported memory a plan fits, with a tenth less none.
    const double more = 1024 * std::stod(said[1]);
    planner.request.pins = parse_pins({{"memory", 1000 + more}});
    CHECK(planner.find(cluster(4)).best.peak_bytes <= 1000 + more);
    planner.request.pins = parse_pins({{"memory", 0.9 * (1000 + more)}});
    CHECK_THROWS_WITH(planner.find(cluster(4)), Catch::Contains("no plan fits"));
  }
}

TEST_CASE("a plan that fits by its programs alone is named as one") {
  Shortage shortage;
  shortage.combinations = 12;
  shortage.limit = 2000;
  shortage.bytes = 2100;
  CHECK_THROWS_WITH(
      fail_none_fits(shortage, Fitting{.extra_bytes = 0, .bytes = 1900}),
      Catch::StartsWith("[auto] no plan fits by its estimate: of 12 combinations ") &&
          Catch::Contains(" takes 1.86 KiB on a rank by its programs, within the limit "
                          "of 1.95 KiB: pin it, or use more ranks") &&
          !Catch::Contains("more than"));
}

TEST_CASE("bytes are rounded up to the printed value") {
  CHECK(round_up(0) == 0);
  CHECK(round_up(999) == 999);
  CHECK(round_up(1000) == 0.977 * 1024);
  CHECK(perigee::bytes_text(round_up(123456)) == "121 KiB");
  for (const double bytes : {1.0, 999.7, 1024.0, 15432.1, 98765432.0, 3.3e12}) {
    const double up = round_up(bytes);
    CHECK(up >= bytes * (1 - 1e-9));
    CHECK(up <= bytes * 1.01);
    CHECK(perigee::bytes_text(up) == perigee::bytes_text(round_up(up)));
  }
}
