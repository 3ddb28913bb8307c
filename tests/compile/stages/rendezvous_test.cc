// Frame copies of the parts of a pipeline: microbatches that a part has memory for.
#include "compile/stages/rendezvous.h"

#include <catch2/catch.hpp>
#include <map>

namespace perigee::compile {
namespace {

using Edges = std::set<std::pair<int, int>>;

// Each part reads the previous part's activations and sends it gradients.
Edges chain(int parts) {
  Edges edges;
  for (int p = 0; p + 1 < parts; ++p) {
    edges.emplace(p, p + 1);
    edges.emplace(p + 1, p);
  }
  return edges;
}

std::vector<int64_t> copies(const char* name, int stages, int microbatches) {
  const auto schedule = make_schedule(
      {.name = name, .stages = stages, .microbatches = microbatches});
  std::vector<int64_t> counts;
  const auto edges = chain(stages * schedule.chunks);
  for (const auto& part :
       copies_of_parts(schedule, edges, find_interleaved_ops(schedule, edges, {}))) {
    CHECK(part.kept == 0);
    counts.push_back(part.recomputed);
  }
  return counts;
}

TEST_CASE("a part holds as many microbatches as its stage has in flight") {
  CHECK(copies("1f1b", 4, 8) == std::vector<int64_t>{4, 3, 2, 1});
  CHECK(copies("gpipe", 3, 5) == std::vector<int64_t>{5, 5, 5});
  CHECK(copies("1f1b", 2, 1) == std::vector<int64_t>{1, 1});
}

TEST_CASE("the rendezvous of a schedule are computed once") {
  const auto schedule = make_schedule({.name = "1f1b", .stages = 64, .microbatches = 1536});
  const auto edges = chain(64);
  const auto interleaved = find_interleaved_ops(schedule, edges, {});
  Rendezvous rendezvous;
  const auto& parts = rendezvous.copies(schedule, edges, interleaved, 0, {});
  CHECK(parts.front().recomputed == 64);
  CHECK(parts.back().recomputed == 1);
  for (int stage = 0; stage < 64; ++stage) {
    CHECK(&rendezvous.copies(schedule, edges, interleaved, 0, {}) == &parts);
  }
  const auto& kept = rendezvous.copies(schedule, edges, interleaved, 1, {});
  CHECK(&kept != &parts);
  CHECK(kept.front().kept == 1);
}

TEST_CASE("the given number of microbatches in flight keep their activations") {
  const auto schedule = make_schedule({.name = "1f1b", .stages = 4, .microbatches = 8});
  // F0 F1 F2 F3 B0 F4 B1 ...: microbatch 4 starts after microbatch 0, which keeps, has ended.
  CHECK(kept_microbatches(schedule.orders[0], 8, 1) ==
        std::vector<bool>{true, false, false, false, true, false, false, false});
  CHECK(kept_microbatches(schedule.orders[3], 8, 1) == std::vector<bool>(8, true));
  CHECK(kept_microbatches(schedule.orders[0], 8, 0) == std::vector<bool>(8, false));
  std::vector<std::pair<int64_t, int64_t>> counts;
  const auto not_interleaved = find_interleaved_ops(schedule, chain(4), {});
  for (const auto& part : copies_of_parts(schedule, chain(4), not_interleaved, 2)) {
    counts.emplace_back(part.recomputed, part.kept);
  }
  CHECK(counts == std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {1, 2}, {2, 0}, {1, 0}});
}

TEST_CASE("parts that share a pool of frames have one copy more than microbatches in flight") {
  const auto schedule = make_schedule(
      {.name = "interleaved", .stages = 4, .microbatches = 16, .chunks = 4});
  const auto edges = chain(16);
  const auto not_interleaved = find_interleaved_ops(schedule, edges, {});
  PoolsOfFrames pools;
  for (int p = 0; p < 16; ++p) pools.recomputed.push_back(p % 4);
  const auto shared = copies_of_parts(schedule, edges, not_interleaved, 0, pools),
             separate = copies_of_parts(schedule, edges, not_interleaved);
  for (int s = 0; s < 4; ++s) {
    int64_t sum = 0;
    for (int p = s; p < 16; p += 4) {
      CHECK(shared[p].recomputed == 3 * 4 + 2 * (3 - s) + 1 + 1);
      sum += separate[p].recomputed;
    }
    CHECK(shared[s].recomputed < sum);
  }
}

TEST_CASE("parts that read each other's values do not share a pool") {
  FramePools pools{0, 1, 0, 1, 0};
  separate_users(pools, Edges{{0, 2}, {1, 2}});
  CHECK(pools == FramePools{0, 1, 2, 1, 4});
  pools = {0, 0, 0};
  separate_users(pools, Edges{{1, 1}, {0, 2}});
  CHECK(pools == FramePools{0, 1, 2});
}

TEST_CASE("a span is assigned the copy that has been free for the longest time") {
  CHECK(assign_copies({{0, 3}, {1, 4}, {5, 6}, {7, 8}}, 1) == std::vector<int32_t>{0, 1, 0, 1});
  CHECK(assign_copies({{0, 3}, {4, 6}, {7, 8}}, 2) == std::vector<int32_t>{0, 1, 0});
}

TEST_CASE("parts get more copies if their stages would deadlock") {
  // `least`: microbatches in flight at once, from the forward pass to the last use of the
  // part's frame.
  const auto schedule = make_schedule({.name = "dualpipe_v", .stages = 4, .microbatches = 8});
  std::vector<int64_t> least(8);
  for (int s = 0; s < 4; ++s) {
    std::map<int, std::set<int>> open;
    const auto& order = schedule.orders[s];
    for (size_t r = 0; r < order.size(); ++r) {
      const int part = schedule.parts[s][order[r].chunk];
      open[part].insert(order[r].microbatch);
      least[part] = std::max(least[part], static_cast<int64_t>(open[part].size()));
      bool last = true;
      for (size_t later = r + 1; later < order.size(); ++later) {
        last = last && !(order[later].chunk == order[r].chunk &&
                         order[later].microbatch == order[r].microbatch);
      }
      if (last) open[part].erase(order[r].microbatch);
    }
  }
  const auto given = copies("dualpipe_v", 4, 8);
  for (size_t p = 0; p < least.size(); ++p) {
    CHECK((given[p] > least[p] || given[p] == 8));  // 8: each microbatch has a copy of its own
  }
}

// Returns the interleaved ops of a stage as text: "B0 F2".
std::vector<std::string> interleaved_text(const Schedule& schedule,
                                          const InterleavedOps& interleaved, int stage) {
  std::vector<std::string> found;
  const auto& order = schedule.orders[stage];
  for (size_t r = 0; r < order.size(); ++r) {
    const auto [first, last] = interleaved[stage][r];
    if (first == last) continue;
    if (r == first) found.emplace_back();
    found.back() += (r == first ? "" : " ") + to_text(order[r]);
  }
  return found;
}

TEST_CASE("a backward pass alternates with the next forward pass") {
  using Texts = std::vector<std::string>;
  const auto one = make_schedule({.name = "1f1b", .stages = 1, .microbatches = 3});
  CHECK(interleaved_text(one, find_interleaved_ops(one, {}, {0}), 0) ==
        Texts{"B0.0 F1.0", "B1.0 F2.0"});
  CHECK(copies_of_parts(one, {}, find_interleaved_ops(one, {}, {0}))[0].recomputed == 2);
  CHECK(copies_of_parts(one, {}, find_interleaved_ops(one, {}, {}))[0].recomputed == 1);
  const auto two = make_schedule({.name = "1f1b", .stages = 2, .microbatches = 4});
  CHECK(interleaved_text(two, find_interleaved_ops(two, chain(2), {0, 1}), 0) ==
        Texts{"B0.0 F2.0", "B1.0 F3.0"});
  CHECK(interleaved_text(two, find_interleaved_ops(two, chain(2), {1}), 0).empty());
  // Weight gradients belong to the backward pass that they follow.
  using Kind = PipelineKind;
  CHECK(interleaved_ranges({{Kind::forward, 0},
                            {Kind::input_grad, 0},
                            {Kind::weight_grad, 0},
                            {Kind::forward, 1},
                            {Kind::weight_grad, 1},
                            {Kind::forward, 2}}) ==
        std::vector<InterleavedRange>{{0, 0}, {1, 3}, {1, 3}, {1, 3}, {4, 4}, {5, 5}});
  // Chunks of one microbatch depend on each other.
  CHECK(interleaved_ranges({{Kind::backward, 0, 1}, {Kind::forward, 0, 0}}) ==
        std::vector<InterleavedRange>{{0, 0}, {1, 1}});
}

TEST_CASE("interleaved microbatches deadlock no schedule") {
  constexpr int kStages = 4, kMicrobatches = 8;
  std::map<std::string, size_t> found;
  for (const auto& name : schedule_names()) {
    const auto schedule = make_schedule(
        {.name = name, .stages = kStages, .microbatches = kMicrobatches});
    const int parts = kStages * schedule.chunks;
    std::set<int> all;
    for (int p = 0; p < parts; ++p) all.insert(p);
    const auto interleaved = find_interleaved_ops(schedule, chain(parts), all);
    for (int s = 0; s < kStages; ++s)
      found[name] += interleaved_text(schedule, interleaved, s).size();
    for (const auto& part : copies_of_parts(schedule, chain(parts), interleaved)) {
      CHECK(part.recomputed <= kMicrobatches);
    }
  }
  CHECK(found["gpipe"] == 0);
  CHECK(found["looped_bfs"] == 0);
  CHECK(found["1f1b"] == 4 + 5 + 6 + 7);
  CHECK(found["eager_1f1b"] == 1 + 3 + 5 + 7);
  CHECK(found["interleaved"] == 32);
  CHECK(found["dualpipe_v"] > 0);
  // Interleaving has one microbatch more in flight.
  const auto schedule = make_schedule({.name = "1f1b", .stages = 4, .microbatches = 8});
  std::vector<int64_t> counts;
  for (const auto& part : copies_of_parts(schedule, chain(4),
                                          find_interleaved_ops(schedule, chain(4), {0, 1, 2, 3}))) {
    counts.push_back(part.recomputed);
  }
  CHECK(counts == std::vector<int64_t>{5, 4, 3, 2});
}

}  // namespace
}  // namespace perigee::compile
