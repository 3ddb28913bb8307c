#include "base/parallel.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <vector>

TEST_CASE("each task runs once, for any number of tasks, also nested") {
  for (const size_t count : {0, 1, 3, 1000}) {
    std::vector<int> done(count), inner(count);
    perigee::in_parallel(count, [&](size_t i) {
      ++done[i];
      perigee::in_parallel(3, [&](size_t) { ++inner[i]; });
    });
    CHECK(std::all_of(done.begin(), done.end(), [](int times) { return times == 1; }));
    CHECK(std::all_of(inner.begin(), inner.end(), [](int times) { return times == 3; }));
  }
}

TEST_CASE("the first exception is rethrown after all tasks have ended") {
  std::vector<int> done(100);
  CHECK_THROWS_WITH(perigee::in_parallel(100,
                                         [&](size_t i) {
                                           ++done[i];
                                           if (i % 7 == 5) {
                                             throw std::runtime_error(std::to_string(i));
                                           }
                                         }),
                    "5");
  CHECK(std::count(done.begin(), done.end(), 1) == 100);
}
