// What layers cost at numbers of samples between those that programs are compiled for.
#include "search/layers.h"

#include <catch2/catch.hpp>

#include "tests/search/support_search.h"

using namespace perigee::search;

TEST_CASE("costs between two sizes of a microbatch are linear only where their plans are alike") {
  constexpr int64_t kMost = 64, kMiddle = 8;
  Asked asked({.blocks = 6, .batch = kMost, .width = 32}, 2);
  const auto folded = fold(asked.request.graph(kMost));
  const perigee::compile::StepSpec spec;
  const Pins pins;
  OpCosts costs(cluster(2), asked.none);
  const auto tables_to = [&](int64_t most) {
    return LayerTables(folded, {.most = most, .captured = kMost}, spec, pins, false, costs,
                       asked.traces);
  };
  std::string why;
  for (const int64_t tensor : {1, 2}) {
    auto tables = tables_to(kMost), exact = tables_to(kMiddle);
    const auto at = [&](LayerTables& of, int64_t micro) {
      const auto* found = of.find({.tensor = tensor, .micro = micro}, why);
      REQUIRE(found);
      return found->block;
    };
    const auto found = at(tables, kMiddle), made = at(exact, kMiddle);
    CAPTURE(tensor, found.forward, made.forward);
    CHECK(found.forward == Approx(made.forward).epsilon(0.05));
    CHECK(found.weights == made.weights);
    // Splitting the weights pays with many samples, and not with one.
    CHECK((at(tables, 1).weights == at(tables, kMost).weights) == (tensor == 1));
  }
}
