// What a search tells beside its plan.
#include "search/features.h"

#include <catch2/catch.hpp>

using namespace perigee::search;

TEST_CASE("what a plan takes more is told as more or less, never as a negative number") {
  CHECK(more_text(1.1, 1) == "10.0% longer by the model");
  CHECK(more_text(1, 1) == "0.0% longer by the model");
  CHECK(more_text(0.9, 1) == "10.0% less by the model, but not by its programs");
}

TEST_CASE("a slow search is told how many combinations each pin would leave") {
  std::vector<Choice> all;
  for (const int64_t tensor : {1, 2, 4}) {
    for (const int64_t pipe : {1, 2}) {
      all.push_back({.tensor = tensor, .pipe = pipe, .schedule = pipe == 1 ? "" : "1f1b"});
    }
  }
  CHECK(narrowing(all, all[3]) ==
        "tensor = 2 leaves 2 of 6, pipe = 2 leaves 3 of 6, schedule = \"1f1b\" leaves 3 of 6");
  CHECK(narrowing(all, all[0]) == "tensor = 1 leaves 2 of 6, pipe = 1 leaves 3 of 6");
  CHECK(narrowing({all[0]}, all[0]) == "");
}
