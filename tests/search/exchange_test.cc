// Exposed communication of units in a pass: gathers and reductions that compute does not hide.
#include "search/layers/exchange.h"

#include <catch2/catch.hpp>

using namespace perigee;
using search::Contention;
using search::Passing;
using search::seconds_of_pass;

TEST_CASE("a pass hides gathers and reductions, except at its ends") {
  CHECK(seconds_of_pass({}, Contention::none) == 0);
  // One layer is gathered before and reduced after; 1 s of compute follows its last product.
  CHECK(seconds_of_pass({{.compute = 3, .gather = 2, .reduce = 4, .last_reduction = 4}},
                        Contention::none) == 9);
  CHECK(seconds_of_pass({{.compute = 3, .gather = 2, .reduce = 4, .last_reduction = 4, .tail = 1}},
                        Contention::none) == 8);
  // Compute is slower: the first gather and the last reduction are exposed.
  const Passing busy{.compute = 10, .gather = 2, .reduce = 3, .last_reduction = 3, .times = 3};
  CHECK(seconds_of_pass({busy}, Contention::none) == 2 + 3 * 10 + 3);
  // Communication is slower: g1 g2 r1 g3 r2 g4 r3 r4, one after the other.
  const Passing moved{.compute = 1, .gather = 2, .reduce = 3, .last_reduction = 3, .times = 4};
  CHECK(seconds_of_pass({moved}, Contention::none) == 4 * (2 + 3));
  // Without gathers, only reductions follow the first layer.
  const Passing reduced{.compute = 1, .reduce = 3, .last_reduction = 3, .times = 5};
  CHECK(seconds_of_pass({reduced}, Contention::none) == 1 + 5 * 3);
}

TEST_CASE("a bucket's reduction starts when the previous one has ended, which ops wait for") {
  // Half of each layer is reduced after 2 s of compute, the other half after 5 s more.
  const std::vector<search::Bucket> buckets{{0.2, 0.5}, {0.5, 0.5}};
  Passing layer{.compute = 10, .reduce = 8, .last_reduction = 4, .buckets = &buckets};
  // 5 s of compute hide the first 4 s; the last 4 s are exposed.
  CHECK(seconds_of_pass({layer}, Contention::none) == 10 + 4);
  layer.times = 3;
  CHECK(seconds_of_pass({layer}, Contention::none) == 3 * 10 + 4);
  // Each reduction of 6 s has 5 s of compute until the next one: 1 s of each is exposed, although
  // the reductions of a layer take as long as its compute and the remaining ops.
  layer.reduce = 12;
  layer.last_reduction = 6;
  CHECK(seconds_of_pass({layer}, Contention::none) == Approx(3 * (10 + 1) + 2 * 1 + 6));
  const std::vector<search::Bucket> one{{1, 1}};
  auto all = layer;
  all.buckets = &one;
  auto none = all;
  none.buckets = nullptr;
  CHECK(seconds_of_pass({all}, Contention::none) == seconds_of_pass({none}, Contention::none));
  CHECK(seconds_of_pass({layer}, Contention::links) == seconds_of_pass({layer}, Contention::none));
}

TEST_CASE("a count of identical layers equals the layers listed one by one") {
  const std::vector<search::Bucket> buckets{{0.1, 0.7}, {0.6, 0.2}, {0.2, 0.1}};
  for (const double compute : {0.5, 1.0, 4.0, 9.0}) {
    Passing layer{.compute = compute, .communication = compute / 4, .gather = 2, .reduce = 3};
    layer.last_reduction = 1;
    const Passing other{.compute = 5, .gather = 1, .reduce = 2, .last_reduction = 2};
    for (const auto contention : {Contention::none, Contention::links, Contention::cores}) {
      layer.buckets = contention == Contention::links ? &buckets : nullptr;
      for (int times = 1; times < 8; ++times) {
        std::vector<Passing> listed{other};
        listed.insert(listed.end(), static_cast<size_t>(times), layer);
        listed.push_back(other);
        layer.times = times;
        CHECK(seconds_of_pass({other, layer, other}, contention) ==
              Approx(seconds_of_pass(listed, contention)));
        layer.times = 1;
      }
    }
  }
}

TEST_CASE("collectives that share a link take as long as one after the other") {
  // The whole pass communicates: the exchange waits.
  const Passing all{.compute = 10, .communication = 10, .reduce = 5};
  const Passing before{.compute = 0, .reduce = 5};
  CHECK(seconds_of_pass({before, all}, Contention::links) == Approx(15));
  CHECK(seconds_of_pass({before, all}, Contention::none) == Approx(10));
  // A tenth of the pass communicates: the exchange waits for a part of it.
  const Passing some{.compute = 10, .communication = 1, .reduce = 5};
  const double seconds = seconds_of_pass({before, some}, Contention::links);
  CHECK(seconds > 10.4);
  CHECK(seconds < 10.6);
}

TEST_CASE("collectives on the cores of ops hide behind none of them") {
  const Passing first{.compute = 10, .gather = 2, .reduce = 5, .last_reduction = 5, .times = 3};
  const Passing last{.compute = 1, .reduce = 4, .last_reduction = 2, .tail = 1};
  CHECK(seconds_of_pass({first, last}, Contention::cores) == Approx(3 * (10 + 2 + 5) + 1 + 4));
  CHECK(seconds_of_pass({first, last}, Contention::none) < 45);
}
