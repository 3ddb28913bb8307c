#include "search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "methods/method.h"
#include "tests/search/support_search.h"

using namespace perigee;
using search::chain;
using search::ChainPlanner;
using search::Choice;
using search::cluster;
using Json = nlohmann::json;

TEST_CASE("identical blocks fold to the first and the last one") {
  const auto folded = search::fold(chain({.blocks = 7}));
  CHECK(folded.blocks.size() == 7);
  CHECK(folded.kept == std::vector<std::string>{"blocks.0", "blocks.6"});
  CHECK(folded.graph.nodes.size() == chain({.blocks = 2}).nodes.size());
  CHECK(folded.graph.find_input("blocks.3.weight") == nullptr);
  // Two blocks, and blocks that differ, are not folded.
  CHECK(search::fold(chain({.blocks = 2})).kept.size() == 2);
  auto other = chain({.blocks = 4});
  for (auto& node : other.nodes) {
    if (node.op == "aten::gelu" && node.scope == "blocks.2") node.op = "aten::relu";
  }
  CHECK(search::fold(other).kept.size() == 4);
}

TEST_CASE("plans store parameters in parts if replicated parameters are forbidden") {
  ChainPlanner planner({.blocks = 4, .batch = 8}, 2);
  planner.request.pins.data = 2;
  const auto usual = planner.find(cluster(2));
  CHECK(usual.best.choice.zero < 3);
  CHECK(usual.plan.forbidden.empty());
  planner.request.pins.forbid = {"replicated_parameters"};
  const auto found = planner.find(cluster(2));
  CHECK(found.best.choice.zero == 3);
  CHECK(found.plan.forbidden == std::vector<std::string>{"replicated_parameters"});
  CHECK_THROWS_WITH(search::parse_pins({{"forbid", {1}}}),
                    Catch::Contains("forbid must be a list of names"));
}

TEST_CASE("no mesh has a tensor and a data axis if tensors may be sharded over one axis only") {
  ChainPlanner planner({.blocks = 4, .batch = 8}, 4);
  const auto mixed = [&] {
    int64_t count = 0;
    for (const auto& candidate :
         search::candidates(planner.request, cluster(4), planner.none, planner.traces, 1000)) {
      count += candidate.choice.tensor > 1 && candidate.choice.data > 1;
    }
    return count;
  };
  CHECK(mixed() > 0);
  planner.request.pins.forbid = {"nd_shardings"};
  CHECK(mixed() == 0);
}

TEST_CASE("time and memory extrapolate from two blocks") {
  for (const int64_t blocks : {3, 8, 20}) {
    ChainPlanner planner({.blocks = blocks, .batch = 16}, 1);
    planner.request.pins.micro = 16;
    planner.request.pins.every = 1;
    const auto on = cluster(1);
    const auto all = search::candidates(planner.request, on, planner.none, planner.traces, 100);
    REQUIRE(all.size() ==
            2);  // with and without recomputation; a selective one would save no memory
    for (const auto& candidate : all) {
      CAPTURE(blocks, search::to_string(candidate.choice));
      double peak = 0;
      const auto simulated = planner.judge(candidate, on, peak);
      CHECK(candidate.estimate.seconds == Approx(simulated.step_seconds).epsilon(0.02));
      CHECK(candidate.estimate.bytes == Approx(peak).epsilon(0.1));
    }
  }
}

TEST_CASE("recomputing every second block has time and memory between those of none and all") {
  ChainPlanner planner({.blocks = 8, .batch = 16}, 1);
  planner.request.pins = search::parse_pins({{"micro", 16}, {"checkpoint", "full"}, {"every", 2}});
  const auto on = cluster(1);
  const auto all = search::candidates(planner.request, on, planner.none, planner.traces, 100);
  REQUIRE(all.size() == 1);
  CHECK_THAT(search::to_string(all[0].choice), Catch::Contains("checkpoint of one block in 2"));
  double peak = 0;
  const auto simulated = planner.judge(all[0], on, peak);
  CHECK(all[0].estimate.seconds == Approx(simulated.step_seconds).epsilon(0.02));
  CHECK(all[0].estimate.bytes == Approx(peak).epsilon(0.15));
  planner.request.pins.checkpoint = false;
  const auto none = search::candidates(planner.request, on, planner.none, planner.traces, 100);
  CHECK(none[0].estimate.seconds < all[0].estimate.seconds);
}

