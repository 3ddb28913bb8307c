// Numbers that are not finite, in the pieces of a checkpoint.
#include "train/output/finite_weights.h"

#include "tests/support/torch_test.h"

using namespace perigee;
using namespace perigee::train;

TEST_CASE("only wanted tensors count, and the first is named with its box") {
  const auto piece = [](const std::string& name) {
    return checkpoint::Piece{{name, graph::DType::float32, {200}, {{0, 100}}}, {}};
  };
  const Snapshot snapshot = {.pieces = {piece("good"), piece("mask"), piece("w"), piece("x")},
                             .not_finite = {1, 2, 3}};
  CHECK(find_not_finite(snapshot, [](const auto& name) { return name != "mask"; }) == "w[0:100]");
  CHECK(find_not_finite(snapshot, [](const auto&) { return true; }) == "mask[0:100]");
  CHECK(find_not_finite(snapshot, [](const auto&) { return false; }) == "");
  CHECK(find_not_finite({.pieces = snapshot.pieces}, [](const auto&) { return true; }) == "");
}
