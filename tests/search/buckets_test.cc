// How gradients go into reductions, and when each may begin.
#include "search/layers/buckets.h"

#include <catch2/catch.hpp>

using namespace perigee::search;
using Lists = std::vector<std::vector<size_t>>;

TEST_CASE("buckets grow to the least size from the last parameter on") {
  const std::vector<Member> members{{.whole = 1}, {.whole = 9}, {.whole = 1}, {.whole = 9}};
  CHECK(buckets_by_size(members, 9) == Lists{{3, 0}, {2, 1}});
  CHECK(buckets_by_size(members, 100) == Lists{{3, 2, 1, 0}});
  CHECK(buckets_by_size(members, 1) == Lists{{3}, {2}, {1}, {0}});
  CHECK(buckets_by_size({}, 1) == Lists{{}});
}

TEST_CASE("buckets of one of several blocks are ready when their last gradient is") {
  // Two blocks of a norm and two weights each; the second is passed first.
  const auto block = [](double from) {
    return std::vector<Member>{{.whole = 1, .gradient = 1, .flat = 1, .ready = from + 10},
                               {.whole = 50, .gradient = 25, .ready = from + 8},
                               {.whole = 50, .gradient = 25, .ready = from + 2}};
  };
  auto members = block(10);
  for (const auto& member : block(0)) members.push_back(member);
  const auto buckets = buckets_of_block(members, buckets_by_size(members, 50), 20, 2);
  // 10 s a block: a weight behind 2 s, the other 6 s later; the norm goes with the next block's.
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0].compute == Approx(0.2));
  CHECK(buckets[0].reduced == Approx(0.5));
  CHECK(buckets[1].compute == Approx(0.6));
  CHECK(buckets_of_block(members, buckets_by_size(members, 1000), 20, 2).empty());
}
