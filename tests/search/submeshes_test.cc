// The search among stages of unequal submeshes.
#include "search/space/submeshes.h"

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "cost/cluster.h"
#include "search/cut/heterogeneous_cut.h"
#include "search/model/message.h"
#include "tests/search/support_search.h"

using namespace perigee;
using search::Candidate;
using search::ChainPlanner;
using search::cluster;
using search::Submesh;

namespace {

using Json = nlohmann::json;

Json list_of(const std::vector<Submesh>& row) {
  auto list = Json::array();
  for (const auto& [tensor, data] : row) {
    list.push_back(Json::array({Json::array({"tensor", tensor}), Json::array({"data", data})}));
  }
  return list;
}

std::vector<Candidate> candidates(ChainPlanner& planner, const cost::Cluster& on, const Json& pins,
                                  size_t most = 100000) {
  planner.request.pins = search::parse_pins(pins);
  return search::candidates(planner.request, on, planner.none, planner.traces, most);
}

// Returns the least predicted seconds under the pins; infinity where no plan exists.
double least_seconds(ChainPlanner& planner, const cost::Cluster& on, const Json& pins) {
  try {
    return candidates(planner, on, pins, 1).front().estimate.seconds;
  } catch (const Error&) {
    return std::numeric_limits<double>::infinity();
  }
}

// A cluster of two kinds of devices, the second `slower` times as slow.
cost::Cluster two_kinds(int64_t first, int64_t second, double slower) {
  auto on = cluster(first + second);
  on.devices.front().count = first;
  auto other = on.devices.front();
  other.name = "slow";
  other.count = second;
  other.bandwidth /= slower;
  other.vector /= slower;
  for (auto& [dtype, peak] : other.peak) peak /= slower;
  on.devices.push_back(other);
  return on;
}

}  // namespace

TEST_CASE("few ranks have all rows of submeshes, more ranks rows of two runs of equal submeshes") {
  const auto count = [](search::RowOptions options) {
    return search::rows_of_submeshes(options).size();
  };
  search::RowOptions few{.ranks = 3, .most_stages = 8, .node = 8, .batch = 12};
  std::set<std::string> texts;
  for (const auto& row : search::rows_of_submeshes(few)) texts.insert(search::to_string(row));
  CHECK(texts == std::set<std::string>{"data 2 | 1 rank", "1 rank | data 2", "tensor 2 | 1 rank",
                                       "1 rank | tensor 2"});
  few.batch = 9;  // not divisible by two
  CHECK(count(few) == 2);
  // Compositions of n where a part k counts tau(k) times (its tensor x data shapes), less the
  // homogeneous ones: tau(n) of one stage, and tau(d) of n / d stages for each divisor d < n.
  few.batch = 12 * 5 * 7;
  for (const auto& [ranks, rows] : std::map<int64_t, size_t>{{4, 18 - 3 - 3}, {6, 108 - 4 - 5}}) {
    few.ranks = ranks;
    CHECK(count(few) == rows);
  }
  few.ranks = 6;
  few.pipe = 2;
  for (const auto& row : search::rows_of_submeshes(few)) CHECK(row.size() == 2);
  few.tensor = 1;
  CHECK(count(few) == 4);  // 5 + 1 and 4 + 2, in both orders
  few.pipe = few.tensor = {};
  few.sizes = "small_power_of_two";
  for (const auto& row : search::rows_of_submeshes(few)) {
    for (const auto& submesh : row) CHECK(search::has_size("power_of_two", submesh.ranks()));
  }
  // A tensor group lies within a node.
  search::RowOptions many{.ranks = 12, .most_stages = 3, .node = 4, .batch = 64};
  int seen = 0;
  for (const auto& row : search::rows_of_submeshes(many)) {
    ++seen;
    size_t changes = 0;
    for (size_t s = 1; s < row.size(); ++s) changes += !(row[s] == row[s - 1]);
    CHECK(changes == 1);
    CHECK(row.front().tensor <= 4);
  }
  CHECK(seen > 10);
  CHECK(search::is_row({{2, 1}, {2, 1}, {4, 2}}, many));
  CHECK_FALSE(
      search::is_row({{3, 1}, {2, 1}, {1, 7}}, many));  // ranks 3 and 4 are on different nodes
}