TEST_CASE("selective recomputation with some whole blocks has time and memory in between") {
  for (const int64_t pipe : {1, 2}) {
    ChainPlanner planner({.blocks = 8, .batch = 32, .width = 32, .gelus = 4}, pipe);
    const auto on = cluster(pipe);
    Json pins{{"micro", 16}, {"pipe", pipe}, {"offload", false}, {"schedule", "1f1b"}};
    double seconds = 0, bytes = 1e300;
    for (const auto& [how, every] : std::vector<std::pair<std::string, int64_t>>{
             {"selective", 1}, {"selective", 4}, {"selective", 2}, {"full", 1}}) {
      pins["checkpoint"] = how;
      pins["every"] = every;
      const auto all = planner.candidates(on, pins);
      REQUIRE(all.size() == 1);
      const auto& one = all.front();
      CAPTURE(search::to_string(one.choice));
      double peak = 0;
      const auto simulated = planner.judge(one, on, peak);
      CHECK(one.estimate.seconds == Approx(simulated.step_seconds).epsilon(pipe > 1 ? 0.1 : 0.02));
      CHECK(one.estimate.bytes == Approx(peak).epsilon(pipe > 1 ? 0.15 : 0.1));
      CHECK(simulated.step_seconds > seconds);
      CHECK(peak < bytes);
      seconds = simulated.step_seconds;
      bytes = peak;
      if (every == 1) continue;
      CHECK_THAT(
          search::to_string(one.choice),
          Catch::Contains(fmt::format("selective checkpoint, full of one block in {}", every)));
      // Each stage recomputes equally many whole blocks.
      const std::map<int64_t, std::string> whole = {{4, R"("full":["blocks.0","blocks.4"])"},
                                                    {2, R"("full":["blocks.0","blocks.2",)"}};
      CHECK_THAT(
          one.strategy.dump(),
          Catch::Contains(pipe == 1 ? fmt::format("\"full_every\":{}", every) : whole.at(every)));
    }
  }
}

TEST_CASE("some blocks are recomputed whole if memory is too small for selective recomputation") {
  for (const int64_t pipe : {1, 2}) {
    ChainPlanner planner({.blocks = 8, .batch = 32, .width = 32, .gelus = 4}, 2);
    const auto on = cluster(2);
    Json pins{{"pipe", pipe}, {"checkpoint", true}, {"offload", false}, {"submeshes", false}};
    // Returns the best combination under the pins; none where none fits.
    const auto best = [&](const Json& more, double memory) -> std::optional<search::Candidate> {
      auto all_pins = pins;
      all_pins.update(more);
      all_pins["memory"] = memory;
      try {
        return planner.candidates(on, all_pins).front();
      } catch (const Error&) {
        return std::nullopt;
      }
    };
    const std::vector<Json> ways = {
        {{"checkpoint", "selective"}, {"every", 1}}, {{"checkpoint", "selective"}, {"every", 4}},
        {{"checkpoint", "selective"}, {"every", 2}}, {{"checkpoint", "full"}, {"every", 1}},
        {{"checkpoint", "full"}, {"every", 2}},      {{"checkpoint", "full"}, {"every", 4}}};
    const double most = best(ways[0], 1e9)->estimate.bytes;
    int mixed = 0;
    for (double memory = 1.2 * most; memory > 0.4 * most; memory *= 0.95) {
      CAPTURE(pipe, memory);
      double least = 1e300;
      for (const auto& way : ways) {
        if (const auto one = best(way, memory)) least = std::min(least, one->estimate.seconds);
      }
      const auto free = best(Json::object(), memory);
      REQUIRE(free.has_value() == (least < 1e300));
      if (!free) continue;
      CHECK(free->estimate.seconds == Approx(least).epsilon(1e-9));
      CHECK(free->estimate.lower_bound <= least * (1 + 1e-9));
      mixed += free->choice.selective && free->choice.every > 1;
    }
    CHECK(mixed > 0);
  }
}

