// Buckets of gradients, and the times at which their reductions may start.
#include "search/layers/buckets.h"

#include <catch2/catch.hpp>

using namespace perigee::search;
using Lists = std::vector<std::vector<size_t>>;

TEST_CASE("buckets are filled to the least size, starting from the last parameter") {
  const std::vector<Member> members{{.whole = 1}, {.whole = 9}, {.whole = 1}, {.whole = 9}};
  CHECK(buckets_by_size(members, 9) == Lists{{3, 0}, {2, 1}});
  CHECK(buckets_by_size(members, 100) == Lists{{3, 2, 1, 0}});
  CHECK(buckets_by_size(members, 1) == Lists{{3}, {2}, {1}, {0}});
  CHECK(buckets_by_size({}, 1) == Lists{{}});
}

TEST_CASE("a bucket of a block is ready when its last gradient is") {
  // Two blocks of a norm and two weights each; the backward pass runs the second one first.
  const auto block = [](double from) {
    return std::vector<Member>{{.whole = 1, .gradient = 1, .flat = 1, .ready = from + 10},
                               {.whole = 50, .gradient = 25, .ready = from + 8},
                               {.whole = 50, .gradient = 25, .ready = from + 2}};
  };
  auto members = block(10);
  for (const auto& member : block(0)) members.push_back(member);
  const auto buckets = buckets_of_block(members, buckets_by_size(members, 50), 20, 2);
  // A block takes 10 s. Its weights are ready after 2 s and after 6 s more; the norm shares a
  // bucket with the next block's first weight.
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0].compute == Approx(0.2));
  CHECK(buckets[0].reduced == Approx(0.5));
  CHECK(buckets[1].compute == Approx(0.6));
  CHECK(buckets_of_block(members, buckets_by_size(members, 1000), 20, 2).empty());
}