TEST_CASE("a cut into heterogeneous stages is the best of all cuts") {
  std::mt19937 random(11);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  int fit = 0;
  for (int i = 0; i < 300; ++i) {
    const int stages = draw(1, 4), blocks = draw(stages, 10);
    std::vector<std::vector<search::CutStageTimes>> times;
    for (int s = 0; s < stages; ++s) {
      const double block = draw(1, 9), more = draw(0, 9), until_norm = draw(0, 20);
      const int room = draw(1, 10);
      auto& list = times.emplace_back(1);
      for (int length = 1; length <= blocks; ++length) {
        list.push_back({length <= room, more + block * length, more + 0.6 * block * length,
                        until_norm + length, double(draw(0, 9))});
      }
    }
    const search::HeterogeneousRow row{.blocks = blocks,
                                       .stages = stages,
                                       .microbatches = draw(1, 8),
                                       .until_norm_bound = double(draw(0, 12)),
                                       .times = [&](int s, int n) { return times[s][n]; }};
    const auto price = [&](const std::vector<int>& lengths) {
      double sum = 0, longest = 0, until_norm = row.until_norm_bound, early = 0, optimizer = 0;
      for (int s = 0; s < stages; ++s) {
        const auto& one = times[s][lengths[s]];
        if (!one.fits) return std::numeric_limits<double>::infinity();
        sum += one.seconds;
        longest = std::max(longest, one.seconds);
        until_norm = std::max(until_norm, one.until_norm - early);
        early += one.backward;
        optimizer = std::max(optimizer, one.optimizer);
      }
      return sum + double(row.microbatches - 1) * longest + until_norm + optimizer;
    };
    double least = std::numeric_limits<double>::infinity();
    std::vector<int> lengths;
    const std::function<void(int)> all = [&](int left) {
      const int later_stages = stages - int(lengths.size());
      if (later_stages == 0) {
        if (left == 0) least = std::min(least, price(lengths));
        return;
      }
      for (int length = 1; length <= left - later_stages + 1; ++length) {
        lengths.push_back(length);
        all(left - length);
        lengths.pop_back();
      }
    };
    all(blocks);
    const auto found = search::cut_heterogeneous(row);
    CAPTURE(i, stages, blocks, row.microbatches);
    CHECK(found.has_value() == std::isfinite(least));
    if (!found) continue;
    ++fit;
    CHECK(std::accumulate(found->begin(), found->end(), 0) == blocks);
    CHECK(price(*found) == Approx(least));
  }
  CHECK(fit > 100);
}

TEST_CASE("a transfer takes as long as its busiest rank") {
  const auto on = cluster(8);
  cost::NoMeasurements none;
  simulate::OpCosts costs(on, none);
  const auto seconds = [&](Submesh from, Submesh to, bool split = false) {
    return search::message_seconds({from, 0}, {to, from.ranks()}, 1e6, split, costs);
  };
  const auto message = [&](double bytes) {
    return costs
        .collective({cost::CollectiveKind::message, compile::Stream::over("pipe"), {0, 1}, bytes})
        .seconds;
  };
  CHECK(seconds({1, 1}, {1, 1}) == Approx(message(1e6)));
  CHECK(seconds({1, 2}, {1, 2}) == Approx(message(5e5)));
  CHECK(seconds({1, 2}, {1, 1}) == Approx(message(1e6)));  // the receiver receives both halves
  CHECK(seconds({1, 1}, {1, 2}) == Approx(message(1e6)));
  CHECK(seconds({1, 1}, {2, 1}) ==
        Approx(message(2e6)));  // the sender sends the whole tensor to both
  CHECK(seconds({2, 1}, {1, 2}) == Approx(message(5e5)));  // each replica sends a half
  CHECK(seconds({2, 1}, {2, 1}, true) == Approx(message(5e5)));
  CHECK(seconds({2, 1}, {4, 1}, true) == Approx(message(5e5)));
  CHECK(seconds({1, 2}, {1, 3}) == Approx(message(5e5)));
}

