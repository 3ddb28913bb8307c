// Numbers of blocks of the parts, where stages have several parts.
#include "search/cut/deal.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <random>

#include "schedule/schedule.h"

using namespace perigee;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::vector<int>> parts_of(const search::Deal& row) {
  std::vector<std::vector<int>> own(
      1 + size_t(*std::max_element(row.stages.begin(), row.stages.end())));
  for (int part = 0; part < int(row.stages.size()); ++part) own[row.stages[part]].push_back(part);
  return own;
}

// Returns the seconds of the slowest stage; infinity where a stage does not fit.
double longest(const search::Deal& row, const std::vector<int>& lengths) {
  double most = 0;
  const auto own = parts_of(row);
  for (int stage = 0; stage < int(own.size()); ++stage) {
    double seconds = 0;
    for (int part : own[stage]) seconds += row.seconds(part, lengths[part]);
    most = std::max(most, seconds);
    if (!row.fits(stage, own[stage], lengths)) return kInfinity;
  }
  return most;
}

// Returns the least `longest` over all lengths of the remaining parts, which have `left` blocks.
double least_longest(const search::Deal& row, std::vector<int>& lengths, int left) {
  const auto parts = row.stages.size();
  if (lengths.size() + 1 == parts) {
    lengths.push_back(left);
    const double seconds = left >= row.fewest_last ? longest(row, lengths) : kInfinity;
    lengths.pop_back();
    return seconds;
  }
  double best = kInfinity;
  for (int length = lengths.empty() ? row.fewest_first : 1; length <= left; ++length) {
    lengths.push_back(length);
    best = std::min(best, least_longest(row, lengths, left - length));
    lengths.pop_back();
  }
  return best;
}

}  // namespace

TEST_CASE("no other lengths of parts have a faster slowest stage") {
  std::mt19937 random(11);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  int fit = 0, none = 0, uneven = 0, bare = 0;
  for (int i = 0; i < 400; ++i) {
    const int stages = draw(2, 3), chunks = draw(2, 3);
    const bool v_shape = chunks == 2 && draw(0, 1) == 1;
    search::Deal row{.blocks = draw(stages * chunks - 2, stages * chunks < 5 ? 20 : 11),
                     .stages = stage_of_parts(v_shape ? "zbv" : "interleaved", stages, chunks),
                     .fewest_first = draw(0, 1),
                     .fewest_last = draw(0, 1),
                     .in_rounds = !v_shape && draw(0, 1) == 1};
    const int parts = stages * chunks;
    const double block = draw(3, 9), first = draw(0, 12), last = draw(0, 30);
    const double size = draw(1, 5), head = draw(0, 5), tail = draw(0, 10), room = draw(8, 60);
    row.seconds = [=](int part, int length) {
      return block * length + (part == 0 ? first : 0) + (part == parts - 1 ? last : 0);
    };
    const auto held_by = [=](int part, int length) {
      return size * length + (part == 0 ? head : 0) + (part == parts - 1 ? tail : 0);
    };
    row.in_flight_bytes = held_by;
    // A stage holds the weights of all its parts, and in-flight copies of its largest part.
    row.fits = [=](int stage, const std::vector<int>& own, const std::vector<int>& lengths) {
      double weights = 0, held = 0;
      for (int part : own) {
        weights += lengths[part];
        held = std::max(held, held_by(part, lengths[part]));
      }
      return weights + (v_shape ? 1 : (stages - stage)) * held <= room;
    };
    const auto dealt = search::deal(row);
    std::vector<int> lengths;
    const double best = least_longest(row, lengths, row.blocks);
    CAPTURE(i, stages, chunks, v_shape, row.blocks);
    CHECK(dealt.has_value() == (best < kInfinity));
    if (!dealt) {
      ++none;
      continue;
    }
    ++fit;
    int sum = 0;
    for (int length : *dealt) sum += length;
    CHECK(sum == row.blocks);
    CHECK(longest(row, *dealt) == Approx(best));
    bare += dealt->front() == 0 || dealt->back() == 0;
    uneven += *std::max_element(dealt->begin(), dealt->end()) >
              *std::min_element(dealt->begin(), dealt->end()) + 1;
  }
  CHECK(fit > 100);
  CHECK(none > 50);
  CHECK(uneven > 20);
  CHECK(bare > 50);
}

TEST_CASE("parts of schedules with rounds have equal lengths") {
  // The last part takes two blocks' time more than others of its length.
  search::Deal row{.blocks = 30,
                   .stages = stage_of_parts("interleaved", 4, 4),
                   .fewest_first = 0,
                   .fewest_last = 0,
                   .in_rounds = true};
  row.seconds = [](int part, int length) { return length + (part == 15 ? 2.0 : 0.0); };
  row.in_flight_bytes = [](int part, int length) { return length + (part == 15 ? 9.0 : 0.0); };
  const auto lengths = search::deal(row);
  REQUIRE(lengths);
  CHECK(*lengths == std::vector<int>{2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0});
  // Balanced by memory alone, the last part's stage would have another part of three blocks.
  row.in_rounds = false;
  row.blocks = 31;
  const auto by_memory = search::deal(row);
  REQUIRE(by_memory);
  CHECK(std::ranges::max(*by_memory) == 3);
}
