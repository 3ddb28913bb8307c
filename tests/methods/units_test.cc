// The units of zero1, zero2 and fsdp, and refused configs.
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "methods/method.h"

namespace perigee::methods {
namespace {

using Catch::Matchers::Contains;
using graph::DType;

// An embedding of 20 x 4, three blocks of a 4 x 4 weight and a bias, and a frozen head.
graph::Graph units_model() {
  graph::Graph g;
  const auto x = g.add_input(graph::Input::Kind::data, "x", {DType::float32, {8, 4}});
  g.scopes = {{"", "Net"}, {"embed", "Embedding"}, {"head", "Linear"}};
  auto y = x;
  const auto use = [&](const std::string& scope, const std::string& name,
                       std::vector<int64_t> shape, bool trainable = true) {
    const auto w = g.add_input(graph::Input::Kind::parameter, scope + "." + name,
                               {DType::float32, std::move(shape)});
    g.inputs.back().trainable = trainable;
    y = g.add_node("aten::add.Tensor", {{"self", y}, {"other", w}}, {{DType::float32, {8, 4}}},
                   scope)[0];
  };
  use("embed", "weight", {20, 4});
  for (int k = 0; k < 3; ++k) {
    const auto scope = "blocks." + std::to_string(k);
    g.scopes.push_back({scope, "Block"});
    use(scope, "bias", {4});
    use(scope, "weight", {4, 4});
  }
  use("head", "weight", {4, 4}, false);
  const auto loss = g.add_node("aten::sum", {{"self", y}}, {{DType::float32, {}}});
  g.outputs.push_back({graph::Output::Kind::loss, "loss", loss[0]});
  return g;
}

plan::Plan units_plan_of(const std::string& methods, int64_t world = 4, int64_t sharing_ranks = 1) {
  const auto g = units_model();
  const auto strategy = from_json(Json::parse(methods), "test");
  return make_plan(strategy, {.graph = &g,
                              .global_batch = 8,
                              .world = world,
                              .world_given = true,
                              .sharing_ranks = sharing_ranks});
}

// "NAME: PARAMETERS; ..." of a plan's units.
std::string units_of(const plan::Plan& plan) {
  std::string text;
  for (const auto& unit : plan.units) {
    text += unit.name + ":";
    for (const auto& parameter : unit.parameters) text += " " + parameter;
    text += "\n";
  }
  return text;
}

std::string units_refused(const std::string& methods) {
  try {
    units_plan_of(methods);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a unit of fsdp is a block or the modules between blocks, and lists matrices first") {
  CHECK(units_of(units_plan_of(R"(["fsdp"])")) ==
        "rest.0: embed.weight\n"
        "blocks.0: blocks.0.weight blocks.0.bias\n"
        "blocks.1: blocks.1.weight blocks.1.bias\n"
        "blocks.2: blocks.2.weight blocks.2.bias\n"
        "rest.1 frozen: head.weight\n");
  CHECK(units_of(units_plan_of(R"([["fsdp", {"atorch_wrap_cls": ["Block"]}]])")) ==
        units_of(units_plan_of(R"(["fsdp"])")));
  CHECK(units_of(
            units_plan_of(R"([["fsdp", {"match": "embed", "ignored": ["**.bias", "head.*"]}]])")) ==
        "embed: embed.weight\n"
        "rest.0: blocks.0.weight blocks.1.weight blocks.2.weight\n");
}

TEST_CASE("ATorch's names of trainable_outmost have its effect") {
  const auto outmost = units_of(units_plan_of(R"([["fsdp", {"trainable_outmost": true}]])"));
  CHECK(outmost != units_of(units_plan_of(R"(["fsdp"])")));
  for (const char* name : {"wrap_trainable_outmost", "fsdp_wrap_params_outmost"}) {
    INFO(name);
    CHECK(units_of(units_plan_of(R"([["fsdp", {")" + std::string(name) + R"(": true}]])")) ==
          outmost);
  }
}

TEST_CASE("a unit of zero1 and zero2 is a bucket of gradients, in the order of the backward pass") {
  CHECK(units_of(units_plan_of(R"(["zero1"])")) ==
        "size.0 frozen: head.weight\n"
        "size.0: blocks.2.weight blocks.1.weight blocks.0.weight embed.weight blocks.2.bias "
        "blocks.1.bias blocks.0.bias\n");
  const auto plan = units_plan_of(R"([["zero2", {"atorch_size_based_min_num_params": 40}]])");
  CHECK(units_of(plan) ==
        "size.0: embed.weight\n"
        "size.1: blocks.0.weight blocks.1.weight blocks.0.bias blocks.1.bias\n"
        "size.2: blocks.2.weight blocks.2.bias\n"
        "size.2 frozen: head.weight\n");
  CHECK(plan.units[0].level == 2);
  CHECK(plan.units[0].axes == "data");
}

TEST_CASE("patterns of parameters that stay replicated match some") {
  CHECK(units_of(units_plan_of(R"([["zero1", {"ignored": ["blocks.**"]}]])")).find("blocks") ==
        std::string::npos);
  CHECK_THROWS_WITH(units_plan_of(R"([["zero1", {"ignored": ["block.**"]}]])"),
                    Catch::Contains("[zero1] ignored must match parameters of the model, but "
                                    "\"block.**\" matches none"));
}

TEST_CASE("a zero axis stores units in parts, and splits the batch") {
  const auto plan = units_plan_of(R"([["fsdp", {"sharding_strategy": "_HYBRID_SHARD_ZERO2"}],
                                ["parallel_mode", [["zero", 2], ["data", 1]]]])");
  CHECK(plan.mesh.size_of("data") == 2);
  CHECK(plan.batch_axes == "data,zero");
  CHECK(plan.units[0].axes == "zero");
  CHECK_FALSE(plan.units[0].reshard_after_forward);
  CHECK(units_plan_of(R"([["fsdp", {"axis": "data,zero"}],
                    ["parallel_mode", [["zero", 2], ["data", 2]]]])")
            .units[0]
            .axes == "zero,data");
}

TEST_CASE("one rank has nothing to shard, which the plan reports") {
  const auto plan = units_plan_of(R"(["fsdp"])", 1);
  CHECK(plan.units.empty());
  CHECK_THAT(plan::explain(plan), Contains("fsdp: axis data has one rank: there is nothing"));
}

TEST_CASE("without parameters to shard, the decisions say so and nothing else") {
  for (const std::string method : {"fsdp", "zero1"}) {
    const auto plan = units_plan_of(R"([[")" + method + R"(", {"ignored": "**"}]])");
    CHECK(plan.units.empty());
    const auto text = plan::explain(plan);
    CHECK_THAT(text, Contains(method + ": all parameters are ignored, or split over data already"));
    CHECK_THAT(text, !Contains("in parts"));
  }
}

TEST_CASE("prefetch is one unit ahead by default") {
  const auto prefetch = [](const std::string& config) {
    const auto c = units_plan_of("[[\"fsdp\", " + config + "]]").communication;
    return std::vector{c.prefetch_forward, c.prefetch_backward, c.prefetch_bytes};
  };
  using Numbers = std::vector<int64_t>;
  CHECK(prefetch("{}") == Numbers{1, 1, 0});
  CHECK(prefetch(R"({"forward_prefetch": false})") == Numbers{0, 1, 0});
  CHECK(prefetch(R"({"backward_prefetch": "BACKWARD_POST"})") == Numbers{1, 0, 0});
  CHECK(prefetch(R"({"limit_all_gathers": false, "prefetch_mb": 0.5})") == Numbers{2, 2, 1 << 19});
}

TEST_CASE("a method with several wrong fields reports the first and the number of the others") {
  CHECK(units_refused(R"([["fsdp", {"cpu_offload": "yes", "forward": 1, "prefetch_mb": 0}]])") ==
        "[strategy] fsdp.cpu_offload must be true or false, but got \"yes\" (and 2 more fields of "
        "fsdp are wrong)");
  CHECK(units_refused(R"([["fsdp", {"cpu_offlod": true, "prefetch_mb": 0}]])") ==
        "[strategy] fsdp has no field \"cpu_offlod\", did you mean \"cpu_offload\"? (and 1 more "
        "field of fsdp is wrong)");
}

TEST_CASE("ranks of one host hold one copy of the weights where each group of them is on it") {
  const auto one_copy = [](const std::string& methods, int64_t sharing_ranks) {
    const auto plan = units_plan_of(methods, 4, sharing_ranks);
    CHECK(!plan.units.empty());
    const bool found = plan.units[0].one_copy;
    CHECK(std::ranges::any_of(plan.decisions, [](const plan::Decision& decision) {
            return decision.sentence.find("one copy in memory") != std::string::npos;
          }) == found);
    for (const auto& unit : plan.units) CHECK(unit.one_copy == found);
    return found;
  };
  for (const char* method : {"zero1", "zero2"}) {
    const auto list = [&](const std::string& fields, const std::string& others = "") {
      return "[" + others + "[\"" + method + "\", " + fields + "]]";
    };
    CHECK(one_copy(list("{}"), 4));
    CHECK(!one_copy(list("{}"), 2));  // the group has ranks of two hosts
    CHECK(!one_copy(list("{}"), 1));
    CHECK(!one_copy(list(R"({"one_copy": false})"), 4));
    CHECK(one_copy(list(R"({"one_copy": true})"), 1));
    const char* mesh = R"(["parallel_mode", [["zero", 2], ["data", 2]]], )";
    CHECK(one_copy(list("{}", mesh), 2));  // groups over zero have neighbours
    CHECK(!one_copy(list(R"({"axis": "data"})", mesh), 2));
    // Weights that ranks cannot write together.
    CHECK(!one_copy(list("{}", R"(["overlap", {"step": true}], )"), 4));
    CHECK_THAT(units_refused(list(R"({"one_copy": true})", R"(["overlap", {"step": true}], )")),
               Contains("one_copy must be false") && Contains("overlap.step"));
    CHECK_THAT(units_refused(list(R"({"one_copy": true})", R"(["half", {"dtype": "bf16"}], )")),
               Contains("one_copy must be false") && Contains("masters"));
  }
  CHECK_THAT(units_refused(R"([["fsdp", {"one_copy": true}]])"),
             Contains("fsdp has no field \"one_copy\""));
}

TEST_CASE("ranks of unequal submeshes hold one copy where their stage's group is on one host") {
  const auto g = units_model();
  const auto strategy = from_json(
      Json::parse(R"([["parallel_mode", {"submeshes": [[["data", 2]], [["data", 4]]]}], "zero1"])"),
      "test");
  const auto one_copy = [&](int64_t sharing_ranks) {
    return make_plan(strategy, {.graph = &g, .global_batch = 8, .sharing_ranks = sharing_ranks})
        .units.at(0)
        .one_copy;
  };
  CHECK(one_copy(6));
  CHECK(!one_copy(4));  // ranks 2, 3, 4 and 5 are the group of the second stage
}

TEST_CASE("invalid units are refused with the known names") {
  CHECK(units_refused(R"(["zero1", "fsdp"])") ==
        "[strategy] zero1 and fsdp exclude each other, but the strategy has both: fsdp stores in "
        "parts all that zero1 does, and gradients and parameters too");
  CHECK_THAT(units_refused(R"(["zero2", "zero1"])"),
             Contains("zero1 and zero2 exclude each other"));
  CHECK_THAT(units_refused(R"([["fsdp", {"axis": "zero"}]])"),
             Contains("axis \"zero\" must be in parallel_mode, but the mesh has data"));
  CHECK_THAT(units_refused(R"([["zero1", {"axis": "dta"}]])"), Contains("did you mean \"data\""));
  CHECK_THAT(units_refused(R"([["fsdp", {"match": "block.*"}]])"),
             Contains("\"block.*\" matches none") && Contains("blocks."));
  CHECK_THAT(units_refused(R"([["fsdp", {"atorch_wrap_cls": "Blok"}]])"),
             Contains("did you mean \"Block\""));
  CHECK_THAT(
      units_refused(R"([["fsdp", {"match": "embed", "atorch_size_based_min_num_params": 5}]])"),
      Contains("by scope or by size"));
  CHECK_THAT(units_refused(R"([["fsdp", {"sharding_strategy": "HYBRID_SHARD"}]])"),
             Contains("the mesh has no axis zero"));
  CHECK_THAT(units_refused(R"([["fsdp", {"sharding_strategy": "FULL_SHART"}]])"),
             Contains("did you mean \"FULL_SHARD\""));
  CHECK_THAT(units_refused(R"([["fsdp", {"sharding_strategy": "FULL_SHARD",
                               "reshard_after_forward": false}]])"),
             Contains("leave one of them out"));
  CHECK_THAT(units_refused(R"([["fsdp", {"cpu_offload": "yes"}]])"),
             Contains("must be true or false"));
  CHECK_THAT(units_refused(R"([["fsdp", {"prefetch_mb": 0}]])"),
             Contains("prefetch_mb must be above 0"));
  CHECK_THAT(units_refused(R"([["fsdp", {"backward_prefetch": "BACKWARD"}]])"),
             Contains("BACKWARD_PRE"));
}

}  // namespace perigee::methods