TEST_CASE(
    "the best predicted plan is the best over all rows of submeshes, cuts and rectangular meshes") {
  struct Case {
    search::Chain shape;
    int64_t world;
    double bandwidth;
  };
  for (const auto& [shape, world, bandwidth] :
       {Case{{.blocks = 4, .batch = 8, .width = 256}, 3, 1e9},
        Case{{.blocks = 5, .batch = 6, .width = 64}, 3, 1e10},
        Case{{.blocks = 4, .batch = 4, .width = 256}, 4, 1e9},
        Case{{.blocks = 3, .batch = 4, .width = 128}, 6, 1e8}}) {
    ChainPlanner planner(shape, world);
    auto on = cluster(world);
    on.links.front().bandwidth = bandwidth;
    const auto all = candidates(planner, on, {});
    for (const auto& candidate : all) {
      CHECK(candidate.estimate.lower_bound <= candidate.estimate.seconds * (1 + 1e-9));
    }
    double least = least_seconds(planner, on, {{"submeshes", false}});
    const search::RowOptions options{
        .ranks = world, .most_stages = shape.blocks, .node = world, .batch = shape.batch};
    for (const auto& row : search::rows_of_submeshes(options)) {
      const Json pins{{"submeshes", list_of(row)}};
      const double of_row = least_seconds(planner, on, pins);
      least = std::min(least, of_row);
      // All cuts into two stages.
      if (row.size() != 2 || std::isinf(of_row)) continue;
      double of_cuts = std::numeric_limits<double>::infinity();
      for (int64_t cut = 1; cut < shape.blocks; ++cut) {
        auto at = pins;
        at["starts"] = Json::array({"blocks." + std::to_string(cut)});
        of_cuts = std::min(of_cuts, least_seconds(planner, on, at));
      }
      CAPTURE(search::to_string(row));
      CHECK(of_cuts <= of_row * (1 + 1e-9));
      CHECK(of_row == Approx(of_cuts).epsilon(1e-9));
    }
    CAPTURE(shape.blocks, shape.batch, shape.width, world);
    CHECK(all.front().estimate.seconds == Approx(least).epsilon(1e-9));
  }
}

TEST_CASE("the model predicts the time of plans with unequal submeshes") {
  for (const int64_t world : {3, 4, 6}) {
    ChainPlanner planner({.blocks = 6, .batch = 24, .width = 256}, world);
    const auto on = cluster(world);
    int seen = 0;
    double time_error = 0, memory_error = 0, judged = 0;
    for (const auto& candidate :
         candidates(planner, on, {{"submeshes", "all"}, {"offload", false}}, 4000)) {
      const auto& choice = candidate.choice;
      if (choice.submeshes.empty() || ++seen % 20 != 0) continue;
      double peak = 0;
      const auto simulated = planner.judge(candidate, on, peak);
      CAPTURE(world, search::to_string(candidate.choice));
      // Tensor parallelism shards the chain's blocks alternately by columns and rows.
      CHECK(candidate.estimate.seconds == Approx(simulated.step_seconds).epsilon(0.23));
      CHECK(candidate.estimate.bytes == Approx(peak).epsilon(0.13));
      time_error += std::abs(candidate.estimate.seconds / simulated.step_seconds - 1);
      memory_error += std::abs(candidate.estimate.bytes / peak - 1);
      ++judged;
    }
    CHECK(seen > 30);
    CHECK(time_error / judged < 0.06);
    CHECK(memory_error / judged < 0.03);
  }
}

TEST_CASE("the model includes gradient sums over tensor ranks without other exchanges") {
  for (const double bandwidth : {1e8, 1e9}) {
    ChainPlanner planner({.blocks = 6, .batch = 12, .width = 256}, 3);
    auto on = cluster(3);
    on.links.front().bandwidth = bandwidth;
    const auto check = [&](const Json& pins) {
      const auto first = candidates(planner, on, pins, 1).front();
      double peak = 0;
      const auto simulated = planner.judge(first, on, peak);
      CAPTURE(bandwidth, search::to_string(first.choice));
      CHECK(first.estimate.seconds == Approx(simulated.step_seconds).epsilon(0.08));
    };
    check({{"tensor", 3}, {"micro", 12}, {"checkpoint", false}});
    check(Json::parse(R"({"submeshes": [[["tensor", 2]], []], "starts": ["blocks.2"],
                          "micro": 12, "checkpoint": false})"));
  }
}

