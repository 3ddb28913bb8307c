#include "search/search.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "base/error.h"
#include "methods/method.h"
#include "tests/search/support.h"

using namespace perigee;
using search::chain;
using search::Choice;

namespace {

cost::Cluster cluster(int64_t ranks, double memory = 1e9) {
  cost::Device device{.name = "d", .count = ranks, .memory = memory, .bandwidth = 1e10};
  device.peak = {{graph::DType::float32, 1e12}};
  device.vector = 1e11;
  device.launch = 1e-7;
  cost::Cluster cluster{"test", {device}, {}};
  if (ranks > 1) cluster.links = {{"node", ranks, 1e-6, 1e9, ""}};
  return cluster;
}

// The chain at any batch, and a request for it.
struct Asked {
  explicit Asked(search::Chain shape, int64_t world) : shape(shape) {
    request.graph = [this](int64_t samples) -> const graph::Graph& {
      auto at = this->shape;
      at.batch = samples;
      return graphs.try_emplace(samples, chain(at)).first->second;
    };
    request.spec = [](const graph::Graph&) { return compile::StepSpec{}; };
    request.global_batch = shape.batch;
    request.world = world;
  }
  search::Chain shape;
  std::map<int64_t, graph::Graph> graphs;
  search::Request request;
  cost::NoMeasurements none;
  compile::NoTraces traces;

  search::Found find(const cost::Cluster& on) { return search::find(request, on, none, traces); }

  // Compiles and simulates a choice.
  search::Simulation judge(const search::Candidate& candidate, const cost::Cluster& on,
                           double& peak) {
    const auto& graph = request.graph(candidate.choice.micro * candidate.choice.data);
    methods::Request asked{.graph = &graph,
                           .global_batch = request.global_batch,
                           .world = request.world,
                           .world_given = true};
    const auto plan = methods::make_plan(methods::from_json(candidate.strategy, "test"), asked);
    const auto programs = compile::compile_all(graph, plan, {}, traces);
    const auto peaks = compile::predict_memory(programs).peak_bytes;
    peak = double(*std::max_element(peaks.begin(), peaks.end()));
    search::OpCosts costs(on, none);
    return search::simulate(programs, plan.mesh, costs);
  }
};

}  // namespace

TEST_CASE("a row of blocks folds to its first and last, which make a shorter row") {
  const auto folded = search::fold(chain({.blocks = 7}));
  CHECK(folded.blocks.size() == 7);
  CHECK(folded.kept == std::vector<std::string>{"blocks.0", "blocks.6"});
  CHECK(folded.graph.nodes.size() == chain({.blocks = 2}).nodes.size());
  CHECK(folded.graph.find_input("blocks.3.weight") == nullptr);
  // Blocks of other shapes, and two blocks, stay.
  CHECK(search::fold(chain({.blocks = 2})).kept.size() == 2);
  auto other = chain({.blocks = 4});
  for (auto& node : other.nodes) {
    if (node.op == "aten::gelu" && node.scope == "blocks.2") node.op = "aten::relu";
  }
  CHECK(search::fold(other).kept.size() == 4);
}

TEST_CASE("two blocks tell the time and memory of any number") {
  for (const int64_t blocks : {3, 8, 20}) {
    Asked asked({.blocks = blocks, .batch = 16}, 1);
    asked.request.pins.micro = 16;
    asked.request.pins.every = 1;
    const auto on = cluster(1);
    const auto all = search::candidates(asked.request, on, asked.none, asked.traces, 100);
    REQUIRE(all.size() == 2);  // with and without checkpoint
    for (const auto& candidate : all) {
      CAPTURE(blocks, search::to_string(candidate.choice));
      double peak = 0;
      const auto simulated = asked.judge(candidate, on, peak);
      CHECK(candidate.estimate.seconds == Approx(simulated.step_seconds).epsilon(0.02));
      CHECK(candidate.estimate.bytes == Approx(peak).epsilon(0.1));
    }
  }
}

TEST_CASE("each second block run again costs and saves what lies between none and all") {
  Asked asked({.blocks = 8, .batch = 16}, 1);
  asked.request.pins = search::parse_pins({{"micro", 16}, {"checkpoint", true}, {"every", 2}});
  const auto on = cluster(1);
  const auto all = search::candidates(asked.request, on, asked.none, asked.traces, 100);
  REQUIRE(all.size() == 1);
  CHECK_THAT(search::to_string(all[0].choice), Catch::Contains("checkpoint of one block in 2"));
  double peak = 0;
  const auto simulated = asked.judge(all[0], on, peak);
  CHECK(all[0].estimate.seconds == Approx(simulated.step_seconds).epsilon(0.02));
  CHECK(all[0].estimate.bytes == Approx(peak).epsilon(0.15));
  asked.request.pins.checkpoint = false;
  const auto none = search::candidates(asked.request, on, asked.none, asked.traces, 100);
  CHECK(none[0].estimate.seconds < all[0].estimate.seconds);
}