TEST_CASE("a solver recomputes as few blocks of a stage as memory requires") {
  const auto on = cluster(2);
  for (const int64_t pipe : {1, 2}) {
    ChainPlanner planner({.blocks = 8, .batch = 32, .width = 32}, pipe);
    planner.request.pins = search::parse_pins(
        {{"micro", 16}, {"pipe", pipe}, {"every", 1}, {"offload", false}});
    planner.request.pins.selective = false;
    if (pipe > 1) planner.request.pins.schedule = "1f1b";
    const auto ends = search::candidates(planner.request, on, planner.none, planner.traces, 100);
    REQUIRE(ends.size() == 2);  // no block recomputed, and all blocks
    const auto &none = ends[0].estimate, &all = ends[1].estimate;
    REQUIRE(all.bytes < none.bytes);
    planner.request.pins.every.reset();
    const auto fastest = [&](double share) {
      planner.request.pins.memory = all.bytes + share * (none.bytes - all.bytes);
      return search::candidates(planner.request, on, planner.none, planner.traces, 1).front();
    };
    double before = none.seconds * (1 - 1e-9);
    for (const double share : {1.01, 0.7, 0.4, 0.01}) {
      CAPTURE(pipe, share);
      planner.request.pins.solver = std::nullopt;
      const auto by_shares = fastest(share);
      planner.request.pins.solver = "labels";
      const auto labels = fastest(share);
      planner.request.pins.solver = "ilp";
      const auto ilp = fastest(share);
      CHECK(labels.estimate.seconds == Approx(ilp.estimate.seconds));
      CHECK(labels.estimate.seconds <= by_shares.estimate.seconds * (1 + 1e-9));
      CHECK(labels.estimate.bytes <= *planner.request.pins.memory);
      if (share > 1) CHECK(labels.choice.recomputed_blocks.empty());
      if (pipe == 1) {  // in pipelines, other cuts save memory too
        CHECK(labels.estimate.seconds >= before);
        CHECK(labels.choice.recomputed_blocks.empty() == (share > 1));
        if (share == 0.7) CHECK(labels.choice.recomputed_blocks.size() < 8);
        before = labels.estimate.seconds;
      }
      double peak = 0;
      const auto simulated = planner.judge(ilp, on, peak);
      CHECK(ilp.estimate.seconds == Approx(simulated.step_seconds).epsilon(pipe > 1 ? 0.1 : 0.02));
      CHECK(ilp.estimate.bytes == Approx(peak).epsilon(pipe > 1 ? 0.3 : 0.2));
      // Optimizer state on the host saves memory too, so the plan may become faster.
      planner.request.pins.offload.reset();
      CHECK(fastest(share).estimate.seconds <= labels.estimate.seconds * (1 + 1e-9));
      planner.request.pins.offload = false;
    }
    CHECK_THROWS_WITH(fastest(-0.5), Catch::Contains("no plan fits"));
  }
  CHECK_THROWS_WITH(search::parse_pins({{"solver", "dp"}}),
                    Catch::Contains("solver is labels, ilp, but got \"dp\""));
}

TEST_CASE("the memory of pipelines is predicted for any recomputation and schedule") {
  // All recomputations of a block of one product, and selective ones with some whole blocks.
  for (const bool mixed : {false, true}) {
    double errors = 0;
    int count = 0;
    for (const int64_t pipe : {2, 4}) {
      ChainPlanner planner({.blocks = 16, .batch = 64, .width = 32, .gelus = mixed ? 4 : 1}, pipe);
      const auto on = cluster(pipe);
      for (const int64_t every : mixed ? std::vector<int64_t>{2, 4} : std::vector<int64_t>{0}) {
        Json pins{{"micro", 4}, {"pipe", pipe}, {"offload", false}};
        if (mixed) pins.update({{"checkpoint", "selective"}, {"every", every}});
        for (const auto& candidate : planner.candidates(on, pins)) {
          double peak = 0;
          planner.judge(candidate, on, peak);
          CAPTURE(search::to_string(candidate.choice));
          CHECK(candidate.estimate.bytes == Approx(peak).epsilon(0.15));
          errors += std::abs(candidate.estimate.bytes / peak - 1);
          ++count;
        }
      }
    }
    CHECK(count > (mixed ? 40 : 60));
    CHECK(errors / count < 0.06);
  }
}

