// Pins: fixed values, memory factors and time limits of a search.
#include <catch2/catch.hpp>
#include <chrono>
#include <set>

#include "base/error.h"
#include "tests/search/support_search.h"

using namespace perigee;
using search::ChainPlanner;
using search::Choice;
using search::cluster;

TEST_CASE("a pinned schedule that splits gradients is faster where the bubble is large") {
  ChainPlanner planner({.blocks = 8, .batch = 8, .width = 512}, 4);
  planner.request.pins = search::parse_pins(
      {{"pipe", 4}, {"micro", 1}, {"checkpoint", false}, {"chunks", 1}});
  planner.request.pins.schedule = "zb1p";
  const auto on = cluster(4);
  const auto found = planner.find(on);
  CHECK(found.best.choice.costs.size() == 4);
  planner.request.pins.schedule = "1f1b";
  const auto plain = planner.find(on);
  CHECK(plain.best.seconds > 1.02 * found.best.seconds);
  planner.request.pins.schedule = "zbv";
  planner.request.pins.chunks = {};
  CHECK(planner.find(on).best.choice.chunks == 2);
  // v_min exists for four stages, but not for two.
  planner.request.pins.schedule = "v_min";
  CHECK(planner.find(on).best.choice.schedule == "v_min");
  planner.request.pins.pipe = planner.request.pins.data = 2;
  CHECK_THROWS_WITH(
      planner.find(on),
      Catch::Contains("there is no v_min of 2 parts for 2 stages and 4 microbatches"));
}

TEST_CASE("of many cuts the search takes one with the pinned balance of the stages' arithmetic") {
  // The loss takes time, but has no products: the fastest last stage has fewer blocks.
  ChainPlanner planner({.blocks = 15, .batch = 8, .width = 16, .gelus = 0}, 4);
  auto one_kind = cluster(4);
  one_kind.devices.front().vector = 1e8;
  auto two_kinds = one_kind;
  two_kinds.devices.front().count = 2;
  auto& slow = two_kinds.devices.emplace_back(two_kinds.devices.front());
  slow.name = "slow";
  slow.peak[graph::DType::float32] /= 100;
  slow.bandwidth /= 4;
  slow.vector /= 4;
  slow.launch *= 4;
  for (const auto& on : {one_kind, two_kinds}) {
    CAPTURE(on.devices.size());
    const nlohmann::json pins = {{"pipe", 4},   {"micro", 1},       {"checkpoint", false},
                                 {"chunks", 1}, {"offload", false}, {"schedule", "1f1b"}};
    const auto with = [&](double balance) {
      auto all = pins;
      all["balance"] = balance;
      return planner.candidates(on, all).front();
    };
    const auto free = planner.candidates(on, pins).front();
    const auto equal = with(0.95);
    // The first stage has the product before the blocks.
    CHECK(equal.choice.starts == std::vector<std::string>{"blocks.3", "blocks.7", "blocks.11"});
    CHECK(equal.choice.starts != free.choice.starts);
    CHECK(with(0.01).choice.starts == free.choice.starts);
    CHECK(with(0.5).estimate.seconds <= equal.estimate.seconds);
  }
  planner.shape.blocks = 14;
  planner.graphs.clear();
  planner.request.pins = search::parse_pins({{"pipe", 4}, {"balance", 0.95}, {"micro", 1}});
  CHECK_THROWS_WITH(
      planner.find(cluster(4)),
      Catch::Contains("whose smallest stage has at least 0.95 of the arithmetic of the "
                      "largest (balance)"));
  CHECK_THROWS_WITH(search::parse_pins({{"balance", 1.5}}), Catch::Contains("balance is 0 to 1"));
}

TEST_CASE("the stage fields of a pinned overlap apply to plans with stages") {
  ChainPlanner planner({.blocks = 4, .batch = 8}, 2);
  const auto on = cluster(2);
  for (const nlohmann::json& fields : {nlohmann::json{{"receives", true}},
                                       nlohmann::json{{"receives", true}, {"accumulate", true}}}) {
    const auto overlap = nlohmann::json::array({"overlap", fields});
    std::set<int64_t> pipes;
    for (const auto& one :
         planner.candidates(on, {{"methods", nlohmann::json::array({overlap})}, {"micro", 1}})) {
      const auto strategy = one.strategy.dump();
      CAPTURE(strategy);
      pipes.insert(one.choice.pipe);
      CHECK((strategy.find("receives") != std::string::npos) == (one.choice.pipe > 1));
      CHECK((strategy.find("accumulate\"") != std::string::npos) == fields.contains("accumulate"));
    }
    CHECK(pipes == std::set<int64_t>{1, 2});
  }
}

