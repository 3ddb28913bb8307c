#include "data/permutation.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <vector>

#include "data/sampler.h"

using namespace perigee;
using namespace perigee::data;

TEST_CASE("a permutation of any size has every index once") {
  for (uint64_t size = 1; size <= 300; ++size) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      const data::Permutation permutation(size, key);
      std::vector<bool> taken(size);
      bool good = true;
      for (uint64_t i = 0; i < size; ++i) {
        const auto at = permutation(i);
        good = good && at < size && !taken[at];
        if (at < size) taken[at] = true;
      }
      INFO(size << " " << key);
      REQUIRE(good);
    }
  }
  const uint64_t large = (uint64_t{1} << 62) + 12345;
  const data::Permutation permutation(large, 3);
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 1000; ++i) {
    const auto at = permutation(large - 1 - i);
    CHECK(at < large);
    CHECK(seen.insert(at).second);
  }
}

TEST_CASE("permutations have the statistics of random ones") {
  // Fixed points, descents and the correlation of position and index, over 200 keys of size 1000.
  double fixed = 0, descents = 0, correlation = 0;
  constexpr int size = 1000, keys = 200;
  std::vector<double> first(10);
  for (uint64_t key = 0; key < keys; ++key) {
    const data::Permutation permutation(size, key * 1000003);
    ++first[permutation(0) / 100];
    for (uint64_t i = 0; i < size; ++i) {
      const auto at = permutation(i);
      fixed += at == i;
      if (i > 0) descents += at < permutation(i - 1);
      correlation += (double(i) - 499.5) * (double(at) - 499.5) / (size * size / 12.0);
    }
  }
  CHECK(std::abs(fixed / keys - 1) < 0.35);  // 5 standard deviations
  CHECK(std::abs(descents / keys / (size - 1) - 0.5) < 0.005);
  CHECK(std::abs(correlation / keys / size) < 0.012);
  for (const auto count : first) CHECK(std::abs(count - keys / 10) < 25);
}

TEST_CASE("orders differ by epoch and seed") {
  const auto order = [](int64_t epoch, uint64_t seed) {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < 50; ++i) places.push_back(data::shuffled(epoch * 50 + i, 50, seed));
    return places;
  };
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    for (uint64_t seed = 0; seed < 20; ++seed) orders.insert(order(epoch, seed));
  }
  CHECK(orders.size() == 400);
  auto sorted = order(3, 4);
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < 50; ++i) CHECK(sorted[i] == i);
}
