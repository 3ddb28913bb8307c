// Ranks on several nodes and on heterogeneous devices.
#include <catch2/catch.hpp>
#include <set>

#include "tests/search/support_search.h"

using namespace perigee;
using search::ChainPlanner;
using search::cluster;
using Json = nlohmann::json;

namespace {

// Nodes of `each` ranks; the latency between nodes is 10,000 times that within a node.
cost::Cluster nodes(int64_t count, int64_t each) {
  auto on = cluster(count * each);
  on.links = {{"node", each, 1e-6, 1e9, ""}, {"fabric", count * each, 1e-2, 1e9, ""}};
  return on;
}

}  // namespace

TEST_CASE("ranks whose groups span different levels are not equivalent in a simulation") {
  // On nodes of four ranks, the second and third group of three tensor ranks span two nodes.
  ChainPlanner planner({.blocks = 4, .batch = 12, .width = 96}, 12);
  const Json pins{{"tensor", 3}, {"data", 4},        {"micro", 1},
                  {"zero", 0},   {"offload", false}, {"checkpoint", false}};
  const auto seconds = [&](const cost::Cluster& on) {
    double peak = 0;
    return planner.judge(planner.candidates(on, pins).front(), on, peak).step_seconds;
  };
  const double within = seconds(nodes(2, 6)), across = seconds(nodes(3, 4));
  CHECK(within < 0.2);  // only gradients cross nodes
  CHECK(across > 2 * within);
}

TEST_CASE("only tensor sizes whose groups lie within nodes are searched") {
  const auto sizes = [](const cost::Cluster& on) {
    ChainPlanner planner({.blocks = 2, .batch = 12, .width = 96}, 12);
    std::set<int64_t> sizes;
    for (const auto& candidate : planner.candidates(on, {{"micro", 1}, {"submeshes", false}})) {
      sizes.insert(candidate.choice.tensor);
    }
    return sizes;
  };
  CHECK(sizes(nodes(3, 4)) == std::set<int64_t>{1, 2, 4});
  CHECK(sizes(nodes(2, 6)) == std::set<int64_t>{1, 2, 3, 6});
  CHECK(sizes(nodes(1, 12)) == std::set<int64_t>{1, 2, 3, 4, 6, 12});
}

TEST_CASE("messages between stages take the time of the links they use") {
  // On two nodes, the second of four stages sends to the other node.
  for (const std::string schedule : {"1f1b", "interleaved"}) {
    ChainPlanner planner({.blocks = 8, .batch = 32, .width = 256}, 8);
    const auto of = [&](const cost::Cluster& on, double& simulated) {
      const auto one = planner
                           .candidates(on, {{"pipe", 4},
                                            {"data", 2},
                                            {"micro", 2},
                                            {"zero", 0},
                                            {"checkpoint", false},
                                            {"schedule", schedule},
                                            {"submeshes", false}})
                           .front();
      double peak = 0;
      simulated = planner.judge(one, on, peak).step_seconds;
      return one.estimate.seconds;
    };
    auto on = nodes(2, 4);
    on.links[1].latency = 2e-4;
    double near = 0, far = 0;
    const double far_by_model = of(on, far), near_by_model = of(nodes(1, 8), near);
    CAPTURE(schedule, near, far);
    CHECK(far > 1.1 * near);
    // At least one message in each direction, and the sum of the gradients' norm over stages.
    CHECK(far_by_model - near_by_model > 3 * on.links[1].latency);
    CHECK(far_by_model - near_by_model < far - near);
  }
}

TEST_CASE("a model without blocks is timed on the slowest of its devices") {
  ChainPlanner planner({.blocks = 0, .batch = 8, .width = 512}, 2);
  auto on = cluster(2);
  on.devices.front().count = 1;
  auto slow = on.devices.front();
  slow.name = "slow";
  slow.bandwidth /= 10;
  slow.vector /= 10;
  for (auto& [dtype, peak] : slow.peak) peak /= 10;
  on.devices.push_back(slow);
  const auto one = planner
                       .candidates(on,
                                   {{"data", 2}, {"zero", 0}, {"submeshes", false}, {"micro", 4}})
                       .front();
  double peak = 0;
  const auto simulated = planner.judge(one, on, peak);
  CHECK(one.estimate.seconds == Approx(simulated.step_seconds).epsilon(0.05));
}
