// Cuts of identical blocks into stages.
#include "search/cut/cut.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "solve/solve.h"

using namespace perigee;
using search::StageKind;

namespace {

// Returns the least objective over all cuts, by the solver of stages problems; infinity where
// none fits.
double least_objective(const search::Row& row) {
  solve::StagesProblem problem{.layers = row.blocks,
                               .devices = row.stages,
                               .microbatches = row.microbatches,
                               .submeshes = {{1, 1}}};
  for (int begin = 0; begin < row.blocks; ++begin) {
    for (int end = begin + 1; end <= row.blocks; ++end) {
      if (begin == 0 && end == row.blocks) continue;  // a row has at least two stages
      if (row.allowed && !row.allowed(begin, end)) continue;
      const auto kind = begin == 0          ? StageKind::first
                        : end == row.blocks ? StageKind::last
                                            : StageKind::middle;
      for (const auto& part : row.parts(kind, end - begin)) {
        if (part.most < 1) continue;
        solve::StageCandidate candidate{.first = begin, .last = end - 1, .submesh = 0};
        candidate.time = part.seconds;
        if (part.most < row.microbatches) candidate.max_successors = part.most - 1;
        problem.candidates.push_back(candidate);
      }
    }
  }
  if (problem.candidates.empty()) return std::numeric_limits<double>::infinity();
  const auto solved = solve::solve(problem);
  return solved.verdict == solve::Verdict::infeasible ? std::numeric_limits<double>::infinity()
                                                      : solved.time;
}

double objective(const search::Row& row, const search::Cut& cut) {
  const auto& begins = cut.begins;
  double sum = 0, longest = 0;
  CHECK(cut.recomputed_blocks.size() == begins.size() + 1);
  for (size_t s = 0; s <= begins.size(); ++s) {
    const int begin = s == 0 ? 0 : begins[s - 1];
    const int end = s == begins.size() ? row.blocks : begins[s];
    const auto kind = s == 0               ? StageKind::first
                      : s == begins.size() ? StageKind::last
                                           : StageKind::middle;
    const auto parts = row.parts(kind, end - begin);
    const auto chosen = std::find_if(parts.begin(), parts.end(), [&](const auto& part) {
      return part.recomputed_blocks == cut.recomputed_blocks[s];
    });
    REQUIRE(chosen != parts.end());
    const auto& part = *chosen;
    CHECK(part.most >= std::min<int64_t>(row.microbatches, int64_t(begins.size() - s) + 1));
    sum += part.seconds;
    longest = std::max(longest, part.seconds);
  }
  return sum + double(row.microbatches - 1) * longest;
}

}  // namespace

TEST_CASE("without time to search, the cut is even and not marked as the best") {
  search::Row row{.blocks = 7, .stages = 3, .microbatches = 4, .time_limit = 0};
  int64_t room = 8;
  row.parts = [&](StageKind kind, int length) {
    const int64_t most = kind == StageKind::first ? room - length : room;
    return std::vector<search::StagePart>{{double(length), std::max<int64_t>(most, 0), 0}};
  };
  auto cut = search::cut(row);
  REQUIRE(cut);
  CHECK_FALSE(cut->best);
  CHECK(cut->begins == std::vector<int>{3, 5});  // 3 + 2 + 2
  row.allowed = [](int begin, int end) { return begin != 0 || end != 3; };
  cut = search::cut(row);
  REQUIRE(cut);
  CHECK(cut->begins == std::vector<int>{2, 4});
  row.allowed = nullptr;
  room = 5;  // the first stage has memory for 2 blocks
  cut = search::cut(row);
  REQUIRE(cut);
  CHECK(cut->begins == std::vector<int>{2, 4});
  room = 4;  // the first stage has memory for 1 block
  CHECK_FALSE(search::cut(row));
  row.time_limit = 100;
  cut = search::cut(row);
  REQUIRE(cut);
  CHECK(cut->best);
  CHECK(cut->begins.front() == 1);
}

TEST_CASE("a cut of identical blocks is the best of all cuts") {
  std::mt19937 random(7);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  int fit = 0, none = 0, allowed = 0;
  for (int i = 0; i < 400; ++i) {
    search::Row row{.blocks = draw(2, 20), .microbatches = draw(1, 12)};
    row.stages = draw(2, std::min(8, row.blocks));
    const double first = draw(0, 30), last = draw(0, 60), block = draw(5, 20);
    const double floor = draw(0, 40);  // least time of a stage of any length
    const int room = draw(1, 12), size = draw(1, 3);
    const int ways = draw(0, 1) == 0 ? 0 : 3;
    row.parts = [=](StageKind kind, int length) {
      const double more = kind == StageKind::first ? first : kind == StageKind::last ? last : 0;
      std::vector<search::StagePart> parts;
      for (int recomputed_blocks = 0; recomputed_blocks <= std::min(ways, length);
           ++recomputed_blocks) {  // each more: slower, with less memory
        const int held = size * length - recomputed_blocks;
        parts.push_back({std::max(floor, block * length) + more + recomputed_blocks,
                         std::max(0, (40 * room / 10 - length) / std::max(1, held)),
                         recomputed_blocks});
      }
      return parts;
    };
    row.solver = i % 40 == 0 ? "ilp" : "auto";
    const int least = draw(1, 3), most = draw(2, 10), ends = draw(-1, 1);
    if (i % 3 == 0) {  // lengths of a window, which depends on the place
      row.allowed = [=](int begin, int end) {
        const int length = end - begin + (begin == 0 ? ends : 0);
        return length >= least && length <= most;
      };
    }
    const auto cut = search::cut(row);
    const double best = least_objective(row);
    CAPTURE(i, row.blocks, row.stages, row.microbatches);
    CHECK(cut.has_value() == std::isfinite(best));
    if (!cut) {
      ++none;
      continue;
    }
    ++fit;
    CHECK(int64_t(cut->begins.size()) == row.stages - 1);
    allowed += row.allowed != nullptr;
    CHECK(objective(row, *cut) == Approx(best));
  }
  CHECK(fit > 50);
  CHECK(allowed > 20);
  CHECK(none > 50);
}
