#include "plan/plan.h"

#include <rapidcheck.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/golden.h"

namespace perigee::plan {
namespace {

graph::Graph linear_graph() {
  graph::Graph g;
  const auto x = g.add_input(graph::Input::Kind::data, "x", {graph::DType::float32, {8, 4}});
  const auto w = g.add_input(graph::Input::Kind::parameter, "head.weight",
                             {graph::DType::float32, {4, 3}});
  g.scopes = {{"", "Net"}, {"head", "Linear"}};
  const auto y = g.add_node("aten::mm", {{"self", x}, {"mat2", w}},
                            {{graph::DType::float32, {8, 3}}}, "head");
  const auto loss = g.add_node("aten::sum", {{"self", y[0]}}, {{graph::DType::float32, {}}});
  g.outputs.push_back({graph::Output::Kind::loss, "loss", loss[0]});
  return g;
}

Plan example_plan() {
  Plan plan;
  plan.graph_hash = "0123456789abcdef0123456789abcdef";
  plan.mesh = {{{"tensor", 2}, {"data", 2}}, {0, 1, 4, 5}};
  plan.microbatches = 4;
  plan.placements["head.weight"] = mesh::parse_placements("S1,R");
  plan.placements["head/mm.0"] = mesh::parse_placements("S1,S0");
  plan.rules["my::op"] = "b* k+, n k -> b* n";
  plan.communication = {.bucket_bytes = 1 << 20,
                        .overlap = false,
                        .communicators = 2,
                        .reduce_dtype = graph::DType::float16,
                        .reduce_scale = 128,
                        .prefetch_forward = 2};
  plan.copy_axes = "replica";
  plan.averages = {{"replica", 8, {"head.weight"}, true}};
  plan.recompute = {.regions = {{"head"}}, .keep = {"aten::mm"}};
  plan.units = {{"head", {"head.weight"}, "data", 2, false}};
  plan.prediction = {.peak_bytes = {1 << 20, 3 << 19, 1 << 20, 1 << 20}, .step_seconds = 0.0125};
  plan.decisions.push_back({"parallel_mode", "the mesh has tensor=2, data=2 on 4 ranks"});
  plan.decisions.push_back({"tensor_parallel", "head.weight is split by columns over tensor"});
  return plan;
}

// A plan that `verify` accepts for `linear_graph`.
Plan fitting_plan(const graph::Graph& g) {
  Plan plan;
  plan.graph_hash = graph::structural_hash(g);
  plan.mesh = {{{"data", 2}}, {}};
  return plan;
}

TEST_CASE("a plan prints as the golden file and reads back") {
  const auto plan = example_plan();
  CHECK(test::golden_difference("tests/plan/example.json", print(plan)) == "");
  CHECK(parse(test::read_text("tests/plan/example.json")) == plan);
}

TEST_CASE("the explanation of a plan has its decisions and its prediction") {
  CHECK(explain(example_plan()) ==
        "parallel_mode: the mesh has tensor=2, data=2 on 4 ranks\n"
        "tensor_parallel: head.weight is split by columns over tensor\n"
        "predicted peak memory of a rank: 1 MiB to 1.5 MiB (estimate)\n"
        "predicted step time: 0.0125 s (estimate)\n");
  CHECK(explain(Plan{}) == "");
}

TEST_CASE("every printed plan parses to the same plan") {
  CHECK(rc::check("parse(print(p)) == p", [] {
    Plan plan;
    plan.graph_hash = *rc::gen::string<std::string>();
    const int axes = *rc::gen::inRange(0, 4);
    for (int a = 0; a < axes; ++a) {
      plan.mesh.axes.push_back({"axis" + std::to_string(a), *rc::gen::inRange(1, 9)});
    }
    plan.mesh.order = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 99));
    plan.microbatches = *rc::gen::positive<int64_t>();
    plan.placements["a/\"name\"\n"] = mesh::Placements(axes, mesh::Placement::shard(1));
    plan.communication.bucket_bytes = *rc::gen::arbitrary<int64_t>();
    plan.communication.overlap = *rc::gen::arbitrary<bool>();
    plan.communication.buckets = *rc::gen::inRange(0, 3);
    plan.communication.communicators = *rc::gen::inRange(1, 3);
    plan.communication.sum = *rc::gen::arbitrary<bool>();
    plan.communication.clip_first = *rc::gen::arbitrary<bool>();
    if (*rc::gen::arbitrary<bool>()) {
      plan.communication.reduce_dtype = graph::DType::bfloat16;
      plan.communication.reduce_scale = *rc::gen::inRange(1, 100);
    }
    for (int n = *rc::gen::inRange(0, 3); n > 0; --n) {
      plan.copy_axes = mesh::AxisSet::parse("axis" + std::to_string(n));
      plan.averages.push_back({plan.copy_axes, n, {"head.weight"}, n == 2});
    }
    plan.prediction.step_seconds = *rc::gen::arbitrary<double>();
    plan.prediction.peak_bytes = *rc::gen::arbitrary<std::vector<int64_t>>();
    plan.prediction.exact_memory = *rc::gen::arbitrary<bool>();
    plan.prediction.host_bytes = *rc::gen::arbitrary<std::vector<int64_t>>();
    plan.recompute.budget_bytes = *rc::gen::arbitrary<int64_t>();
    for (int n = *rc::gen::inRange(0, 3); n > 0; --n) {
      plan.recompute.keep_in["blocks." + std::to_string(n)] = std::vector<std::string>(
          static_cast<size_t>(n - 1), "aten::mm");
    }
    if (*rc::gen::arbitrary<bool>()) plan.offload.activations = {"blocks.0", "blocks.1"};
    plan.offload.parameters = *rc::gen::arbitrary<bool>();
    plan.offload.optimizer = *rc::gen::arbitrary<bool>();
    plan.offload.prefetch = *rc::gen::arbitrary<int64_t>();
    plan.loss_chunks = *rc::gen::inRange<int64_t>(1, 9);
    if (*rc::gen::arbitrary<bool>()) {
      plan.products[product_name(graph::DType::bfloat16, 8, 64, 16, true)] = "library";
    }
    plan.overlap.accumulate = *rc::gen::arbitrary<bool>();
    plan.overlap.activations = *rc::gen::arbitrary<bool>();
    plan.overlap.step = *rc::gen::arbitrary<bool>();
    plan.overlap.receives = *rc::gen::arbitrary<bool>();
    plan.overlap.slices = *rc::gen::arbitrary<int64_t>();
    if (*rc::gen::arbitrary<bool>()) plan.overlap.sliced = {"sums"};
    if (*rc::gen::arbitrary<bool>()) plan.overlap.whole = {"blocks.0.attn.qkv"};
    if (*rc::gen::arbitrary<bool>()) plan.overlap.bulk = {"sums"};
    if (*rc::gen::arbitrary<bool>()) {
      plan.pipeline = {.axis = "pipe", .starts = {"head"}, .dtype = graph::DType::bfloat16};
      plan.pipeline.transfer = *rc::gen::inRange(0, 3);
    }
    if (*rc::gen::arbitrary<bool>()) plan.overlap.deferred = {"head.weight"};
    plan.overlap.deferred_limit = *rc::gen::arbitrary<int64_t>();
    plan.overlap.experts = *rc::gen::arbitrary<bool>();
    // Names are UTF-8; other bytes are refused.
    for (auto& c : plan.graph_hash) c = static_cast<char>(c & 0x7f);
    RC_ASSERT(parse(print(plan)) == plan);
    RC_ASSERT(hash(parse(print(plan))) == hash(plan));
  }));
}

