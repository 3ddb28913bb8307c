// The blocks of the parts of a pipeline.
#include "search/model/stage/part_rules.h"

#include <catch2/catch.hpp>

using namespace perigee;

namespace {

search::Folded folded(bool has_epilogue) {
  search::Folded made;
  made.blocks = {"blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.4"};
  if (has_epilogue) made.epilogue = "head";
  return made;
}

}  // namespace

TEST_CASE(
    "consecutive parts have each block once, the first the prologue and the last the epilogue") {
  const auto model = folded(true);
  const search::PartRules rules(model, {});
  const auto parts = rules.consecutive({2, 0, 3}, {1, 0, 2});
  REQUIRE(parts.size() == 3);
  for (size_t k = 1; k < parts.size(); ++k) CHECK(parts[k].begin == parts[k - 1].end);
  CHECK(parts.front().begin == 0);
  CHECK(parts.back().end == rules.blocks());
  CHECK(parts[0].recomputed_blocks == 1);
  CHECK(parts[2].recomputed_blocks == 2);
  CHECK((parts[0].has_prologue && !parts[0].has_epilogue));
  CHECK((!parts[1].has_prologue && !parts[1].has_epilogue));
  CHECK((!parts[2].has_prologue && parts[2].has_epilogue));
}

TEST_CASE("pinned starts give the parts, which may leave the ends without a block") {
  const auto model = folded(true);
  const search::PartRules any(model, {});
  CHECK_FALSE(any.is_pinned());
  CHECK_FALSE(any.pins_end_without_block());
  const search::PartRules inner(model, {1, 3});
  CHECK(inner.is_pinned());
  CHECK_FALSE(inner.pins_end_without_block());
  const auto parts = inner.pinned();
  REQUIRE(parts.size() == 3);
  CHECK(parts[0].length() == 1);
  CHECK(parts[1].length() == 2);
  CHECK(parts[2].length() == 2);
  CHECK(search::PartRules(model, {0, 3}).pins_end_without_block());
  CHECK(search::PartRules(model, {1, 5}).pins_end_without_block());
}

TEST_CASE("the first and the last part need no block where prologue and epilogue have parameters") {
  search::Layers layers;
  const auto model = folded(true);
  const search::PartRules rules(model, {});
  CHECK(rules.most_parts(layers) == 5);
  layers.prologue.weights = layers.epilogue.weights = 1e6;
  CHECK(rules.fewest_first_blocks(layers) == 0);
  CHECK(rules.fewest_last_blocks(layers) == 0);
  CHECK(rules.most_parts(layers) == 7);
  // Parameters after the blocks that belong to no module after them stay with the last block.
  const auto without = folded(false);
  CHECK(search::PartRules(without, {}).fewest_last_blocks(layers) == 1);
  CHECK(search::PartRules(without, {}).most_parts(layers) == 6);
}
