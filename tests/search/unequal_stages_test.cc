// Programs and simulations of stages of unequal submeshes.
#include <catch2/catch.hpp>
#include <numeric>
#include <random>

#include "methods/method.h"
#include "simulate/simulate.h"
#include "tests/search/support_search.h"

using namespace perigee;
using nlohmann::json;

namespace {

json strategy_of(const std::vector<std::vector<mesh::Axis>>& submeshes,
                 const std::string& schedule) {
  auto stages = json::array();
  for (const auto& submesh : submeshes) {
    auto& axes = stages.emplace_back(json::array());
    for (const auto& axis : submesh) axes.push_back({axis.name, axis.size});
  }
  return json::array({json::array({"parallel_mode", json{{"submeshes", stages}}}),
                      json::array({"pipeline_parallel", json{{"schedule", schedule}}}),
                      json::array({"gradient_accumulation", json{{"microbatches", 6}}})});
}

struct Compiled {
  graph::Graph graph = search::chain({.blocks = 16, .batch = 48});
  plan::Plan plan;
  compile::Programs shared;  // one for each set of equivalent ranks
  compile::Programs each;    // one for each rank
  Compiled(const std::vector<std::vector<mesh::Axis>>& submeshes, const std::string& schedule) {
    methods::PlanRequest request{.graph = &graph, .global_batch = 288};
    plan = methods::make_plan(methods::from_json(strategy_of(submeshes, schedule), "test"),
                              request);
    compile::NoTraces traces;
    const compile::StepSpec spec{.clip_norm = 1};
    shared = compile::compile_all(graph, plan, spec, traces);
    each.ranks = shared.ranks;
    each.program.resize(each.ranks.size());
    std::iota(each.program.begin(), each.program.end(), 0);
    for (const auto rank : each.ranks) {
      each.programs.push_back(compile::compile(graph, plan, spec, rank, traces));
    }
  }
};

// Returns the first difference between two programs, or "".
std::string compare(const compile::Program& a, const compile::Program& b) {
  if (a.peak_bytes != b.peak_bytes) return "memory";
  if (a.sections.size() != b.sections.size() || a.order.size() != b.order.size()) return "sections";
  for (size_t s = 0; s < a.sections.size(); ++s) {
    const auto &x = a.sections[s].instructions, &y = b.sections[s].instructions;
    if (x.size() != y.size()) return a.sections[s].name();
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i].op != y[i].op || x[i].stream != y[i].stream || x[i].event != y[i].event ||
          x[i].outputs != y[i].outputs) {
        return a.sections[s].name() + " " + x[i].op;
      }
    }
  }
  return "";
}

double seconds_of(const compile::Programs& programs, const plan::Plan& plan) {
  const auto on = search::cluster(plan.mesh.size());
  cost::NoMeasurements none;
  simulate::OpCosts costs(on, none);
  return simulate::simulate(programs, plan.mesh, costs).step_seconds;
}

void check(const Compiled& compiled) {
  const auto& [graph, plan, shared, each] = compiled;
  for (size_t i = 0; i < each.ranks.size(); ++i) {
    INFO("rank " << each.ranks[i]);
    CHECK(compare(shared.of(i), each.programs[i]) == "");
    CHECK(shared.streams_of(i) == each.programs[i].streams);
  }
  CHECK(seconds_of(shared, plan) == Approx(seconds_of(each, plan)).epsilon(1e-9));
}

}  // namespace

TEST_CASE("equivalent ranks of unequal stages have one program, with messages of their own") {
  const Compiled compiled({{{"data", 8}}, {{"data", 4}}}, "1f1b");
  // Each stage has two kinds of ranks: the one that reports the losses, and the others. The senders
  // of both halves of a receiver's tensor are equivalent.
  CHECK(compiled.shared.programs.size() == 4);
  check(compiled);
  // The comparison fails if a rank has the message streams of another one.
  auto wrong = compiled.shared;
  wrong.renamed.clear();
  CHECK(wrong.streams_of(5) != compiled.each.programs[5].streams);
}

TEST_CASE("programs of equivalent ranks equal those compiled for each rank, on random submeshes") {
  std::mt19937 random(11);
  const char* const schedules[] = {"1f1b", "gpipe", "interleaved", "zb1p", "zbv"};
  for (int k = 0; k < 24; ++k) {
    std::vector<std::vector<mesh::Axis>> submeshes(2 + random() % 2);
    for (auto& submesh : submeshes) {
      const int64_t data[] = {1, 2, 3, 4, 6, 8}, tensor[] = {1, 2, 3};
      submesh = {{"tensor", tensor[random() % 3]}, {"data", data[random() % 6]}};
    }
    const auto* schedule = schedules[random() % std::size(schedules)];
    INFO(strategy_of(submeshes, schedule).dump());
    check(Compiled(submeshes, schedule));
  }
}
