#include "mesh/placement.h"

#include <rapidcheck.h>

#include <catch2/catch.hpp>

#include "base/error.h"

namespace perigee::mesh {
namespace {

Placement arbitrary_placement() {
  switch (*rc::gen::inRange(0, 6)) {
    case 0:
      return Placement::replicate();
    case 1:
      return Placement::shard(*rc::gen::inRange(0, 12));
    case 2:
      return Placement::shard(*rc::gen::inRange(0, 12), *rc::gen::inRange(1, 100));
    case 3:
      return Placement::open();
    case 4:
      return Placement::shard(*rc::gen::inRange(0, 12), *rc::gen::inRange(0, 100), true);
    default:
      return Placement::partial(
          *rc::gen::element(Reduce::sum, Reduce::average, Reduce::max, Reduce::min));
  }
}

TEST_CASE("placements print as R, S<dim> and P") {
  const Placements placements = {Placement::replicate(), Placement::shard(2), Placement::partial(),
                                 Placement::partial(Reduce::max)};
  CHECK(to_string(placements) == "R,S2,P,P(max)");
  CHECK(to_string(Placements{}) == "");
}

TEST_CASE("printed placements parse to the same placements") {
  CHECK(rc::check("parse(to_string(p)) == p", [] {
    Placements placements;
    const int axes = *rc::gen::inRange(0, 4);
    for (int a = 0; a < axes; ++a) placements.push_back(arbitrary_placement());
    RC_ASSERT(parse_placements(to_string(placements)) == placements);
  }));
}

TEST_CASE("invalid text of a placement is refused") {
  for (const char* text : {"S", "S-1", "S1x", "Q", "R,", ",R", "P(mean)", " R", "r", "S1/", "S1/0",
                           "S1/2x", "S1z2", "Rz", "--"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_placements(text), Error);
  }
}

TEST_CASE("a dim of several merged ones is sharded in runs of equal length") {
  const Mesh mesh = parse_axes("sequence=2,data=3");
  // [batch 3, sequence 4] as 12 rows: batches over data, every batch's sequence over sequence.
  const auto placements = parse_placements("S0/4,S0");
  CHECK(runs_divide({12, 5}, placements, mesh));
  CHECK(local_shape({12, 5}, placements, mesh, 3) == std::vector<int64_t>{2, 5});
  CHECK_FALSE(runs_divide({12, 5}, parse_placements("S0/3,R"), mesh));     // 3 rows over 2 ranks
  CHECK_FALSE(runs_divide({12, 5}, parse_placements("S0/6,S0"), mesh));    // data would split runs
  CHECK_FALSE(runs_divide({12, 5}, parse_placements("S0/4,S0/6"), mesh));  // two runs
  CHECK_FALSE(runs_divide({10, 5}, parse_placements("S0/4,R"), mesh));  // 4 runs do not divide 10
  CHECK_THROWS_AS(local_ranges({12, 5}, placements, mesh, 0), Error);
  CHECK_THROWS_AS(local_shape({12, 5}, parse_placements("S0/3,R"), mesh, 0), Error);
}

TEST_CASE("a zigzag shard is a piece from the front and one from the end") {
  const Mesh mesh = parse_axes("sequence=2,context=3");
  const auto pieces = [&](const char* placements, int64_t rank) {
    return local_pieces({24}, parse_placements(placements), mesh, rank, 0);
  };
  CHECK(pieces("R,S0z", 0) == std::vector<Range>{{0, 4}, {20, 4}});
  CHECK(pieces("R,S0z", 2) == std::vector<Range>{{4, 4}, {16, 4}});
  CHECK(pieces("R,S0z", 4) == std::vector<Range>{{8, 4}, {12, 4}});
  CHECK(pieces("S0,S0z", 1) == std::vector<Range>{{20, 4}});
  CHECK(pieces("R,S0", 2) == std::vector<Range>{{8, 8}});
  CHECK(local_shape({24}, parse_placements("R,S0z"), mesh, 0) == std::vector<int64_t>{8});
  CHECK_THROWS_AS(local_ranges({24}, parse_placements("R,S0z"), mesh, 0), Error);
  CHECK(runs_divide({24}, parse_placements("S0,S0z"), mesh));
  CHECK(runs_divide({48}, parse_placements("S0,S0/24z"), mesh));
  CHECK_FALSE(runs_divide({9}, parse_placements("R,S0z"), mesh));       // 6 pieces
  CHECK_FALSE(runs_divide({24}, parse_placements("S0z,S0z"), mesh));    // two orders
  CHECK_FALSE(runs_divide({48}, parse_placements("S0/12,S0z"), mesh));  // runs across pieces
}

TEST_CASE("the first parts of an uneven split hold one element more") {
  CHECK(split(7, 3, 0) == Range{0, 3});
  CHECK(split(7, 3, 1) == Range{3, 2});
  CHECK(split(7, 3, 2) == Range{5, 2});
  CHECK(split(2, 3, 2) == Range{2, 0});
}

TEST_CASE("the shards of a group are consecutive in group order") {
  CHECK(rc::check("shards tile the dim", [] {
    Mesh mesh;
    const int axes = *rc::gen::inRange(1, 4);
    Placements placements;
    for (int a = 0; a < axes; ++a) {
      mesh.axes.push_back({std::string(1, static_cast<char>('a' + a)), *rc::gen::inRange(1, 5)});
      placements.push_back(Placement::shard(0));
    }
    const int64_t size = *rc::gen::inRange(0, 40);
    int64_t next = 0;
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      const auto range = local_ranges({size}, placements, mesh, rank)[0];
      RC_ASSERT(range.begin == next || range.length == 0);
      next += range.length;
    }
    RC_ASSERT(next == size);
  }));
}

TEST_CASE("a dim sharded on two axes is split by the last axis first") {
  const Mesh mesh{{{"tensor", 2}, {"data", 2}}, {}};
  const auto placements = parse_placements("S1,S1");
  CHECK(local_ranges({3, 5}, placements, mesh, 0) == std::vector<Range>{{0, 3}, {0, 2}});
  CHECK(local_ranges({3, 5}, placements, mesh, 1) == std::vector<Range>{{0, 3}, {2, 1}});
  CHECK(local_ranges({3, 5}, placements, mesh, 2) == std::vector<Range>{{0, 3}, {3, 1}});
  CHECK(local_shape({3, 5}, placements, mesh, 3) == std::vector<int64_t>{3, 1});
}

TEST_CASE("a placement that does not fit the tensor or the mesh is refused") {
  const Mesh mesh{{{"data", 2}}, {}};
  CHECK_THROWS_WITH(local_ranges({4}, parse_placements("S1"), mesh, 0),
                    Catch::Contains("1 dims") && Catch::Contains("S1 on axis data"));
  CHECK_THROWS_AS(local_ranges({4}, parse_placements("R,R"), mesh, 0), Error);
}

}  // namespace
}  // namespace perigee::mesh