TEST_CASE("pinned values are kept, and the rest is searched") {
  ChainPlanner planner({.blocks = 4, .batch = 8}, 4);
  planner.request.pins = search::parse_pins({{"pipe", 2}, {"zero", 1}, {"micro", 1}});
  const auto found = planner.find(cluster(4));
  CHECK(found.best.choice.pipe == 2);
  CHECK(found.best.choice.micro == 1);
  CHECK((found.best.choice.data == 1 || found.best.choice.zero == 1));
  CHECK(found.plan.pipeline.cuts());
  CHECK_THROWS_WITH(search::parse_pins({{"pipes", 2}}), Catch::Contains("did you mean \"pipe\"?"));
  CHECK_THROWS_WITH(search::parse_pins({{"attention", "rings"}}),
                    Catch::Contains("attention is all_gather, ring, all_to_all, but got \"rings\", "
                                    "did you mean \"ring\"?"));
  CHECK_THROWS_WITH(search::parse_pins({{"schedule", "1f1"}}),
                    Catch::Contains("did you mean \"1f1b\"?"));
  CHECK_THROWS_WITH(search::parse_pins({{"expert", 0}}),
                    Catch::Contains("expert must be a whole number of at least 1, but got 0"));
  planner.request.pins = search::parse_pins({{"expert", 2}});
  CHECK_THROWS_WITH(
      planner.find(cluster(4)),
      Catch::Contains("expert = 2 is pinned, but the model has no mixture of experts"));
  planner.request.pins = search::parse_pins({{"context", 2}});
  CHECK_THROWS_WITH(planner.find(cluster(4)),
                    Catch::Contains("context = 2 is pinned, but the model has no attention"));
  planner.request.pins = search::parse_pins({{"tensor", 3}});
  CHECK_THROWS_WITH(planner.find(cluster(4)),
                    Catch::Contains("a mesh of 4 ranks must be possible"));
}

TEST_CASE("fields of pinned methods fix cuts and the sharding of weights") {
  ChainPlanner planner({.blocks = 4, .batch = 8}, 4);
  const auto pinned = [](const char* method, const nlohmann::json& fields) {
    return nlohmann::json::array({nlohmann::json::array({method, fields})});
  };
  planner.request.pins = search::parse_pins(
      {{"pipe", 2},
       {"chunks", 1},
       {"methods", pinned("pipeline_parallel", {{"starts", {"blocks.1"}}})}});
  CHECK(planner.find(cluster(4)).plan.pipeline.starts == std::vector<std::string>{"blocks.1"});
  planner.request.pins.pipe = 1;  // one stage has no cuts
  CHECK_FALSE(planner.find(cluster(4)).plan.pipeline.cuts());
  for (const std::string dim : {"column", "row"}) {
    planner.request.pins = search::parse_pins(
        {{"tensor", 4}, {"methods", pinned("tensor_parallel", {{dim, {"blocks.*"}}})}});
    const auto found = planner.find(cluster(4));
    const auto placement = mesh::to_string(found.plan.placements.at("blocks.2.weight"));
    CHECK(placement.substr(0, 2) == (dim == "column" ? "S0" : "S1"));
  }
}