TEST_CASE("ranks that no rectangular mesh uses well form unequal submeshes") {
  // 256 samples on three ranks allow no data axis of three.
  ChainPlanner planner({.blocks = 6, .batch = 256, .width = 256}, 3);
  auto on = cluster(3);
  on.links.front().bandwidth = 1e11;
  const auto found = planner.find(on);
  planner.request.pins = search::parse_pins({{"submeshes", false}});
  const auto rectangle = planner.find(on);
  CHECK(rectangle.best.choice.submeshes.empty());
  CHECK_FALSE(rectangle.plan.mesh.is_ragged());
  CHECK(found.best.seconds <= rectangle.best.seconds);
  CHECK(found.lower_bound <= rectangle.lower_bound);
  planner.request.pins = search::parse_pins(Json::parse(R"({"submeshes": [[["data", 2]], []]})"));
  const auto pinned = planner.find(on);
  CHECK(pinned.plan.mesh.is_ragged());
  CHECK(pinned.best.choice.submeshes == std::vector<Submesh>{{1, 2}, {1, 1}});
  CHECK(pinned.plan.mesh.size() == 3);
  const auto text = plan::explain(pinned.plan);
  CHECK_THAT(text, Catch::Contains("stages of data 2 | 1 rank"));
  CHECK_THAT(text, Catch::Contains("stage 0 has 2 ranks (0, 1) as data=2"));
  // With many microbatches, the stage of two ranks has most of the blocks.
  planner.request.pins.schedule = "1f1b";
  planner.request.pins.zero = 0;
  planner.request.pins.micro = 8;
  CHECK(planner.find(on).best.estimate.cuts.front() >= 3);
}

TEST_CASE("the faster devices of a cluster get more blocks") {
  for (const double slower : {2.0, 4.0}) {
    auto on = two_kinds(2, 2, slower);
    on.links.front().bandwidth = 1e11;
    ChainPlanner planner({.blocks = 12, .batch = 512, .width = 256}, 4);
    const Json pins{{"pipe", 2}, {"data", 2}, {"schedule", "1f1b"}, {"zero", 0}};
    planner.request.pins = search::parse_pins(pins);
    const auto found = planner.find(on);
    const auto cut = found.best.estimate.cuts.front();
    CHECK(cut == Approx(12 * slower / (1 + slower)).margin(1));
    auto even = pins;
    even["starts"] = {"blocks.6"};
    planner.request.pins = search::parse_pins(even);
    const auto equal = planner.find(on);
    CHECK(equal.best.estimate.cuts == std::vector<int>{6});
    CHECK(equal.best.seconds > 1.1 * found.best.seconds);
    CHECK(found.best.estimate.seconds == Approx(found.best.seconds).epsilon(0.1));
    // The search without pins finds a plan at least as fast.
    planner.request.pins = {};
    CHECK(planner.find(on).best.seconds <= 1.02 * found.best.seconds);
  }
}

TEST_CASE("each stage is limited by the memory of its own devices") {
  auto on = two_kinds(1, 2, 2);
  on.links.front().bandwidth = 1e11;
  ChainPlanner planner({.blocks = 6, .batch = 512, .width = 256}, 3);
  // One fast device and two slow ones have equal speed.
  const Json pins = Json::parse(R"({"submeshes": [[], [["data", 2]]], "zero": 0})");
  planner.request.pins = search::parse_pins(pins);
  const auto halves = planner.find(on);
  CHECK(halves.best.estimate.cuts.front() == Approx(3).margin(1));
  // The slow devices have less memory: their stage gets fewer blocks.
  on.devices[1].memory = 0.75 * halves.best.peak_bytes / (1 - search::kReserve);
  const auto tight = planner.find(on);
  CHECK(tight.best.estimate.cuts.front() >= halves.best.estimate.cuts.front());
  const auto& peaks = tight.plan.prediction.peak_bytes;
  REQUIRE(peaks.size() == 3);
  CHECK(double(peaks[1]) <= 0.75 * halves.best.peak_bytes);
  CHECK(tight.best.seconds >= halves.best.seconds);
}

TEST_CASE("combinations of less memory are tried if those the model prefers do not fit") {
  ChainPlanner planner({.blocks = 4, .batch = 12, .width = 256}, 5);
  auto on = cluster(5);
  on.links.front().bandwidth = 1e8;
  planner.request.pins = search::parse_pins({{"tensor", 5}});
  const double limit = 0.8 * planner.find(on).best.peak_bytes;
  planner.request.pins = {};
  planner.request.memory_limit = limit;
  const auto found = planner.find(on);
  CHECK(found.best.peak_bytes <= limit);
  CHECK(found.best.estimate.limit == Approx(limit));
  planner.request.memory_limit = limit / 100;
  CHECK_THROWS_WITH(planner.find(on), Catch::Contains("no plan fits"));
}

