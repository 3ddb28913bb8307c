// The answer of a search and its lower bound against the whole space, evaluated by the model.
#include <fmt/format.h>
#include <rapidcheck.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "base/infinity.h"
#include "tests/search/certificate/draws.h"
#include "tests/search/certificate/whole_space.h"

using namespace perigee;
using nlohmann::json;
using search::ChainPlanner;
using search::coin;
using search::Estimate;
using search::kRounding;
using search::one_of;
using search::pick;
using search::Starts;
using search::WholeSpace;

namespace {

struct Job {
  search::Chain shape;
  int64_t world = 1;
  cost::Cluster on;
  json pins = json::object();
};

Job random_job() {
  Job job;
  job.shape = {.blocks = pick(1, 5),
               .batch = one_of<int64_t>({1, 2, 4, 6, 8}),
               .width = one_of<int64_t>({16, 64, 192}),
               .gelus = pick(1, 2),
               .head = coin()};
  job.world = one_of<int64_t>({1, 2, 3, 4});
  job.on = search::cluster(job.world);
  if (job.world > 1) {
    job.on.links.front().bandwidth = std::pow(10.0, pick(7, 11));
    if (job.world == 4 && coin()) {
      job.on.links.push_back({"fabric", 4, 1e-5, job.on.links.front().bandwidth / 10, ""});
      job.on.links.front().ranks = 2;
    }
    if (coin()) {  // two kinds of devices
      job.on.devices.front().count = 1;
      auto& other = job.on.devices.emplace_back(job.on.devices.front());
      other.name = "slow";
      other.count = job.world - 1;
      other.peak[graph::DType::float32] /= 2;
    }
  }
  if (coin()) job.pins["offload"] = coin();
  if (coin()) job.pins["zero"] = pick(0, 3);
  if (coin()) job.pins["pipe"] = one_of(search::divisors(job.world));
  if (coin()) job.pins["balance"] = pick(2, 10) / 10.0;
  if (coin()) job.pins["checkpoint"] = one_of<json>({false, true, "full", "selective"});
  return job;
}

void log(const Job& job) {
  RC_LOG() << fmt::format(
                  "{} blocks of width {}, {} gelus, head {}, batch {}, {} ranks, {} kinds, ",
                  job.shape.blocks, job.shape.width, job.shape.gelus, job.shape.head,
                  job.shape.batch, job.world, job.on.devices.size())
           << job.pins.dump();
  for (const auto& link : job.on.links) RC_LOG() << " " << link.bandwidth;
}

void check_job() {
  const auto job = random_job();
  log(job);
  ChainPlanner planner(job.shape, job.world);
  planner.request.pins = search::parse_pins(job.pins);
  WholeSpace space(planner, job.on);
  double least = kInfinity;
  std::string best;
  for (const auto& one : space.combinations()) {
    space.each_cut(one, [&](const Starts& starts, const Estimate& estimate) {
      // Without what follows the last microbatch, which the bound does not count.
      const double passes = estimate.seconds - estimate.epilogue_seconds;
      const bool holds = one.bound <= passes * (1 + kRounding);
      const bool tight = one.bound >= passes * (1 - kRounding);
      const bool one_stage = one.choice.pipe == 1 && one.choice.zero < 2;  // no exchange in passes
      if (!holds || (one_stage && !tight)) {
        RC_LOG() << "\n"
                 << search::to_string(one.choice)
                 << fmt::format(" at {}: bound {}, passes {}", fmt::join(starts, " "), one.bound,
                                passes);
      }
      RC_ASSERT(holds);
      RC_ASSERT(!one_stage || tight);
      if (estimate.seconds < least) {
        least = estimate.seconds;
        best = search::to_string(one.choice) + fmt::format(" at {}", fmt::join(starts, " "));
      }
    });
  }
  if (std::isinf(least)) {
    RC_ASSERT_THROWS_AS(planner.find(job.on), Error);
    return;
  }
  RC_LOG() << fmt::format("\nleast {}: {}", least, best);
  const auto answer =
      search::candidates(planner.request, job.on, planner.none, planner.traces, 1).front();
  RC_LOG() << fmt::format("\nanswer {}: {}", answer.estimate.seconds,
                          search::to_string(answer.choice));
  RC_ASSERT(answer.estimate.seconds <= least * (1 + kRounding));
  RC_ASSERT(answer.estimate.seconds >= least * (1 - kRounding));
  planner.request.most_judged = 1;
  const auto found = planner.find(job.on);
  RC_LOG() << fmt::format("\nproven {}", found.lower_bound);
  RC_ASSERT(found.lower_bound <= least * (1 + kRounding));
}

}  // namespace

TEST_CASE("the search's answer is the best of every combination and cut, and its bound holds") {
  CHECK(rc::check("the whole space", check_job));
}
