// How much of units' exchange shows beside a pass.
#include "search/layers/exchange.h"

#include <catch2/catch.hpp>

using namespace perigee;
using search::Passing;
using search::seconds_of_pass;

TEST_CASE("a pass hides gathering and reducing, except at its ends") {
  CHECK(seconds_of_pass({}, false) == 0);
  // One layer: gathered before, reduced after; 1 s of compute after its last product.
  CHECK(seconds_of_pass({{.compute = 3, .gather = 2, .reduce = 4, .last_reduction = 4}}, false) ==
        9);
  CHECK(seconds_of_pass({{.compute = 3, .gather = 2, .reduce = 4, .last_reduction = 4, .tail = 1}},
                        false) == 8);
  // Ops take longer: the first is gathered, the last reduced.
  const Passing busy{.compute = 10, .gather = 2, .reduce = 3, .last_reduction = 3, .times = 3};
  CHECK(seconds_of_pass({busy}, false) == 2 + 3 * 10 + 3);
  // Moving takes longer: g1 g2 r1 g3 r2 g4 r3 r4, one behind the other.
  const Passing moved{.compute = 1, .gather = 2, .reduce = 3, .last_reduction = 3, .times = 4};
  CHECK(seconds_of_pass({moved}, false) == 4 * (2 + 3));
  // Nothing is gathered: from the first layer's end on reductions alone.
  const Passing reduced{.compute = 1, .reduce = 3, .last_reduction = 3, .times = 5};
  CHECK(seconds_of_pass({reduced}, false) == 1 + 5 * 3);
}

TEST_CASE("a bucket's reduction starts when the one before has ended, and ops wait for that") {
  // Behind 2 s of each layer half of it is reduced, behind 5 s more the other half.
  const std::vector<search::Bucket> buckets{{0.2, 0.5}, {0.5, 0.5}};
  Passing layer{.compute = 10, .reduce = 8, .last_reduction = 4, .buckets = &buckets};
  // 4 s beside 5 s; the last 4 s show.
  CHECK(seconds_of_pass({layer}, false) == 10 + 4);
  layer.times = 3;
  CHECK(seconds_of_pass({layer}, false) == 3 * 10 + 4);
  // 6 s beside 5 s within a layer, and beside the 5 s from one layer's last bucket to the next
  // one's first; together they are as long as the ops, but none is beside the others' slack.
  layer.reduce = 12;
  layer.last_reduction = 6;
  CHECK(seconds_of_pass({layer}, false) == Approx(3 * (10 + 1) + 2 * 1 + 6));
  const std::vector<search::Bucket> one{{1, 1}};
  auto all = layer;
  all.buckets = &one;
  auto none = all;
  none.buckets = nullptr;
  CHECK(seconds_of_pass({all}, false) == seconds_of_pass({none}, false));
  CHECK(seconds_of_pass({layer}, true) == seconds_of_pass({layer}, false));
}

TEST_CASE("a count of identical layers equals the layers listed one by one") {
  const std::vector<search::Bucket> buckets{{0.1, 0.7}, {0.6, 0.2}, {0.2, 0.1}};
  for (const double compute : {0.5, 1.0, 4.0, 9.0}) {
    Passing layer{.compute = compute, .communication = compute / 4, .gather = 2, .reduce = 3};
    layer.last_reduction = 1;
    const Passing other{.compute = 5, .gather = 1, .reduce = 2, .last_reduction = 2};
    for (const bool contends : {false, true}) {
      layer.buckets = contends ? &buckets : nullptr;
      for (int times = 1; times < 8; ++times) {
        std::vector<Passing> listed{other};
        listed.insert(listed.end(), static_cast<size_t>(times), layer);
        listed.push_back(other);
        layer.times = times;
        CHECK(seconds_of_pass({other, layer, other}, contends) ==
              Approx(seconds_of_pass(listed, contends)));
        layer.times = 1;
      }
    }
  }
}

TEST_CASE("collectives that share a link take as long as one after the other") {
  // Nothing but communication beside the exchange.
  const Passing all{.compute = 10, .communication = 10, .reduce = 5};
  const Passing before{.compute = 0, .reduce = 5};
  CHECK(seconds_of_pass({before, all}, true) == Approx(15));
  CHECK(seconds_of_pass({before, all}, false) == Approx(10));
  // A tenth of the pass: what is exchanged meets some of it.
  const Passing some{.compute = 10, .communication = 1, .reduce = 5};
  const double seconds = seconds_of_pass({before, some}, true);
  CHECK(seconds > 10.4);
  CHECK(seconds < 10.6);
}