TEST_CASE("a plan file without units is read, and its text and hash are unchanged") {
  const auto text = print(fitting_plan(linear_graph()));
  CHECK(text.find("units") == std::string::npos);
  for (const char* later : {"keep_in", "prefetch", "offload", "\"overlap\": {", "budget_bytes",
                            "host_bytes", "communicators", "reduce", "copy_axes", "averages"}) {
    CHECK(text.find(later) == std::string::npos);
  }
  CHECK(parse(text) == fitting_plan(linear_graph()));
}

TEST_CASE("another plan has another hash") {
  auto plan = example_plan();
  const auto before = hash(plan);
  CHECK(before.size() == 32);
  plan.placements["head.weight"][0] = mesh::Placement::shard(0);
  CHECK(hash(plan) != before);
}

TEST_CASE("an error in a plan file names the path in the file") {
  const auto text = test::read_text("tests/plan/example.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    auto changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  CHECK_THROWS_WITH(parse(with("\"size\": 2", "\"size\": 0"), "p.json"),
                    "[plan] p.json: mesh.axes[0].size is at least 1, but got 0");
  CHECK_THROWS_WITH(parse(with("\"microbatches\"", "\"microbatch\"")),
                    Catch::Contains("no key \"microbatch\", did you mean \"microbatches\"?"));
  CHECK_THROWS_WITH(parse(with("\"S1,R\"", "\"S1,Q\"")),
                    Catch::Contains("placements[\"head.weight\"]") && Catch::Contains("S1,Q"));
  CHECK_THROWS_WITH(parse(with("plan/1", "plan/2")),
                    Catch::Contains("format is \"perigee.plan/1\", but got \"perigee.plan/2\""));
  CHECK_THROWS_WITH(parse(with("\"overlap\": false", "\"overlap\": 0")),
                    Catch::Contains("communication.overlap is true or false, but got 0"));
  CHECK_THROWS_WITH(parse(with("\"bucket_bytes\": 1048576,", "")),
                    "[plan] plan: communication.bucket_bytes is missing");
  CHECK_THROWS_WITH(parse("{"), Catch::Contains("[plan] plan: the file is JSON"));
  CHECK_THROWS_WITH(
      parse(R"({"format": "perigee.plan/1", "mesh": {"a": 1, "b": {"a": 1}, "a": 2}})"),
      Catch::Contains("[plan] plan: an object has the key \"a\" twice"));
  CHECK_THROWS_AS(parse(text.substr(0, text.size() / 2)), Error);
  CHECK_THROWS_AS(parse("[]"), Error);
}

