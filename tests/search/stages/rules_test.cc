// The rules of a table of stages: methods of the strategy, profiles, balance, and the chosen rows.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/files/file.h"
#include "graph/flops.h"
#include "methods/parallel/planned_stages.h"
#include "search/stages/describe_stages.h"
#include "tests/search/stages/job.h"
#include "tests/support/temporary_folder.h"

namespace perigee::search {
namespace {

using nlohmann::json;

StageTable table_with(const Job& job, const StageRules& rules,
                      const std::vector<std::string>& choose = {}) {
  auto options = job.options();
  options.choose = choose;
  options.rules = rules;
  return make_stage_table(job.request(), options);
}

// The row with the lowest peak of a range on a view.
const StageRow* row_of(const StageTable& table, int first, int last, int view) {
  const StageRow* found = nullptr;
  for (const auto& row : table.rows) {
    if (row.first != first || row.last != last || row.view != view) continue;
    if (!found || row.peak < found->peak) found = &row;
  }
  return found;
}

TEST_CASE("methods that store parameters in parts or recompute blocks count in each row") {
  Job job;
  job.graph = chain({.blocks = 6, .batch = 8, .width = 64, .gelus = 4});
  const auto plain = table_with(job, {});
  const auto stored = table_with(job, {.storage = 2});
  const auto chosen = table_with(job, {}, {"storage"});
  const auto recomputed = table_with(job, {.recomputed = true});
  REQUIRE(plain.rows.size() == 6 * plain.views.size());
  int parts = 0;
  for (const auto& row : plain.rows) {
    const auto& view = plain.views[row.view];
    const auto* in_parts = row_of(stored, row.first, row.last, row.view);
    const auto* again = row_of(recomputed, row.first, row.last, row.view);
    const auto* best = row_of(chosen, row.first, row.last, row.view);
    REQUIRE((in_parts && again && best));
    // Without a memory limit the solver chooses the cheapest level, among them none and the second.
    CHECK(best->cost <= row.cost * (1 + 1e-9));
    CHECK(best->cost <= in_parts->cost * (1 + 1e-9));
    if (view.data > 1) {
      ++parts;
      if (row.first != row.last) CHECK(in_parts->peak < row.peak);
    } else {
      CHECK(in_parts->peak == Approx(row.peak));
      CHECK(in_parts->cost == Approx(row.cost));
    }
    CHECK(again->cost > row.cost);
    if (row.last - row.first == 2) CHECK(again->peak < row.peak);
  }
  CHECK(parts > 0);
}

TEST_CASE("an individual profile costs the sum of the layers, each sharded by itself") {
  const Job job;
  const auto table = table_with(job, {.individual = true});
  const auto whole = table_with(job, {});
  CHECK(table.rows.size() == whole.rows.size());
  int more = 0;
  for (const auto& row : table.rows) {
    double cost = 0, peak = 0, temporary = 0;
    for (int layer = row.first; layer <= row.last; ++layer) {
      const auto* own = row_of(table, layer, layer, row.view);
      REQUIRE(own);
      cost += own->cost;
      peak += own->peak - own->temporary;
      temporary = std::max(temporary, own->temporary);
    }
    CHECK(row.cost == Approx(cost));
    CHECK(row.peak == Approx(peak + temporary));
    // Redistributes between layers are left out.
    more += row_of(whole, row.first, row.last, row.view)->cost > row.cost * (1 + 1e-9);
  }
  CHECK(more > 0);
  Job small;
  small.memory = row_of(table, 0, 1, 0)->peak - 1;
  const auto fewer = table_with(small, {.individual = true});
  CHECK(row_of(fewer, 0, 0, 0));
  CHECK_FALSE(row_of(fewer, 0, 1, 0));
}

TEST_CASE("no stage exceeds its share of the work by more than the imbalance") {
  const Job job;
  std::vector<double> work(3);
  plan::Pipeline pipeline;
  pipeline.axis = "pipe";
  pipeline.starts = job.options().layers;
  const auto layer_of = methods::parts_of_nodes(job.graph, pipeline);
  for (size_t n = 0; n < job.graph.nodes.size(); ++n) {
    work[layer_of[n]] += graph::flops_of(job.graph, job.graph.nodes[n]);
  }
  const double all = std::accumulate(work.begin(), work.end(), 0.0);
  const auto whole = table_with(job, {});
  size_t last = 0;
  for (const double imbalance : {0.0, 0.3, 1.0, 3.0}) {
    INFO(imbalance);
    const auto table = table_with(job, {.imbalance = imbalance});
    size_t allowed = 0;
    for (const auto& row : whole.rows) {
      const double own = std::accumulate(work.begin() + row.first, work.begin() + row.last + 1,
                                         0.0);
      const auto ranks = static_cast<double>(whole.views[row.view].ranks());
      const bool fits = own / all <= (1 + imbalance) * ranks / 4 * (1 + 1e-9);
      allowed += fits;
      CHECK((row_of(table, row.first, row.last, row.view) != nullptr) == fits);
    }
    CHECK(table.rows.size() == allowed);
    CHECK(allowed >= last);
    last = allowed;
  }
  CHECK(last == whole.rows.size());
}

TEST_CASE("the table's file has its rules and the chosen rows") {
  const Job job;
  const test::Folder folder;
  const auto file = folder.at("stages.json");
  json options = {{"layers", 3},
                  {"microbatches", 4},
                  {"file", file},
                  {"profile", "individual"},
                  {"imbalance", 2.0},
                  {"forbid", {"all_to_all"}},
                  {"methods", json::array({json::array({"zero2", json::object()})})}};
  const auto found = plan_stages(options, stages_request(job));
  const auto table = parse_table(read_file(file, "test"), file);
  CHECK(table.rules == StageRules{.storage = 2,
                                  .recomputed = false,
                                  .forbid = {"all_to_all"},
                                  .individual = true,
                                  .imbalance = 2.0});
  CHECK(table.choose == std::vector<std::string>{"recompute"});
  CHECK(json(table.chosen) == found["stages"]);
  CHECK(found["strategy"][0][1]["forbid"] == json{"all_to_all"});
  REQUIRE_FALSE(table.chosen.empty());
  CHECK(to_text(table).find("stage 0") != std::string::npos);
  CHECK(parse_table(print(table), file) == table);
  CHECK(table_json(found) == json::parse(read_file(file, "test")));
  CHECK(plan_stages(options, stages_request(job))["rows"] == found["rows"]);
  options["profile"] = "composition";
  CHECK_THROWS_WITH(plan_stages(options, stages_request(job)),
                    Catch::Contains("was made for another plan (the profile, imbalance"));
  options["profile"] = "whole";
  CHECK_THROWS_WITH(plan_stages(options, stages_request(job)),
                    Catch::Contains("profile must be composition or individual"));
  auto broken = json::parse(print(table));
  broken["chosen"] = {1000};
  CHECK_THROWS_WITH(parse_table(broken.dump(), "t.json"),
                    Catch::Contains("t.json: \"chosen\" must list rows below"));
  options.erase("profile");
  options["file"] = folder.at("other.json");
  options["methods"] = {json::array({"checkpoint", {"blocks.*"}}), "fsdp"};
  plan_stages(options, stages_request(job));
  const auto other = parse_table(read_file(folder.at("other.json"), "test"), "other");
  CHECK(other.rules.storage == 3);
  CHECK(other.rules.recomputed);
  CHECK(other.choose.empty());
}

// A method of a script: it recomputes a block, or stores parameters as `zero1` does.
class Own : public methods::Method {
 public:
  explicit Own(bool recomputes) : recomputes_(recomputes) {}
  std::string_view name() const override { return "own"; }
  std::string_view doc() const override { return "a method of a script"; }
  const std::vector<methods::ConfigField>& fields() const override {
    static const std::vector<methods::ConfigField> none;
    return none;
  }
  void apply(plan::Plan& plan, const methods::Config&,
             const methods::PlanRequest& request) const override {
    if (recomputes_) {
      plan.recompute.regions.push_back({"blocks.0"});
    } else {
      plan.units.push_back({"own", {request.graph->inputs.front().name}, {"data"}, 1});
    }
  }

