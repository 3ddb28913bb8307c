// What pins fix, and what they say of memory and time.
#include <catch2/catch.hpp>
#include <chrono>
#include <set>

#include "base/error.h"
#include "tests/search/support_search.h"

using namespace perigee;
using search::Asked;
using search::Choice;
using search::cluster;

TEST_CASE("a pinned schedule that splits gradients is faster where the bubble is large") {
  Asked asked({.blocks = 8, .batch = 8, .width = 512}, 4);
  asked.request.pins = search::parse_pins(
      {{"pipe", 4}, {"micro", 1}, {"checkpoint", false}, {"chunks", 1}});
  asked.request.pins.schedule = "zb1p";
  const auto on = cluster(4);
  const auto found = asked.find(on);
  CHECK(found.best.choice.costs.size() == 4);
  asked.request.pins.schedule = "1f1b";
  const auto plain = asked.find(on);
  CHECK(plain.best.seconds > 1.02 * found.best.seconds);
  asked.request.pins.schedule = "zbv";
  asked.request.pins.chunks = {};
  CHECK(asked.find(on).best.choice.chunks == 2);
  // It exists for four stages and more.
  asked.request.pins.schedule = "v_min";
  CHECK(asked.find(on).best.choice.schedule == "v_min");
  asked.request.pins.pipe = asked.request.pins.data = 2;
  CHECK_THROWS_WITH(
      asked.find(on),
      Catch::Contains("there is no v_min of 2 parts for 2 stages and 4 microbatches"));
}

TEST_CASE("the stage fields of a pinned overlap apply to plans with stages") {
  Asked asked({.blocks = 4, .batch = 8}, 2);
  const auto on = cluster(2);
  for (const nlohmann::json& fields : {nlohmann::json{{"receives", true}},
                                       nlohmann::json{{"receives", true}, {"accumulate", true}}}) {
    const auto overlap = nlohmann::json::array({"overlap", fields});
    std::set<int64_t> pipes;
    for (const auto& one :
         asked.candidates(on, {{"methods", nlohmann::json::array({overlap})}, {"micro", 1}})) {
      const auto strategy = one.strategy.dump();
      CAPTURE(strategy);
      pipes.insert(one.choice.pipe);
      CHECK((strategy.find("receives") != std::string::npos) == (one.choice.pipe > 1));
      CHECK((strategy.find("accumulate\"") != std::string::npos) == fields.contains("accumulate"));
    }
    CHECK(pipes == std::set<int64_t>{1, 2});
  }
}

TEST_CASE("pinned values stay, and the rest is searched") {
  Asked asked({.blocks = 4, .batch = 8}, 4);
  asked.request.pins = search::parse_pins({{"pipe", 2}, {"zero", 1}, {"micro", 1}});
  const auto found = asked.find(cluster(4));
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
  asked.request.pins = search::parse_pins({{"expert", 2}});
  CHECK_THROWS_WITH(
      asked.find(cluster(4)),
      Catch::Contains("expert = 2 is pinned, but the model has no mixture of experts"));
  asked.request.pins = search::parse_pins({{"context", 2}});
  CHECK_THROWS_WITH(asked.find(cluster(4)),
                    Catch::Contains("context = 2 is pinned, but the model has no attention"));
  asked.request.pins = search::parse_pins({{"tensor", 3}});
  CHECK_THROWS_WITH(asked.find(cluster(4)), Catch::Contains("a mesh of 4 ranks must be possible"));
}

TEST_CASE("cuts and how an axis splits weights are pinned by the methods' fields") {
  Asked asked({.blocks = 4, .batch = 8}, 4);
  const auto pinned = [](const char* method, const nlohmann::json& fields) {
    return nlohmann::json::array({nlohmann::json::array({method, fields})});
  };
  asked.request.pins = search::parse_pins(
      {{"pipe", 2},
       {"chunks", 1},
       {"methods", pinned("pipeline_parallel", {{"starts", {"blocks.1"}}})}});
  CHECK(asked.find(cluster(4)).plan.pipeline.starts == std::vector<std::string>{"blocks.1"});
  asked.request.pins.pipe = 1;  // there are no cuts to pin
  CHECK_FALSE(asked.find(cluster(4)).plan.pipeline.cuts());
  for (const std::string dim : {"column", "row"}) {
    asked.request.pins = search::parse_pins(
        {{"tensor", 4}, {"methods", pinned("tensor_parallel", {{dim, {"blocks.*"}}})}});
    const auto found = asked.find(cluster(4));
    const auto placement = mesh::to_string(found.plan.placements.at("blocks.2.weight"));
    CHECK(placement.substr(0, 2) == (dim == "column" ? "S0" : "S1"));
  }
}

