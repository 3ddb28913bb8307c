// The reasons that a search adds to its plan.
#include "search/explain/explain.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "search/explain/chosen.h"
#include "tests/search/support_search.h"

using namespace perigee;
using namespace perigee::search;

namespace {

// Returns a search's result with tensor = 2 as the best of sizes 1 to 8.
Found found_of_sizes() {
  Found found;
  for (const int64_t tensor : {1, 2, 4, 8}) found.all.push_back({.tensor = tensor});
  found.best.choice = found.all[1];
  found.best.estimate.seconds = 1;
  found.best.seconds = 1.5;
  found.combinations = found.looked_at = found.all.size();
  return found;
}

}  // namespace

TEST_CASE("the best plan of each tensor size that lost is named, with its excess by the model") {
  auto found = found_of_sizes();
  auto& features = found.features;
  features.count(found.all[0], 1.3, false);
  features.count({.tensor = 1, .micro = 2}, 1.2, false);
  features.count(found.all[1], 1, false);
  features.count(found.all[2], 1.4, true);
  CHECK(tensor_size_sentences(found) ==
        std::vector<std::string>{"the best plan with tensor = 1 is data 1, 1 microbatch of 2: it "
                                 "takes 20.0% longer by the model",
                                 "with tensor = 4 a plan takes at least 40.0% longer by the model",
                                 "no plan with tensor = 8 fits"});
}

TEST_CASE(
    "the simulator decides on the best plan of a tensor size where its programs were judged") {
  auto found = found_of_sizes();
  auto& features = found.features;
  features.count(found.all[0], 1.1, false);
  found.others.push_back({.choice = found.all[0], .judged = true, .seconds = 3});
  found.others.push_back({.choice = {.tensor = 1, .micro = 4}, .judged = true, .seconds = 2.1});
  CHECK(tensor_size_sentences(found).front() ==
        "the best plan with tensor = 1 is data 1, 1 microbatch of 4: it takes 40.0% longer");
}

TEST_CASE("a faster plan that the strategy left out is named once") {
  auto found = found_of_sizes();
  found.chosen = true;
  found.features.count(found.all[0], 0.5, false);
  for (const auto* choice : {&found.all[0], &found.all[2], &found.all[3]}) {
    found.others.push_back({.choice = *choice});
    found.others.back().estimate.seconds = choice == &found.all[0] ? 0.5 : 2;
  }
  explain(found, "test", std::nullopt);
  std::map<std::string, int> times;
  for (const auto& decision : found.plan.decisions) ++times[decision.sentence];
  for (const auto& [sentence, count] : times) {
    INFO(sentence);
    CHECK(count == 1);
  }
  const auto left_out = "the strategy left out " + to_string(found.all[0]) +
                        ", which takes 50.0% " + "less by the model";
  CHECK(times[left_out] == 1);
  CHECK_THAT(plan::explain(found.plan),
             Catch::Contains(to_string(found.all[3]) + " takes 100.0% longer by the model"));
}

TEST_CASE("a faster plan that was simulated, and that the strategy left out, is named once") {
  auto found = found_of_sizes();
  found.chosen = true;
  found.others.push_back({.choice = found.all[0], .judged = true, .seconds = 1.2});
  found.others.push_back({.choice = found.all[2], .judged = true, .seconds = 3});
  CHECK(tensor_size_sentences(found) ==
        std::vector<std::string>{
            "the strategy left out " + to_string(found.all[0]) + ", which takes 20.0% less",
            "the best plan with tensor = 4 is " + to_string(found.all[2]) +
                ": it takes 100.0% longer",
            "no plan with tensor = 8 fits"});
  explain(found, "test", std::nullopt);
  const auto text = plan::explain(found.plan);
  INFO(text);
  const auto first = text.find("left out");
  CHECK(first != std::string::npos);
  CHECK(text.find("left out", first + 1) == std::string::npos);
}

TEST_CASE("a tensor size is not called infeasible if combinations were left out") {
  auto found = found_of_sizes();
  found.combinations = kMostBounds + 1;
  CHECK(tensor_size_sentences(found).empty());
}

TEST_CASE("a plan explains every tensor size that the search considered") {
  ChainPlanner planner({.blocks = 4, .batch = 8}, 4);
  const auto found = planner.find(cluster(4));
  std::set<int64_t> sizes;
  for (const auto& choice : found.all) {
    if (choice.submeshes.empty()) sizes.insert(choice.tensor);
  }
  REQUIRE(sizes.size() > 1);
  const auto text = plan::explain(found.plan);
  INFO(text);
  const bool homogeneous = found.best.choice.submeshes.empty();
  for (const auto tensor : sizes) {
    const bool best = homogeneous && tensor == found.best.choice.tensor;
    CHECK((text.find("with tensor = " + std::to_string(tensor)) == std::string::npos) == best);
  }
}

TEST_CASE("a strategy that takes a candidate is told the faster ones that it left out") {
  ChainPlanner planner({.blocks = 4, .batch = 8}, 4);
  const auto ranked = std::make_shared<const Found>(
      rank(planner.request, cluster(4), planner.none, planner.traces, 50));
  REQUIRE(ranked->others.size() > 3);
  CHECK(ranked->combinations > 3);
  const auto& taken = ranked->others[2];
  const auto strategy = methods::from_json(taken.strategy, "test");
  const std::vector<std::shared_ptr<const Found>> made = {ranked, ranked};
  auto found = chosen_by(strategy, {made, {}});
  REQUIRE(found);
  CHECK(found->best.choice == taken.choice);
  CHECK(found->chosen);
  found->best.judged = true;
  found->best.seconds = 1;
  explain(*found, "test", std::nullopt);
  const auto text = plan::explain(found->plan);
  INFO(text);
  CHECK_THAT(text, Catch::Contains("the strategy's is " + to_string(taken.choice)));
  CHECK_THAT(text, Catch::Contains("the strategy left out " + to_string(ranked->others[0].choice) +
                                   ", which takes"));
  CHECK_THAT(text, Catch::Contains("it is bound by "));
  // Another mesh is none of them.
  CHECK(!chosen_by(
      methods::from_json(nlohmann::json::parse(R"([["parallel_mode", [["tensor", 3]]]])"), "test"),
      {made, {}}));
}

TEST_CASE("a strategy that takes the plan of a search is explained as the search explains it") {
  ChainPlanner planner({.blocks = 4, .batch = 8}, 4);
  const auto found = std::make_shared<const Found>(planner.find(cluster(4)));
  const std::vector<std::shared_ptr<const Found>> made = {found};
  auto again = chosen_by(methods::from_json(found->best.strategy, "test"), {made, {}});
  REQUIRE(again);
  CHECK_FALSE(again->chosen);
  again->best.judged = true;
  again->best.seconds = found->best.seconds;
  again->best.peak_bytes = found->best.peak_bytes;
  again->plan.decisions.clear();
  explain(*again, "test", std::nullopt);
  std::vector<std::string> theirs, ours;
  for (const auto& d : found->plan.decisions) {
    if (d.by == "auto") theirs.push_back(d.sentence);
  }
  for (const auto& d : again->plan.decisions) ours.push_back(d.sentence);
  CHECK(ours == theirs);
}