TEST_CASE("pinned submeshes and cuts are kept, or refused with the reason") {
  const auto on = cluster(4);
  ChainPlanner planner({.blocks = 6, .batch = 8}, 4);
  const auto find = [&](const Json& pins) {
    planner.request.pins = search::parse_pins(pins);
    return planner.find(on);
  };
  const auto cut = find({{"starts", {"blocks.1", "blocks.5"}}});
  CHECK(cut.plan.pipeline.starts == std::vector<std::string>{"blocks.1", "blocks.5"});
  CHECK(find({{"starts", {"blocks.4"}}, {"data", 2}}).best.estimate.cuts == std::vector<int>{4});
  const auto dealt = find(
      {{"starts", {"blocks.1", "blocks.2", "blocks.4"}}, {"schedule", "interleaved"}, {"pipe", 2}});
  CHECK(dealt.best.choice.chunks == 2);
  CHECK(dealt.best.estimate.cuts == std::vector<int>{1, 2, 4});
  const auto homogeneous = find(Json::parse(R"({"submeshes": [[["data", 2]], [["data", 2]]]})"));
  CHECK(homogeneous.best.choice.submeshes.empty());
  CHECK(homogeneous.best.choice.pipe == 2);
  const auto sizes = candidates(planner, on, {{"submeshes", "power_of_two"}}, 1000);
  for (const auto& candidate : sizes) {
    for (const auto& submesh : candidate.choice.submeshes) CHECK(submesh.ranks() != 3);
  }
  const auto refusal = [&](const Json& pins) -> std::string {
    try {
      find(pins);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(refusal({{"submeshes", "powers"}}),
             Catch::Contains("submeshes is all, power_of_two, small_power_of_two, but got"));
  CHECK_THAT(refusal(Json::parse(R"({"submeshes": [[["expert", 2]], []]})")),
             Catch::Contains("stages of unequal submeshes have the axes tensor and data"));
  CHECK_THAT(refusal(Json::parse(R"({"submeshes": [[["data", 2]], []]})")),
             Catch::Contains("the submeshes that are pinned have 3 ranks, but there are 4"));
  CHECK_THAT(refusal(Json::parse(R"({"submeshes": [[["data", 3]], []], "pipe": 3})")),
             Catch::Contains("submeshes have pipe = 2, but pipe = 3 is pinned"));
  CHECK_THAT(refusal(Json::parse(R"({"submeshes": [[["data", 3]], []], "tensor": 1})")),
             Catch::Contains("submeshes have axes of their own, but tensor is pinned"));
  CHECK_THAT(refusal(Json::parse(R"({"submeshes": [[["tensor", 3]], []], "schedule": "zb1p"})")),
             Catch::Contains("searched with the schedules gpipe, 1f1b and eager_1f1b"));
  CHECK_THAT(refusal({{"starts", {"blocks.9"}}}),
             Catch::Contains("starts names blocks, or the module after them, in the order"));
  CHECK_THAT(refusal({{"starts", {"blocks.3", "blocks.2"}}}),
             Catch::Contains("but got \"blocks.2\""));
}

TEST_CASE("unequal submeshes of many ranks are searched if pins require it") {
  ChainPlanner planner({.blocks = 6, .batch = 24, .width = 256}, 12);
  const auto on = cluster(12);
  const auto counts = [&](const Json& pins) {
    int64_t count = 0;
    for (const auto& candidate : candidates(planner, on, pins, 1000)) {
      count += !candidate.choice.submeshes.empty();
    }
    return count;
  };
  const Json few{{"micro", 1}, {"checkpoint", false}, {"zero", 0}, {"schedule", "1f1b"}};
  const auto with = [&](const char* sizes) {
    auto pins = few;
    pins["submeshes"] = sizes;
    return pins;
  };
  CHECK(counts(few) == 0);
  CHECK(counts(with("all")) > counts(with("power_of_two")));
  CHECK(counts(with("power_of_two")) > counts(with("small_power_of_two")));
  CHECK(counts(with("small_power_of_two")) > 0);
}