TEST_CASE("a search at its time limit returns the best plan so far, and reports it") {
  ChainPlanner planner({.blocks = 8, .batch = 16}, 8);
  const auto whole = planner.find(cluster(8));
  CHECK_FALSE(whole.stopped);
  planner.request.pins = search::parse_pins({{"time_limit", 1e-9}});
  const auto found = planner.find(cluster(8));
  CHECK(found.stopped);
  CHECK(found.best.judged);
  CHECK(found.plan.mesh.size() == 8);
  CHECK(found.combinations < whole.combinations);
  CHECK(found.lower_bound <= found.best.estimate.seconds);
  CHECK_THAT(plan::explain(found.plan), Catch::Contains("the search was stopped after"));
  planner.request.pins = search::parse_pins({{"time_limit", 1e6}});
  const auto patient = planner.find(cluster(8));
  CHECK_FALSE(patient.stopped);
  CHECK(patient.best.choice == whole.best.choice);
  CHECK_THROWS_WITH(search::parse_pins({{"time_limit", 0}}),
                    Catch::Contains("time_limit must be a number above 0"));
}

TEST_CASE("the time limit interrupts a solver of cuts, whose best cut so far is used") {
  // Each cut is an integer program of 10,000 columns, which takes CBC minutes.
  ChainPlanner planner({.blocks = 96, .batch = 96, .width = 32}, 12);
  nlohmann::json pins{{"pipe", 12}, {"schedule", "1f1b"}, {"micro", 1}, {"offload", false}};
  planner.request.pins = search::parse_pins(pins);
  const double enough = planner.find(cluster(12)).best.peak_bytes;
  pins.update({{"solver", "ilp"}, {"time_limit", 0.3}, {"memory", 0.97 * enough}});
  planner.request.pins = search::parse_pins(pins);
  const auto begin = std::chrono::steady_clock::now();
  const auto found = planner.find(cluster(12));
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  CHECK(passed.count() < 20);
  CHECK(found.stopped);
  CHECK(found.best.judged);
  CHECK(found.best.peak_bytes <= 0.97 * enough);
  CHECK(found.lower_bound < found.best.estimate.seconds);
  pins["memory"] = 0.1 * enough;
  planner.request.pins = search::parse_pins(pins);
  CHECK_THROWS_WITH(planner.find(cluster(12)),
                    Catch::StartsWith("[auto] ") && Catch::Contains("fits"));
  // A search ended by time does not claim that no plan fits.
  pins["memory"] = 0.97 * enough;
  pins["time_limit"] = 1e-9;
  planner.request.pins = search::parse_pins(pins);
  CHECK_THROWS_WITH(planner.find(cluster(12)),
                    Catch::StartsWith("[auto] the time limit of 1e-09 s passed before a plan that "
                                      "fits was found: raise time_limit"));
}

TEST_CASE("a pinned limit of memory holds below the device's") {
  ChainPlanner planner({.blocks = 8, .batch = 64, .width = 32}, 4);
  const auto free = planner.find(cluster(4));
  planner.request.pins = search::parse_pins({{"memory", 0.8 * free.best.peak_bytes}});
  const auto tight = planner.find(cluster(4));
  CHECK(tight.best.peak_bytes <= 0.8 * free.best.peak_bytes);
  planner.request.pins = search::parse_pins({{"memory", 1000}});
  CHECK_THROWS_WITH(planner.find(cluster(4)), Catch::Contains("more than the limit of 0.977 KiB"));
  planner.request.pins = search::parse_pins({{"memory", 1e30}});
  CHECK(planner.find(cluster(4)).best.choice == free.best.choice);
}

TEST_CASE("one copy of the weights of a host is priced as the programs have it") {
  const auto on = cluster(4);
  const auto found = [&](int zero, int64_t sharing_ranks) {
    ChainPlanner planner({.blocks = 6, .batch = 8}, 4);
    planner.request.sharing_ranks = sharing_ranks;
    planner.request.pins = search::parse_pins(
        {{"data", 4}, {"micro", 2}, {"checkpoint", false}, {"zero", zero}});
    auto best = planner.find(on);
    const auto all = search::candidates(planner.request, on, planner.none, planner.traces, 1);
    return std::pair(std::move(best), all[0].estimate);
  };
  const double weights = 7 * 64 * 64 * 4;
  for (const int zero : {1, 2}) {
    CAPTURE(zero);
    const auto [together, estimate] = found(zero, 4);
    const auto [apart, other] = found(zero, 1);
    CHECK(together.plan.units[0].one_copy);
    CHECK(!apart.plan.units[0].one_copy);
    CHECK(other.bytes - estimate.bytes == Approx(0.75 * weights));
    CHECK(apart.best.peak_bytes - together.best.peak_bytes == Approx(0.75 * weights).epsilon(0.05));
    CHECK(estimate.seconds < other.seconds);
    CHECK(together.best.seconds < apart.best.seconds);
  }
}

