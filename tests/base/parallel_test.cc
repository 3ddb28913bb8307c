#include "base/parallel.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
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

TEST_CASE("a limit on threads holds while it lives, and for work of that thread only") {
  const auto threads_of = [] {
    std::mutex mutex;
    std::set<std::thread::id> seen;
    perigee::in_parallel(64, [&](size_t) {
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    return seen;
  };
  {
    const perigee::ThreadLimit one(1);
    CHECK(threads_of() == std::set<std::thread::id>{std::this_thread::get_id()});
    {
      const perigee::ThreadLimit two(2);
      CHECK(threads_of().size() <= 2);
    }
    CHECK(threads_of().size() == 1);
  }
  const auto cores = std::max(1U, std::thread::hardware_concurrency());
  CHECK(threads_of().size() <= cores);
}
