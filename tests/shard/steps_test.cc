// Steps of unrolled loops among the nodes of a graph.
#include <catch2/catch.hpp>
#include <numeric>

#include "shard/solver/repeated_steps.h"

using perigee::shard::find_repeated_steps;

namespace {

std::vector<int> sequence(const std::vector<std::pair<std::vector<int>, int>>& parts) {
  std::vector<int> kinds;
  for (const auto& [step, times] : parts) {
    for (int k = 0; k < times; ++k) kinds.insert(kinds.end(), step.begin(), step.end());
  }
  return kinds;
}

}  // namespace

TEST_CASE("later steps of a loop are represented by its first, whatever surrounds them") {
  // As of an LSTM: a step has several nodes of a kind, and the first one further nodes.
  const std::vector<int> step = {1, 1, 2, 2, 3, 4, 4, 5, 4, 5};
  const auto kinds = sequence({{{9, 1, 8, 1, 2}, 1}, {step, 6}, {{7, 4, 5}, 1}, {step, 4}});
  const auto first = find_repeated_steps(kinds);
  // The loop may begin at any node of the step.
  const size_t size = step.size();
  for (size_t n = 5 + size; n < 5 + 6 * size; ++n) CHECK(first[n] == first[n - size]);
  for (size_t n = 5 + 6 * size + 3 + size; n < kinds.size(); ++n) {
    CHECK(first[n] == first[n - size]);
    CHECK(first[n] >= 5 + 6 * size);  // another loop
  }
  for (size_t n = 0; n < kinds.size(); ++n) {
    CHECK(kinds[first[n]] == kinds[n]);
    CHECK(first[first[n]] == first[n]);
    CHECK(first[n] <= n);
  }
}

TEST_CASE("a loop within a step is found in the first step, which the others follow") {
  auto step = sequence({{{1, 2, 3, 4}, 5}});
  step.insert(step.end(), {5, 6, 7});
  const auto first = find_repeated_steps(sequence({{step, 4}}));
  CHECK(std::accumulate(first.begin(), first.end(), size_t{0},
                        [](size_t most, size_t n) { return std::max(most, n); }) < step.size());
  CHECK(first[4] == 0);
  CHECK(first[step.size() + 17] == 1);
}

TEST_CASE("nodes that repeat less than four times, or without order, represent themselves") {
  for (const auto& kinds :
       {sequence({{{1, 2, 3, 4, 5, 6, 7}, 3}}), sequence({{{1}, 8}}),
        std::vector<int>{1, 2, 3, 1, 3, 2, 2, 1, 3, 3, 2, 1, 3, 1, 2, 2, 3, 1, 1, 3}}) {
    const auto first = find_repeated_steps(kinds);
    for (size_t n = 0; n < kinds.size(); ++n) CHECK(first[n] == n);
  }
}
