// How much memory is missing, where what a plan needs is known.
#include "search/shortage.h"

#include <catch2/catch.hpp>
#include <vector>

#include "search/report.h"

using namespace perigee::search;

TEST_CASE("the memory that is missing is enough, and little more than that") {
  for (const double guess : {1.0, 90.0, 5000.0}) {
    std::vector<double> tried;
    const auto found = least_more({.limit = 1000, .guess = guess}, 1e9,
                                  [&](double more) -> std::optional<Fitting> {
                                    tried.push_back(more);
                                    if (more < 777) return std::nullopt;
                                    return Fitting{.bytes = 1700};
                                  });
    REQUIRE(found);
    CHECK(found->bytes == 1700);
    CHECK(found->more >= 777);
    CHECK(found->more <= 777 + 0.02 * (1000 + 777) + 1);
    CHECK(std::ranges::count(tried, found->more) == 1);
  }
}

TEST_CASE("a search for the memory that is missing ends by its time, with what it found") {
  const auto fits = [](double more) -> std::optional<Fitting> {
    if (more < 5) return std::nullopt;
    return Fitting{};
  };
  CHECK_FALSE(least_more({.limit = 10, .guess = 1}, 0, fits));
  // Attempts that find none would take too long.
  const auto found = least_more({.limit = 10, .guess = 9, .attempt_seconds = 2}, 1, fits);
  REQUIRE(found);
  CHECK(found->more == 9);
}

TEST_CASE("bytes are rounded up to what is written of them") {
  CHECK(round_up(0) == 0);
  CHECK(round_up(999) == 999);
  CHECK(round_up(1000) == 0.977 * 1024);
  CHECK(bytes_text(round_up(123456)) == "121 KiB");
  for (const double bytes : {1.0, 999.7, 1024.0, 15432.1, 98765432.0, 3.3e12}) {
    const double up = round_up(bytes);
    CHECK(up >= bytes * (1 - 1e-9));
    CHECK(up <= bytes * 1.01);
    CHECK(bytes_text(up) == bytes_text(round_up(up)));
  }
}