TEST_CASE("a plan file nested deeper than any plan is refused") {
  const std::string list = std::string(300, '[') + std::string(300, ']');
  CHECK_THROWS_WITH(plan::parse("{\"format\": " + list + "}", "p.json"),
                    Catch::Contains("p.json: lists and objects are nested at most 200 deep"));
}

TEST_CASE("a plan that fits its graph is accepted") {
  const auto g = linear_graph();
  auto plan = fitting_plan(g);
  plan.placements["x"] = mesh::parse_placements("S0");
  plan.placements["head.weight"] = mesh::parse_placements("R");
  plan.placements["head/mm.0"] = mesh::parse_placements("P");
  CHECK_NOTHROW(verify(plan, g));
}

TEST_CASE("a plan that does not fit its graph is refused") {
  const auto g = linear_graph();
  const auto refused = [&](auto change) {
    auto plan = fitting_plan(g);
    change(plan);
    try {
      verify(plan, g);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK_THAT(refused([](Plan& p) { p.placements["head.weigth"] = mesh::parse_placements("R"); }),
             Catch::Contains("\"head.weigth\", did you mean \"head.weight\"?"));
  CHECK_THAT(refused([](Plan& p) { p.placements["x"] = mesh::parse_placements("S2"); }),
             Catch::Contains("x has 2 dims, but is placed as S2 on axis data"));
  CHECK_THAT(refused([](Plan& p) { p.placements["x"] = mesh::parse_placements("P"); }),
             Catch::Contains("an input is replicated or sharded"));
  CHECK_THAT(refused([](Plan& p) { p.placements["x"] = mesh::parse_placements("R,R"); }),
             Catch::Contains("each of 1 mesh axes, but got \"R,R\""));
  CHECK_THAT(refused([](Plan& p) { p.batch_axes = "dta"; }),
             Catch::Contains("did you mean \"data\"?"));
  CHECK_THAT(
      refused([](Plan& p) { p.recompute.regions = {{"haed"}}; }),
      Catch::Contains("recompute names scopes") && Catch::Contains("did you mean \"head\"?"));
  CHECK_THAT(refused([](Plan& p) {
               p.recompute.regions = {{"head"}, {"head"}};
             }),
             Catch::Contains("recompute names a scope once"));
  CHECK_THAT(refused([](Plan& p) { p.recompute.keep = {"aten::nm"}; }),
             Catch::Contains("did you mean \"aten::mm\"?"));
  CHECK_THAT(refused([](Plan& p) {
               p.recompute.regions = {{"head"}};
               p.recompute.keep_in = {{"haed", {}}};
             }),
             Catch::Contains("names in keep_in the first scope of a region, but got \"haed\", did "
                             "you mean \"head\"?"));
  CHECK_THAT(refused([](Plan& p) {
               p.recompute.regions = {{"head"}};
               p.recompute.keep_in = {{"head", {"aten::nm"}}};
             }),
             Catch::Contains("did you mean \"aten::mm\"?"));
  CHECK_THAT(refused([](Plan& p) {
               p.recompute.regions = {{"head"}};
               p.recompute.only = {"aten::mm"};
               p.recompute.keep_in = {{"head", {"aten::mm"}}};
             }),
             Catch::Contains("ops to recompute or ops to keep, but got both"));
  CHECK_THAT(refused([](Plan& p) { p.microbatches = 0; }), Catch::Contains("but got 0"));
  CHECK_THAT(refused([](Plan& p) {
               p.placements["tail.weight"] = mesh::parse_placements("R");
               p.graph_hash = "00";
             }),
             Catch::Contains("for the graph 00") && Catch::Contains("names tail.weight"));
}

}  // namespace
}  // namespace perigee::plan