TEST_CASE("a search that runs out of time answers with the best so far, and says so") {
  Asked asked({.blocks = 8, .batch = 16}, 8);
  const auto whole = asked.find(cluster(8));
  CHECK_FALSE(whole.stopped);
  asked.request.pins = search::parse_pins({{"time_limit", 1e-9}});
  const auto found = asked.find(cluster(8));
  CHECK(found.stopped);
  CHECK(found.best.judged);
  CHECK(found.plan.mesh.size() == 8);
  CHECK(found.combinations < whole.combinations);
  CHECK(found.lower_bound <= found.best.estimate.seconds);
  CHECK_THAT(plan::explain(found.plan), Catch::Contains("the search was stopped after"));
  asked.request.pins = search::parse_pins({{"time_limit", 1e6}});
  const auto patient = asked.find(cluster(8));
  CHECK_FALSE(patient.stopped);
  CHECK(patient.best.choice == whole.best.choice);
  CHECK_THROWS_WITH(search::parse_pins({{"time_limit", 0}}),
                    Catch::Contains("time_limit must be a number above 0"));
}

TEST_CASE("the time limit holds within a cut by a solver, and its best so far is an answer") {
  // An integer program of 10,000 columns a cut, of which one takes CBC minutes.
  Asked asked({.blocks = 96, .batch = 96, .width = 32}, 12);
  nlohmann::json pins{{"pipe", 12}, {"schedule", "1f1b"}, {"micro", 1}, {"offload", false}};
  asked.request.pins = search::parse_pins(pins);
  const double enough = asked.find(cluster(12)).best.peak_bytes;
  pins.update({{"solver", "ilp"}, {"time_limit", 0.3}, {"memory", 0.97 * enough}});
  asked.request.pins = search::parse_pins(pins);
  const auto begin = std::chrono::steady_clock::now();
  const auto found = asked.find(cluster(12));
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  CHECK(passed.count() < 20);
  CHECK(found.stopped);
  CHECK(found.best.judged);
  CHECK(found.best.peak_bytes <= 0.97 * enough);
  CHECK(found.lower_bound < found.best.estimate.seconds);
  pins["memory"] = 0.1 * enough;
  asked.request.pins = search::parse_pins(pins);
  CHECK_THROWS_WITH(asked.find(cluster(12)),
                    Catch::StartsWith("[auto] ") && Catch::Contains("fits"));
  // Nothing is proven where time ended it.
  pins["memory"] = 0.97 * enough;
  pins["time_limit"] = 1e-9;
  asked.request.pins = search::parse_pins(pins);
  CHECK_THROWS_WITH(asked.find(cluster(12)),
                    Catch::StartsWith("[auto] the time limit of 1e-09 s passed before a plan was "
                                      "found that fits: raise time_limit"));
}

TEST_CASE("a pinned limit of memory holds below the device's") {
  Asked asked({.blocks = 8, .batch = 64, .width = 32}, 4);
  const auto free = asked.find(cluster(4));
  asked.request.pins = search::parse_pins({{"memory", 0.8 * free.best.peak_bytes}});
  const auto tight = asked.find(cluster(4));
  CHECK(tight.best.peak_bytes <= 0.8 * free.best.peak_bytes);
  asked.request.pins = search::parse_pins({{"memory", 1000}});
  CHECK_THROWS_WITH(asked.find(cluster(4)), Catch::Contains("more than the 0.977 KiB there are"));
  asked.request.pins = search::parse_pins({{"memory", 1e30}});
  CHECK(asked.find(cluster(4)).best.choice == free.best.choice);
}

TEST_CASE("memory is counted by the factors that the pins give") {
  const auto on = cluster(2);
  const auto bytes = [&](nlohmann::json pins) {
    Asked asked({.blocks = 6, .batch = 8}, 2);
    pins.update({{"data", 2}, {"micro", 4}, {"checkpoint", false}});
    asked.request.pins = search::parse_pins(pins);
    const auto found = asked.find(on);
    const auto all = search::candidates(asked.request, on, asked.none, asked.traces, 1);
    return std::pair(found.best.peak_bytes, all[0].estimate.bytes);
  };
  // Seven weights of 64 x 64 floats; buffers are at most activations of 4 x 64, or a gradient.
  const double weight = 64 * 64 * 4, weights = 7 * weight;
  for (const int zero : {0, 1, 3}) {
    CAPTURE(zero);
    const double parts = zero > 0 ? 2 : 1;
    const auto own = bytes({{"zero", zero}});
    // adamw keeps two numbers a weight.
    const auto two = bytes({{"zero", zero}, {"optimizer_resident", 2}});
    CHECK(two.first == Approx(own.first).epsilon(0.01));
    CHECK(two.second == Approx(own.second).epsilon(0.01));
    const auto six = bytes({{"zero", zero}, {"optimizer_resident", 6}});
    CHECK(six.first - two.first == Approx(4 * weights / parts).epsilon(0.01));
    CHECK(six.second - two.second == Approx(4 * weights / parts).epsilon(0.01));
    // More than all else but what is resident anyway.
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