TEST_CASE("pinned memory factors change the counted memory") {
  const auto on = cluster(2);
  const auto bytes = [&](nlohmann::json pins) {
    ChainPlanner planner({.blocks = 6, .batch = 8}, 2);
    pins.update({{"data", 2}, {"micro", 4}, {"checkpoint", false}});
    planner.request.pins = search::parse_pins(pins);
    const auto found = planner.find(on);
    const auto all = search::candidates(planner.request, on, planner.none, planner.traces, 1);
    return std::pair(found.best.peak_bytes, all[0].estimate.bytes);
  };
  // Seven weights of 64 x 64 floats. A buffer holds activations of 4 x 64 floats or a gradient.
  const double weight = 64 * 64 * 4, weights = 7 * weight;
  for (const int zero : {0, 1, 3}) {
    CAPTURE(zero);
    const double parts = zero > 0 ? 2 : 1;
    const auto own = bytes({{"zero", zero}});
    // adamw keeps two states for each weight.
    const auto two = bytes({{"zero", zero}, {"optimizer_resident", 2}});
    CHECK(two.first == Approx(own.first).epsilon(0.01));
    CHECK(two.second == Approx(own.second).epsilon(0.01));
    const auto six = bytes({{"zero", zero}, {"optimizer_resident", 6}});
    CHECK(six.first - two.first == Approx(4 * weights / parts).epsilon(0.01));
    CHECK(six.second - two.second == Approx(4 * weights / parts).epsilon(0.01));
    // The optimizer's temporary memory exceeds that of the passes.
    const auto large = bytes({{"zero", zero}, {"optimizer_transient", 100}});
    const auto larger = bytes({{"zero", zero}, {"optimizer_transient", 101}});
    CHECK(large.first > own.first);
    CHECK(larger.first - large.first == Approx(weights / parts).epsilon(0.01));
    CHECK(larger.second - large.second == Approx(weights / parts).epsilon(0.01));
    CHECK(bytes({{"zero", zero}, {"optimizer_transient", 0}}) == own);
    const auto one = bytes({{"zero", zero}, {"reserve", 1}});
    const auto three = bytes({{"zero", zero}, {"reserve", 3}});
    const double buffers = one.first - own.first;
    CHECK(buffers > 0);
    CHECK(buffers <= 2 * weights);
    CHECK(three.first - own.first == Approx(3 * buffers));
    CHECK(three.second > one.second);
    CHECK(one.second > own.second);
  }
  CHECK_THROWS_WITH(search::parse_pins({{"reserve", -1}}),
                    Catch::Contains("reserve must be a number of at least 0"));
}

TEST_CASE("the recomputed ops of a block may be pinned") {
  const auto all = search::parse_pins({{"checkpoint", "full"}});
  CHECK(all.checkpoint == true);
  CHECK(all.selective == false);
  CHECK(search::parse_pins({{"checkpoint", "selective"}}).selective == true);
  CHECK_FALSE(search::parse_pins({{"checkpoint", true}}).selective.has_value());
  CHECK(search::parse_pins({{"checkpoint", false}}).checkpoint == false);
  CHECK_THROWS_WITH(search::parse_pins({{"checkpoint", "selectiv"}}),
                    Catch::Contains("did you mean \"selective\"?"));
  CHECK_THROWS_WITH(search::parse_pins({{"checkpoint", 2}}),
                    Catch::Contains("checkpoint must be true, false, \"full\" or \"selective\""));
}

TEST_CASE("weights below a size are not split over tensor ranks") {
  const search::Choice choice{.tensor = 2};
  auto pins = search::parse_pins({{"smallest", 4096}});
  const auto text = search::strategy_of(choice, pins, {.pattern = "blocks.*"}).dump();
  CHECK_THAT(text, Catch::Contains(R"(["tensor_parallel",{"smallest":4096}])"));
  CHECK_THAT(search::strategy_of(choice, {}, {.pattern = "blocks.*"}).dump(),
             !Catch::Contains("smallest"));
}
