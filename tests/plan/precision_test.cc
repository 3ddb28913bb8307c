#include "plan/precision.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "plan/plan.h"

namespace perigee::plan {
namespace {

using Catch::Contains;
using graph::DType;

graph::Graph two_ops() {
  graph::Graph g;
  const auto x = g.add_input(graph::Input::Kind::data, "x", {DType::float32, {8, 4}});
  const auto w = g.add_input(graph::Input::Kind::parameter, "head.weight",
                             {DType::float32, {4, 3}});
  g.scopes = {{"", "Net"}, {"head", "Linear"}};
  const auto y = g.add_node("aten::mm", {{"self", x}, {"mat2", w}}, {{DType::float32, {8, 3}}},
                            "head");
  const auto loss = g.add_node("aten::sum", {{"self", y[0]}}, {{DType::float32, {}}});
  g.outputs.push_back({graph::Output::Kind::loss, "loss", loss[0]});
  return g;
}

Precision example() {
  return {.dtype = DType::float16,
          .parameters = Precision::Parameters::masters,
          .gradients = DType::float32,
          .allow = {"aten::sum"},
          .deny = {"aten::mm"},
          .keep_weights = true,
          .skip_nonfinite = true,
          .loss_scale = {.kind = LossScale::Kind::dynamic,
                         .init_scale = 1024,
                         .growth_factor = 1.5,
                         .backoff_factor = 0.25,
                         .growth_interval = 7}};
}

std::string refusal(const Precision& precision) {
  try {
    verify(precision, two_ops());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a plan file has the precision only if it is not the default, and reads back") {
  Plan plan;
  CHECK_THAT(print(plan), !Contains("precision"));
  CHECK(parse(print(plan)).precision == Precision());
  plan.precision = example();
  CHECK(parse(print(plan)) == plan);
  plan.precision = {.dtype = DType::bfloat16, .promote = {"a"}, .scopes = {"head"}};
  CHECK(parse(print(plan)) == plan);
  const auto with = [&](const std::string& from, const std::string& to) {
    auto text = print(plan);
    return text.replace(text.find(from), from.size(), to);
  };
  CHECK_THROWS_WITH(parse(with("\"bfloat16\"", "\"bf16\"")),
                    Contains("precision.dtype is a dtype such as \"bfloat16\", but got \"bf16\""));
  CHECK_THROWS_WITH(parse(with("\"none\"", "\"static\"")),
                    Contains("precision.loss_scale.kind is one of none, fixed, dynamic, given"));
  CHECK_THROWS_WITH(parse(with("\"promote\"", "\"promotes\"")),
                    Contains("no key \"promotes\", did you mean \"promote\"?"));
}

TEST_CASE("an invalid precision is refused") {
  CHECK(refusal({}) == "");
  CHECK(refusal(example()) == "");
  CHECK(refusal({.dtype = DType::float32}) ==
        "[plan] precision.dtype is float16 or bfloat16, but got float32");
  CHECK_THAT(refusal({.allow = {"aten::mm"}}), Contains("precision.dtype is needed"));
  CHECK(
      refusal({.dtype = DType::bfloat16, .deny = {"aten::bmm"}}) ==
      "[plan] precision.deny names ops or scopes of the graph, but got \"aten::bmm\", did you mean "
      "\"aten::mm\"?");
  CHECK_THAT(refusal({.dtype = DType::bfloat16, .allow = {"aten::mm"}, .deny = {"aten::mm"}}),
             Contains("precision.deny repeats \"aten::mm\""));
  CHECK_THAT(refusal({.dtype = DType::bfloat16, .scopes = {"haed"}}),
             Contains("did you mean \"head\"?"));
  CHECK_THAT(refusal({.dtype = DType::bfloat16, .gradients = DType::float32}),
             Contains("parameters that are not as captured"));
  CHECK_THAT(refusal({.dtype = DType::float16, .parameters = Precision::Parameters::low}),
             Contains("without a float32 master are bfloat16"));
  auto precision = example();
  precision.loss_scale.growth_factor = 1;
  CHECK_THAT(refusal(precision), Contains("growth_factor is above 1, but got 1"));
  precision = example();
  precision.loss_scale.backoff_factor = 1;
  CHECK_THAT(refusal(precision), Contains("backoff_factor is between 0 and 1"));
  precision = example();
  precision.loss_scale.init_scale = 0;
  CHECK_THAT(refusal(precision), Contains("init_scale is above 0"));
  precision = example();
  precision.loss_scale.growth_interval = 0;
  CHECK_THAT(refusal(precision), Contains("growth_interval is at least 1"));
  precision = example();
  precision.loss_scale.min_scale = 2 * precision.loss_scale.init_scale;
  CHECK_THAT(refusal(precision), Contains("min_scale is from 0 to init_scale"));
  precision = example();
  precision.loss_scale.hysteresis = 0;
  CHECK_THAT(refusal(precision), Contains("hysteresis is at least 1, but got 0"));
}

TEST_CASE("the fields of each kind of loss scale are printed and read back") {
  Plan plan;
  plan.mesh.axes = {{"data", 1}};
  plan.precision = example();
  const auto usual = print(plan);
  CHECK_THAT(usual, !Contains("min_scale") && !Contains("hysteresis"));
  plan.precision.loss_scale.min_scale = 2;
  plan.precision.loss_scale.hysteresis = 3;
  CHECK_THAT(print(plan), Contains("\"min_scale\": 2") && Contains("\"hysteresis\": 3"));
  CHECK(parse(print(plan)) == plan);
  plan.precision.loss_scale = {.kind = LossScale::Kind::given};
  CHECK(parse(print(plan)) == plan);
}

}  // namespace perigee::plan
