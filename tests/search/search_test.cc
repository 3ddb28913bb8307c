#include "search/search.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "base/error.h"
#include "cost/schedule.h"
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
    const auto& graph = request.graph(candidate.choice.micro * candidate.choice.batch());
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

TEST_CASE("where parameters may not lie on several ranks, plans have them in parts") {
  Asked asked({.blocks = 4, .batch = 8}, 2);
  asked.request.pins.data = 2;
  const auto usual = asked.find(cluster(2));
  CHECK(usual.best.choice.zero < 3);
  CHECK(usual.plan.forbidden.empty());
  asked.request.pins.forbid = {"replicated_parameters"};
  const auto found = asked.find(cluster(2));
  CHECK(found.best.choice.zero == 3);
  CHECK(found.plan.forbidden == std::vector<std::string>{"replicated_parameters"});
  CHECK_THROWS_WITH(search::parse_pins({{"forbid", {1}}}),
                    Catch::Contains("forbid must be a list of names"));
}

TEST_CASE("where tensors are split over one axis, meshes have one") {
  Asked asked({.blocks = 4, .batch = 8}, 4);
  const auto mixed = [&] {
    int64_t count = 0;
    for (const auto& candidate :
         search::candidates(asked.request, cluster(4), asked.none, asked.traces, 1000)) {
      count += candidate.choice.tensor > 1 && candidate.choice.data > 1;
    }
    return count;
  };
  CHECK(mixed() > 0);
  asked.request.pins.forbid = {"nd_shardings"};
  CHECK(mixed() == 0);
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

TEST_CASE("a solver chooses the blocks of a stage that run again, as few as memory asks for") {
  const auto on = cluster(2);
  for (const int64_t pipe : {1, 2}) {
    Asked asked({.blocks = 8, .batch = 32, .width = 32}, pipe);
    asked.request.pins =
        search::parse_pins({{"micro", 16}, {"pipe", pipe}, {"every", 1}, {"offload", false}});
    if (pipe > 1) asked.request.pins.schedule = "1f1b";
    const auto ends = search::candidates(asked.request, on, asked.none, asked.traces, 100);
    REQUIRE(ends.size() == 2);  // none, and all
    const auto &none = ends[0].estimate, &all = ends[1].estimate;
    REQUIRE(all.bytes < none.bytes);
    asked.request.pins.every.reset();
    const auto fastest = [&](double share) {
      asked.request.pins.memory = all.bytes + share * (none.bytes - all.bytes);
      return search::candidates(asked.request, on, asked.none, asked.traces, 1).front();
    };
    double before = none.seconds * (1 - 1e-9);
    for (const double share : {1.01, 0.7, 0.4, 0.01}) {
      CAPTURE(pipe, share);
      asked.request.pins.solver = std::nullopt;
      const auto by_shares = fastest(share);
      asked.request.pins.solver = "labels";
      const auto labels = fastest(share);
      asked.request.pins.solver = "ilp";
      const auto ilp = fastest(share);
      CHECK(labels.estimate.seconds == Approx(ilp.estimate.seconds));
      CHECK(labels.estimate.seconds <= by_shares.estimate.seconds * (1 + 1e-9));
      CHECK(labels.estimate.bytes <= *asked.request.pins.memory);
      if (share > 1) CHECK(labels.choice.again.empty());
      if (pipe == 1) {  // stages of a pipeline may also make room by their lengths
        CHECK(labels.estimate.seconds >= before);
        CHECK(labels.choice.again.empty() == (share > 1));
        if (share == 0.7) CHECK(labels.choice.again.size() < 8);
        before = labels.estimate.seconds;
      }
      double peak = 0;
      const auto simulated = asked.judge(ilp, on, peak);
      CHECK(ilp.estimate.seconds == Approx(simulated.step_seconds).epsilon(pipe > 1 ? 0.1 : 0.02));
      CHECK(ilp.estimate.bytes == Approx(peak).epsilon(pipe > 1 ? 0.3 : 0.2));
      // Where the optimizer's state may lie on the host, that is another way to make room.
      asked.request.pins.offload.reset();
      CHECK(fastest(share).estimate.seconds <= labels.estimate.seconds * (1 + 1e-9));
      asked.request.pins.offload = false;
    }
    CHECK_THROWS_WITH(fastest(-0.5), Catch::Contains("no plan fits"));
  }
  CHECK_THROWS_WITH(search::parse_pins({{"solver", "dp"}}),
                    Catch::Contains("solver is labels, ilp, but got \"dp\""));
}

TEST_CASE("the plan found is within 2% of the best of all legal plans by the simulator") {
  struct Pair {
    search::Chain shape;
    int64_t world;
    double bandwidth = 1e9;  // of links
    double memory = 1;       // as a share of what plain data parallelism takes
  };
  std::vector<Pair> pairs;
  for (const int64_t width : {64, 512}) {
    for (const int64_t world : {2, 3, 4, 6}) {
      pairs.push_back({{.blocks = 4, .batch = world % 3 == 0 ? 12 : 8, .width = width}, world});
    }
  }
  for (const double bandwidth : {1e8, 1e10}) {
    for (const int64_t world : {2, 3, 4}) {
      pairs.push_back(
          {{.blocks = world == 4 ? 8 : 6, .batch = 12, .width = 256}, world, bandwidth});
    }
  }
  for (const double memory : {0.9, 0.7}) {
    for (const int64_t world : {2, 3, 4}) {
      pairs.push_back({{.blocks = 6, .batch = 24, .width = 128}, world, 1e9, memory});
    }
  }
  CHECK(pairs.size() == 20);
  std::set<std::string> judged;  // schedules
  for (const auto& [shape, world, bandwidth, memory] : pairs) {
    Asked asked(shape, world);
    auto on = cluster(world);
    on.links.front().bandwidth = bandwidth;
    if (memory < 1) {
      asked.request.pins = search::parse_pins({{"data", world}, {"zero", 0}});
      asked.request.memory_limit = memory * asked.find(on).best.peak_bytes;
      asked.request.pins = {};
    }
    const auto found = asked.find(on);
    CHECK(found.best.judged);
    CHECK(found.plan.mesh.size() == world);
    CHECK(found.plan.prediction.step_seconds == found.best.seconds);
    double best = found.best.seconds;
    std::string which;
    int legal = 0;
    // Without a limit the model leaves none out; what its programs take decides.
    const auto limit = asked.request.memory_limit;
    asked.request.memory_limit = 0;
    for (const auto& candidate :
         search::candidates(asked.request, on, asked.none, asked.traces, 100000)) {
      try {
        double peak = 0;
        const double seconds = asked.judge(candidate, on, peak).step_seconds;
        if (limit > 0 && peak > limit) continue;
        ++legal;
        judged.insert(candidate.choice.schedule);
        if (seconds < best) {
          best = seconds;
          which = search::to_string(candidate.choice);
        }
      } catch (const Error&) {
      }
    }
    CAPTURE(shape.blocks, shape.width, world, bandwidth, memory, legal);
    CAPTURE(search::to_string(found.best.choice), which);
    CHECK(legal > 10);
    CHECK(found.best.seconds <= 1.02 * best);
  }
  // Of those that exist for so few stages all but gpipe, which eager_1f1b is never slower than.
  CHECK(judged.size() == schedule_names().size() - 1);
}

TEST_CASE("the memory of pipelines is foretold, whatever runs again and by any schedule") {
  double errors = 0;
  int count = 0;
  for (const int64_t pipe : {2, 4}) {
    Asked asked({.blocks = 16, .batch = 64, .width = 32}, pipe);
    asked.request.pins = search::parse_pins({{"micro", 4}, {"pipe", pipe}, {"offload", false}});
    const auto on = cluster(pipe);
    for (const auto& candidate :
         search::candidates(asked.request, on, asked.none, asked.traces, 1000)) {
      double peak = 0;
      asked.judge(candidate, on, peak);
      CAPTURE(search::to_string(candidate.choice));
      CHECK(candidate.estimate.bytes == Approx(peak).epsilon(0.15));
      errors += std::abs(candidate.estimate.bytes / peak - 1);
      ++count;
    }
  }
  CHECK(count > 60);
  CHECK(errors / count < 0.06);
}

TEST_CASE("the model foretells what the simulator says of units and their exchange") {
  // Links as fast as ops, and ten times slower and faster; with a microbatch, and with several.
  for (const double bandwidth : {1e8, 1e9, 1e10}) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const int64_t micro : {2, 8}) {
        Asked asked({.blocks = 8, .batch = 32, .width = 256}, 4);
        asked.request.pins = search::parse_pins(
            {{"data", 4}, {"zero", zero}, {"micro", micro}, {"checkpoint", false}});
        auto on = cluster(4);
        on.links.front().bandwidth = bandwidth;
        const auto all = search::candidates(asked.request, on, asked.none, asked.traces, 100);
        REQUIRE(all.size() == 1);
        double peak = 0;
        const auto simulated = asked.judge(all[0], on, peak);
        CAPTURE(bandwidth, search::to_string(all[0].choice));
        CHECK(all[0].estimate.seconds == Approx(simulated.step_seconds).epsilon(0.07));
      }
    }
  }
}