TEST_CASE("the model predicts the simulated time of units and their exchange") {
  // Links of the compute's speed, ten times slower and faster; one microbatch and several.
  for (const double bandwidth : {1e8, 1e9, 1e10}) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const int64_t micro : {2, 8}) {
        ChainPlanner planner({.blocks = 8, .batch = 32, .width = 256}, 4);
        planner.request.pins = search::parse_pins(
            {{"data", 4}, {"zero", zero}, {"micro", micro}, {"checkpoint", false}});
        auto on = cluster(4);
        on.links.front().bandwidth = bandwidth;
        const auto all = search::candidates(planner.request, on, planner.none, planner.traces, 100);
        REQUIRE(all.size() == 1);
        double peak = 0;
        const auto simulated = planner.judge(all[0], on, peak);
        CAPTURE(bandwidth, search::to_string(all[0].choice));
        CHECK(all[0].estimate.seconds == Approx(simulated.step_seconds).epsilon(0.07));
      }
    }
  }
}

TEST_CASE("optimizer state is kept on the host if no plan fits otherwise") {
  ChainPlanner planner({.blocks = 8, .batch = 4, .width = 256}, 1);
  const auto on = cluster(1);
  const auto rich = planner.find(on);
  CHECK_FALSE(rich.best.choice.offload);
  // Weights, gradients and two states dominate the memory.
  planner.request.memory_limit = 0.8 * rich.best.peak_bytes;
  const auto poor = planner.find(on);
  CHECK(poor.best.choice.offload);
  CHECK(poor.plan.offload.optimizer);
  CHECK(poor.best.peak_bytes <= planner.request.memory_limit);
  CHECK(poor.best.seconds > rich.best.seconds);
  planner.request.pins = search::parse_pins({{"offload", false}});
  CHECK_THROWS_WITH(planner.find(on), Catch::Contains("no plan fits"));
  planner.request.memory_limit = 0;
  planner.request.pins = search::parse_pins({{"offload", true}});
  CHECK(planner.find(on).plan.offload.optimizer);
}

TEST_CASE("the precision is searched where pins allow several") {
  const auto find = [](nlohmann::json precision, double low_peak, double memory) {
    ChainPlanner planner({.blocks = 6, .batch = 64, .width = 512}, 4);
    planner.request.pins = search::parse_pins(
        {{"precision", std::move(precision)}, {"offload", false}, {"submeshes", false}});
    planner.request.memory_limit = memory;
    auto on = cluster(4);
    on.devices.front().peak[graph::DType::bfloat16] = low_peak;
    return planner.find(on);
  };
  for (const double low_peak : {1e10, 1e13}) {  // float32: 1e12
    for (const double memory : {1e9, 1.2e7}) {
      std::map<std::string, double> alone;
      for (const std::string name : {"none", "amp_native", "half"}) {
        alone[name] = find(nlohmann::json::array({name}), low_peak, memory).best.seconds;
      }
      const auto found = find({"none", "amp_native", "half"}, low_peak, memory);
      CAPTURE(low_peak, memory, alone["none"], alone["amp_native"], alone["half"],
              search::to_string(found.best.choice));
      const double least = std::min({alone["none"], alone["amp_native"], alone["half"]});
      CHECK(found.best.seconds <= 1.02 * least);
      CHECK(found.plan.precision.dtype.has_value() == (found.best.choice.precision != "none"));
      if (memory > 1e8) CHECK((found.best.choice.precision == "none") == (low_peak < 1e12));
    }
  }
  ChainPlanner planner({.blocks = 4, .batch = 8}, 2);
  CHECK_FALSE(
      planner.find(cluster(2)).plan.precision.dtype);  // the default precision changes no number
  CHECK_THROWS_WITH(search::parse_pins({{"precision", nlohmann::json::array({"haf"})}}),
                    Catch::Contains("did you mean \"half\"?"));
  CHECK_THROWS_WITH(search::parse_pins({{"precision", "half"}}), Catch::Contains("must be a list"));
}