TEST_CASE("the plan found is within 2% of the best of all legal plans by the simulator") {
  for (const int64_t width : {64, 512}) {
    for (const int64_t world : {2, 4}) {
      Asked asked({.blocks = 4, .batch = 8, .width = width}, world);
      const auto on = cluster(world);
      const auto found = asked.find(on);
      CHECK(found.best.judged);
      CHECK(found.plan.mesh.size() == world);
      CHECK(found.plan.prediction.step_seconds == found.best.seconds);
      double best = found.best.seconds;
      std::string which;
      int legal = 0;
      for (const auto& candidate :
           search::candidates(asked.request, on, asked.none, asked.traces, 10000)) {
        try {
          double peak = 0;
          const double seconds = asked.judge(candidate, on, peak).step_seconds;
          ++legal;
          if (seconds < best) {
            best = seconds;
            which = search::to_string(candidate.choice);
          }
        } catch (const Error&) {
        }
      }
      CAPTURE(width, world, search::to_string(found.best.choice), which, legal);
      CHECK(legal > 10);
      CHECK(found.best.seconds <= 1.02 * best);
    }
  }
}

TEST_CASE("less memory gives another plan, and too little a proof that there is none") {
  Asked asked({.blocks = 8, .batch = 64, .width = 32}, 4);
  const auto rich = asked.find(cluster(4));
  const auto enough = rich.best.peak_bytes;
  asked.request.memory_limit = 0.8 * enough;
  const auto poor = asked.find(cluster(4));
  CHECK(poor.best.peak_bytes <= 0.8 * enough);
  CHECK(poor.best.seconds >= rich.best.seconds);
  CHECK_FALSE(poor.best.choice == rich.best.choice);
  asked.request.memory_limit = 1000;
  try {
    asked.find(cluster(4));
    FAIL("a plan was found");
  } catch (const Error& error) {
    CHECK(error.status() == Status::infeasible);
    CHECK_THAT(error.what(), Catch::StartsWith("[auto] no plan fits: of "));
    CHECK_THAT(error.what(), Catch::Contains("more than the 0.977 KiB there are"));
  }
}

TEST_CASE("what is pinned stays, and the rest is searched around it") {
  Asked asked({.blocks = 4, .batch = 8}, 4);
  asked.request.pins = search::parse_pins({{"pipe", 2}, {"zero", 1}, {"micro", 1}});
  const auto found = asked.find(cluster(4));
  CHECK(found.best.choice.pipe == 2);
  CHECK(found.best.choice.micro == 1);
  CHECK((found.best.choice.data == 1 || found.best.choice.zero == 1));
  CHECK(found.plan.pipeline.cuts());
  CHECK_THROWS_WITH(search::parse_pins({{"pipes", 2}}), Catch::Contains("did you mean \"pipe\"?"));
  asked.request.pins = search::parse_pins({{"tensor", 3}});
  CHECK_THROWS_WITH(asked.find(cluster(4)), Catch::Contains("a mesh of 4 ranks must be possible"));
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

TEST_CASE("a slower collective in the profile changes the plan") {
  class Slow : public cost::NoMeasurements {
   public:
    std::optional<double> collective(cost::CollectiveKind kind, int64_t, double) override {
      return kind == cost::CollectiveKind::message ? 1e-7 : 10;
    }
  };
  Asked asked({.blocks = 4, .batch = 64, .width = 64}, 2);
  auto on = cluster(2);
  on.links.front().bandwidth = 1e10;
  const auto before = asked.find(on);
  Slow slow;
  const auto after = search::find(asked.request, on, slow, asked.traces);
  CHECK(after.simulation.measured_share > 0);
  CHECK_FALSE(after.best.choice == before.best.choice);
}

TEST_CASE("the same search gives the same plan, with its reasons") {
  Asked asked({.blocks = 4, .batch = 8}, 4);
  const auto a = asked.find(cluster(4)), b = asked.find(cluster(4));
  CHECK(plan::print(a.plan) == plan::print(b.plan));
  const auto text = plan::explain(a.plan);
  CHECK_THAT(text, Catch::Contains("combinations the best is"));
  CHECK_THAT(text, Catch::Contains("it is bound by"));
  CHECK_THAT(text, Catch::Contains("longer"));
}