TEST_CASE("a pinned schedule that splits gradients is faster where the bubble is large") {
  Asked asked({.blocks = 8, .batch = 8, .width = 512}, 4);
  asked.request.pins =
      search::parse_pins({{"pipe", 4}, {"micro", 1}, {"checkpoint", false}, {"chunks", 1}});
  asked.request.pins.schedule = "zb1p";
  const auto on = cluster(4);
  const auto found = asked.find(on);
  CHECK(found.best.choice.costs.size() == 3);
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

TEST_CASE("optimizer state lies on the host where it does not fit otherwise") {
  Asked asked({.blocks = 8, .batch = 4, .width = 256}, 1);
  const auto on = cluster(1);
  const auto rich = asked.find(on);
  CHECK_FALSE(rich.best.choice.offload);
  // Weights, gradients and two states are all that counts here.
  asked.request.memory_limit = 0.8 * rich.best.peak_bytes;
  const auto poor = asked.find(on);
  CHECK(poor.best.choice.offload);
  CHECK(poor.plan.offload.optimizer);
  CHECK(poor.best.peak_bytes <= asked.request.memory_limit);
  CHECK(poor.best.seconds > rich.best.seconds);
  asked.request.pins = search::parse_pins({{"offload", false}});
  CHECK_THROWS_WITH(asked.find(on), Catch::Contains("no plan fits"));
  asked.request.memory_limit = 0;
  asked.request.pins = search::parse_pins({{"offload", true}});
  CHECK(asked.find(on).plan.offload.optimizer);
}

TEST_CASE("the precision is chosen with all else where pins leave a choice") {
  const auto find = [](nlohmann::json precision, double low_peak, double memory) {
    Asked asked({.blocks = 6, .batch = 16, .width = 512}, 4);
    asked.request.pins =
        search::parse_pins({{"precision", std::move(precision)}, {"offload", false}});
    asked.request.memory_limit = memory;
    auto on = cluster(4);
    on.devices.front().peak[graph::DType::bfloat16] = low_peak;
    return asked.find(on);
  };
  for (const double low_peak : {1e10, 1e13}) {  // of 1e12 in float32
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
  Asked asked({.blocks = 4, .batch = 8}, 2);
  CHECK_FALSE(asked.find(cluster(2)).plan.precision.dtype);  // what changes numbers is asked for
  CHECK_THROWS_WITH(search::parse_pins({{"precision", nlohmann::json::array({"haf"})}}),
                    Catch::Contains("did you mean \"half\"?"));
  CHECK_THROWS_WITH(search::parse_pins({{"precision", "half"}}), Catch::Contains("must be a list"));
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

TEST_CASE("weights below a size are not split over tensor ranks") {
  const search::Choice choice{.tensor = 2};
  auto pins = search::parse_pins({{"smallest", 4096}});
  const auto text = search::strategy_of(choice, pins, "blocks.*").dump();
  CHECK_THAT(text, Catch::Contains(R"(["tensor_parallel",{"smallest":4096}])"));
  CHECK_THAT(search::strategy_of(choice, {}, "blocks.*").dump(), !Catch::Contains("smallest"));
}
