// The sentences about features that a search adds to its plan.
#include "search/explain/features.h"

#include <catch2/catch.hpp>

using namespace perigee::search;

TEST_CASE("an excess is printed as longer or less, never as a negative number") {
  CHECK(more_text(1.1, 1) == "10.0% longer by the model");
  CHECK(more_text(1, 1) == "0.0% longer by the model");
  CHECK(more_text(0.9, 1) == "10.0% less by the model, but not by its programs");
}

TEST_CASE("a slow search reports the number of combinations that each pin leaves") {
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
