#include "compile/memory/pack.h"

#include <catch2/catch.hpp>
#include <random>

using namespace perigee::compile;

namespace {

void check(const std::vector<Block>& blocks, const Packing& packing) {
  REQUIRE(packing.offsets.size() == blocks.size());
  int64_t overlaps = 0, outside = 0, unaligned = 0;
  for (size_t a = 0; a < blocks.size(); ++a) {
    if (blocks[a].bytes == 0) continue;
    outside += packing.offsets[a] < 0 || packing.offsets[a] + blocks[a].bytes > packing.bytes;
    unaligned += packing.offsets[a] % kAlignment != 0;
    for (size_t b = 0; b < a; ++b) {
      const bool in_time = blocks[a].start < blocks[b].end && blocks[b].start < blocks[a].end;
      const bool in_space = packing.offsets[a] < packing.offsets[b] + blocks[b].bytes &&
                            packing.offsets[b] < packing.offsets[a] + blocks[a].bytes;
      overlaps += in_time && in_space && blocks[b].bytes > 0;
    }
  }
  CHECK(overlaps == 0);
  CHECK(outside == 0);
  CHECK(unaligned == 0);
  CHECK(packing.bytes >= packing.lower_bound);
}

double over_bound(const Packing& packing) {
  return static_cast<double>(packing.bytes) / static_cast<double>(packing.lower_bound);
}

}  // namespace

TEST_CASE("packed blocks never overlap while both are in use") {
  double worst = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<Block> blocks(1 + random() % 300);
    for (auto& block : blocks) {
      block.start = static_cast<int64_t>(random() % 500);
      block.end = block.start + 1 + static_cast<int64_t>(random() % (random() % 4 ? 10 : 400));
      block.bytes = static_cast<int64_t>(random() % 5 ? random() % 5000 : 0);
    }
    const auto packing = pack(blocks);
    check(blocks, packing);
    CHECK(pack(blocks).offsets == packing.offsets);
    worst = std::max(worst, over_bound(packing));
  }
  CHECK(worst <= 1.25);
}

TEST_CASE("the lifetimes of a training step pack within 2% of the peak of live bytes") {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<Block> blocks;
    const int64_t layers = 4 + static_cast<int64_t>(random() % 40), ops = 12;
    const int64_t end = 4 * layers * ops;
    std::vector<int64_t> sizes(ops);
    for (auto& size : sizes) size = 4096 * static_cast<int64_t>(1 + random() % 12);
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (int64_t op = 0; op < ops; ++op) {
        const int64_t forward = layer * ops + op, backward = end - 1 - 2 * forward;
        const bool saved = (op * 7 + static_cast<int64_t>(seed)) % 3 == 0;
        blocks.push_back({sizes[op], forward, saved ? backward : forward + 2});
        blocks.push_back({sizes[op], backward - 1, backward + 2});
        if (op % 4 == 0) blocks.push_back({512, backward, end + 1});  // a gradient
      }
    }
    const auto packing = pack(blocks);
    check(blocks, packing);
    CHECK(over_bound(packing) <= 1.02);
  }
}

TEST_CASE("an empty packing has no bytes") {
  CHECK(pack({}).bytes == 0);
  CHECK(pack({{0, 0, 5}}).bytes == 0);
  CHECK(pack({{1, 0, 5}}).bytes == 64);
}