TEST_CASE("less memory gives a slower plan, and too little is an error that no plan fits") {
  ChainPlanner planner({.blocks = 8, .batch = 64, .width = 32}, 4);
  const auto rich = planner.find(cluster(4));
  const auto enough = rich.best.peak_bytes;
  planner.request.memory_limit = 0.8 * enough;
  const auto poor = planner.find(cluster(4));
  CHECK(poor.best.peak_bytes <= 0.8 * enough);
  CHECK(poor.best.seconds >= rich.best.seconds);
  CHECK_FALSE(poor.best.choice == rich.best.choice);
  planner.request.memory_limit = 1000;
  try {
    planner.find(cluster(4));
    FAIL("a plan was found");
  } catch (const Error& error) {
    CHECK(error.status() == Status::infeasible);
    CHECK_THAT(error.what(), Catch::StartsWith("[auto] no plan fits: of "));
    CHECK_THAT(error.what(), Catch::Contains("more than the limit of 0.977 KiB"));
  }
}

TEST_CASE("slower collectives in the profile change the plan") {
  class Slow : public cost::NoMeasurements {
   public:
    std::optional<double> collective(const cost::Cluster&, cost::CollectiveKind kind, double,
                                     const std::vector<int64_t>&) override {
      return kind == cost::CollectiveKind::message ? 1e-7 : 10;
    }
  };
  ChainPlanner planner({.blocks = 4, .batch = 64, .width = 64}, 2);
  auto on = cluster(2);
  on.links.front().bandwidth = 1e10;
  const auto before = planner.find(on);
  Slow slow;
  const auto after = search::find(planner.request, on, slow, planner.traces);
  CHECK(after.simulation.measured_share > 0);
  CHECK_FALSE(after.best.choice == before.best.choice);
}

TEST_CASE("for a large model two plans are judged, on two meshes or of two schedules") {
  ChainPlanner planner({.blocks = 600, .batch = 64, .width = 32}, 2);
  REQUIRE(planner.graphs.empty());
  const auto found = planner.find(cluster(2));
  REQUIRE(planner.graphs.begin()->second.nodes.size() > 4000);
  std::vector<Choice> judged;
  for (const auto& other : found.others) {
    if (other.judged) judged.push_back(other.choice);
  }
  REQUIRE(judged.size() == 2);
  CAPTURE(search::to_string(judged[0]), search::to_string(judged[1]));
  CHECK((judged[0].pipe != judged[1].pipe || judged[0].tensor != judged[1].tensor ||
         judged[0].schedule != judged[1].schedule));
}

TEST_CASE("the same search gives the same plan, with its reasons") {
  ChainPlanner planner({.blocks = 4, .batch = 8}, 4);
  const auto a = planner.find(cluster(4)), b = planner.find(cluster(4));
  CHECK(plan::print(a.plan) == plan::print(b.plan));
  const auto text = plan::explain(a.plan);
  CHECK_THAT(text, Catch::Contains("combinations the best is"));
  CHECK_THAT(text, Catch::Contains("it is bound by"));
  CHECK_THAT(text, Catch::Contains("longer"));
}

TEST_CASE("one and several threads find the same plan, with the same bound and reasons") {
  for (const double memory : {1e9, 1.2e7}) {
    const auto find = [&](int64_t threads) {
      ChainPlanner planner({.blocks = 6, .batch = 64, .width = 512}, 4);
      planner.request.pins = search::parse_pins({{"threads", threads}});
      planner.request.memory_limit = memory;
      return planner.find(cluster(4));
    };
    const auto one = find(1), four = find(4);
    CAPTURE(memory, search::to_string(one.best.choice), search::to_string(four.best.choice));
    CHECK(plan::print(one.plan) == plan::print(four.plan));
    CHECK(plan::explain(one.plan) == plan::explain(four.plan));
    CHECK(one.best.seconds == four.best.seconds);
    CHECK(one.lower_bound == four.lower_bound);
    REQUIRE(one.others.size() == four.others.size());
    for (size_t i = 0; i < one.others.size(); ++i) {
      CHECK(search::to_string(one.others[i].choice) == search::to_string(four.others[i].choice));
      CHECK(one.others[i].judged == four.others[i].judged);
    }
  }
}