 private:
  bool recomputes_;
};

TEST_CASE(
    "the fastest sequences are also simulated with methods in place of the solver's choices") {
  const Job job;
  auto request = stages_request(job);
  const json options = {{"layers", 3}, {"microbatches", 4}, {"views", "all"}, {"most", 4}};
  const auto has = [](const json& strategy, const char* method) {
    return std::ranges::any_of(strategy, [&](const auto& use) {
      return use == method || (use.is_array() && use[0] == method);
    });
  };
  // `fast`: the strategies that take a second, of `bytes`; the others take ten.
  const auto with = [&](auto fast, double bytes) {
    request.cost = [=](const json& strategy) {
      const bool is_fast = fast(strategy);
      return methods::PlanCost{.seconds = is_fast ? 1.0 : 10.0, .peak_bytes = is_fast ? bytes : 0};
    };
    return plan_stages(options, request);
  };
  const auto stored = with([&](const json& strategy) { return has(strategy, "fsdp"); }, 0);
  CHECK(stored["seconds"] == 1);
  CHECK(has(stored["strategy"], "fsdp"));
  CHECK(has(stored["strategy"], "auto_sharding"));
  for (const auto& use : stored["strategy"]) {
    if (use.is_array() && use[0] == "auto_sharding") CHECK(use[1]["choose"] == json{"recompute"});
  }
  const auto split = [&](const json& strategy) {
    return has(strategy, "tensor_parallel") && has(strategy, "zero2");
  };
  const auto known = with(split, 0);
  CHECK(split(known["strategy"]));
  CHECK_FALSE(has(known["strategy"], "auto_sharding"));
  CHECK(stages_chosen_by(methods::from_json(known["strategy"], "test"),
                         std::vector{std::make_shared<const json>(known)}));
  // A variant is not taken where it needs more memory than a rank has.
  const auto large = with(split, 2e9);
  CHECK(large["seconds"] == 10);
  CHECK(has(large["strategy"], "auto_sharding"));
  size_t refused = 0;
  for (const auto& one : large["judged"]) {
    refused += one.contains("refused");
    if (one.contains("refused")) CHECK(one["with"] == "tensor_parallel, zero2");
  }
  CHECK(refused > 0);
}

TEST_CASE("stages of equal submeshes are also cut by pipeline_parallel, unless layers are given") {
  const Job job;
  auto request = stages_request(job);
  const auto cut_elsewhere = [](const json& strategy) {
    return std::ranges::any_of(strategy, [](const auto& use) {
      return use.is_array() && use[0] == "pipeline_parallel" && !use[1].contains("starts");
    });
  };
  request.cost = [&](const json& strategy) {
    return methods::PlanCost{.seconds = cut_elsewhere(strategy) ? 1.0 : 10.0, .peak_bytes = 0};
  };
  const auto found = plan_stages({{"microbatches", 4}}, request);
  CHECK(found["seconds"] == 1);
  CHECK(cut_elsewhere(found["strategy"]));
  CHECK(found["with"] == "pipeline_parallel");
  const auto decisions = stage_decisions(found);
  CHECK_THAT(decisions[1].sentence, Catch::Contains("(pipeline_parallel in place of"));
  CHECK(std::ranges::any_of(decisions, [](const auto& decision) {
    return decision.sentence.ends_with("of the plan, which pipeline_parallel cuts elsewhere");
  }));
  const auto given = plan_stages({{"microbatches", 4}, {"layers", 3}}, request);
  CHECK(given["seconds"] == 10);
  CHECK_FALSE(given.contains("with"));
}

TEST_CASE("layers are as many as the modules' work allows where their number is not given") {
  Job job;
  // Six products of equal work are no five or four layers of about equal work.
  job.graph = chain({.blocks = 5, .batch = 8, .width = 64});
  const auto found = plan_stages({{"microbatches", 4}, {"tolerance", 0.1}}, stages_request(job));
  CHECK(found["layers"].size() + 1 < 5);
  CHECK_THROWS_WITH(
      plan_stages({{"microbatches", 4}, {"tolerance", 0.1}, {"layers", 5}}, stages_request(job)),
      Catch::Contains("into 5 layers"));
}

TEST_CASE("rules follow from the plan that methods make, not from their names") {
  const Job job;
  const auto with = [&](const json& methods, std::shared_ptr<const methods::Method> own = nullptr) {
    auto request = stages_request(job);
    if (own) request.defined = {own};
    return plan_stages({{"layers", 3}, {"microbatches", 4}, {"methods", methods}}, request);
  };
  const auto recomputed = with({"own"}, std::make_shared<Own>(true));
  CHECK(recomputed["rules"]["recomputed"] == true);
  CHECK(recomputed["rules"]["storage"] == 0);
  CHECK(recomputed["choose"] == json{"storage"});
  const auto stored = with({"own"}, std::make_shared<Own>(false));
  CHECK(stored["rules"]["recomputed"] == false);
  CHECK(stored["rules"]["storage"] == 1);
  CHECK(stored["choose"] == json{"recompute"});
  // Offloaded activations leave no choice of recomputation, but recompute nothing.
  const auto offloaded = with(json::parse(R"([["offload", ["blocks.*"]]])"));
  CHECK(offloaded["rules"]["recomputed"] == false);
  CHECK(offloaded["choose"] == json{"storage"});
  CHECK(with(json::array())["choose"] == json{"storage", "recompute"});
  CHECK_THROWS_WITH(with({"zero4"}), Catch::Contains("zero4"));
}

TEST_CASE("the stages of a strategy are explained by the rows of their table") {
  const Job job;
  const auto made = [&](const json& options) {
    return std::make_shared<const json>(plan_stages(options, stages_request(job)));
  };
  const std::vector<std::shared_ptr<const json>> all = {
      made({{"layers", 3}, {"microbatches", 4}, {"most", 1}}),
      made({{"layers", {"blocks.2"}},
            {"microbatches", 4},
            {"views", "data_parallel_only"},
            {"submeshes", {{1, 2}}}})};
  const auto& found = *all[1];
  REQUIRE(found["stages"].size() == 2);
  auto strategy = found["strategy"];
  CHECK(stages_chosen_by(methods::from_json(strategy, "test"), all) == all[1]);
  CHECK(stages_chosen_by(methods::from_json((*all[0])["strategy"], "test"), all) == all[0]);
  // An order of ranks does not change the stages; other starts or no solver do.
  strategy[0][1]["order"] = {3, 2, 1, 0};
  CHECK(stages_chosen_by(methods::from_json(strategy, "test"), all) == all[1]);
  auto other = strategy;
  other[1][1]["starts"] = {"blocks.3"};
  CHECK(stages_chosen_by(methods::from_json(other, "test"), all) == nullptr);
  other = strategy;
  REQUIRE(other.back()[0] == "auto_sharding");
  other.erase(other.size() - 1);
  CHECK(stages_chosen_by(methods::from_json(other, "test"), all) == nullptr);

  const auto decisions = stage_decisions(found);
  REQUIRE(decisions.size() == 2 + found["rows"].size());
  CHECK(decisions[0].sentence ==
        "2 layers, which begin at the first op, blocks.2, on submeshes of 1 x 2");
  CHECK(decisions[1].sentence.find("of 3 plans of stages") == 0);
  size_t chosen = 0;
  for (size_t r = 0; r < found["rows"].size(); ++r) {
    const auto& decision = decisions[2 + r];
    CHECK(decision.by == kStageTable);
    for (const char* part :
         {"cost ", ", peak ", ", in ", ", out ", ", temporary ", ", available "}) {
      CHECK(decision.sentence.find(part) != std::string::npos);
    }
    const auto stage = std::ranges::find(found["stages"], json(r)) - found["stages"].begin();
    const bool is_chosen = stage < std::ssize(found["stages"]);
    chosen += is_chosen;
    const auto end = "; stage " + std::to_string(stage) + " of the plan";
    CHECK(decision.sentence.ends_with(end) == is_chosen);
    CHECK((decision.sentence.find("; stage ") != std::string::npos) == is_chosen);
  }
  CHECK(chosen == 2);
}

}  // namespace
}  // namespace perigee::search
