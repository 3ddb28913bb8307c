// Enabled torch.autocast in exports: ops compute in the types that PyTorch gives them.
#include <ATen/autocast_mode.h>

#include "tests/capture/exported/support.h"
#include "tests/capture/support.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using nlohmann::json;

namespace perigee::test {
namespace {

constexpr int kFloat = 7, kBFloat16 = 13;  // of the schema

json region(const std::string& device, bool enabled, const std::vector<json>& nodes,
            const std::vector<std::string>& outputs) {
  json inner{{"inputs", {tensor("x"), tensor("w"), tensor("b"), tensor("y")}},
             {"outputs", json::array()},
             {"nodes", nodes}};
  for (const auto& name : outputs) inner["outputs"].push_back(tensor(name));
  Inputs inputs{{"", {{"as_string", device}}},
                {"", {{"as_scalar_type", kBFloat16}}},
                {"", {{"as_bool", enabled}}},
                {"", {{"as_bool", true}}},
                {"", {{"as_graph", {{"name", "g"}, {"graph", inner}}}}}};
  for (const auto* name : {"x", "w", "b", "y"}) inputs.emplace_back("", tensor(name));
  return node("torch.ops.higher_order.wrap_with_autocast", inputs, outputs);
}

// A float32 model that computes "loss" in the region's nodes from x [s, 4], y [s, 2] and a layer.
Model load_region(const json& region) {
  ArchiveMaker archive;
  archive.value("x", {-1, 4}, kFloat);
  archive.value("y", {-1, 2}, kFloat);
  archive.value("w", {2, 4}, kFloat);
  archive.value("b", {2}, kFloat);
  for (auto& [name, weight] : archive.weights) {
    weight = weight.detach().to(at::kFloat).requires_grad_();
  }
  archive.nodes() = {region};
  return load(archive);
}

Batch float_samples() {
  return {{"x", normal({3, 4}).to(at::kFloat)}, {"y", normal({3, 2}).to(at::kFloat)}};
}

const json kLinear = call("linear.default",
                          {{"input", tensor("x")}, {"weight", tensor("w")}, {"bias", tensor("b")}},
                          "a");

const json kLabels = call("argmax.default", {{"self", tensor("y")}, {"dim", {{"as_int", 1}}}}, "k");

json mean_of(const std::string& value) {
  return call("mse_loss.default", {{"self", tensor(value)}, {"target", tensor("y")}}, "loss");
}

// Returns the type of the op's first result in the captured forward pass.
std::string type_in(const Captured& captured, const std::string& op) {
  for (const auto& node : captured.graph.nodes) {
    if (node.phase == graph::Phase::forward && node.op == op) {
      return std::string(graph::name_of(captured.graph.type(node.outputs[0]).dtype));
    }
  }
  return "none";
}

}  // namespace

TEST_CASE("ops of an enabled torch.autocast compute as LibTorch's autocast on a CPU") {
  const json last{{"as_int", -1}}, two{{"as_int", 2}};
  const json softmax = call("softmax.int", {{"self", tensor("a")}, {"dim", last}}, "z");
  const std::map<std::string, std::vector<json>> bodies = {
      {"products round, losses do not", {kLinear, mean_of("a")}},
      {"an op without a list keeps the type", {kLinear, softmax, mean_of("z")}},
      {"a concatenation takes the widest type",
       {kLinear,
        call("cat.default", {{"tensors", tensors({"a", "y"})}, {"dim", {{"as_int", 0}}}}, "c"),
        call("slice.Tensor",
             {{"self", tensor("c")}, {"start", {{"as_int", 0}}}, {"end", {{"as_int", 3}}}}, "z"),
        mean_of("z")}},
      {"an op that computes in float32",
       {kLinear,
        call("prod.dim_int",
             {{"self", tensor("a")}, {"dim", last}, {"keepdim", {{"as_bool", true}}}}, "p"),
        call("add.Tensor", {{"self", tensor("a")}, {"other", tensor("p")}}, "z"), mean_of("z")}},
      {"a loss of labels computes in float32",
       {kLinear, kLabels,
        call("nll_loss_nd.default", {{"self", tensor("a")}, {"target", tensor("k")}}, "loss")}},
      {"a weight that is used twice",
       {kLinear,
        call("linear.default",
             {{"input", tensor("x")}, {"weight", tensor("w")}, {"bias", tensor("b")}}, "c"),
        call("mul.Tensor", {{"self", tensor("a")}, {"other", tensor("c")}}, "z"), mean_of("z")}},
      {"a region within that is disabled",
       {kLinear,
        region(
            "cpu", false,
            {call("linear.default",
                  {{"input", tensor("x")}, {"weight", tensor("w")}, {"bias", tensor("b")}}, "c")},
            {"c"}),
        call("mul.Tensor", {{"self", tensor("a")}, {"other", tensor("c")}}, "z"), mean_of("z")}},
  };
  for (const auto& [name, body] : bodies) {
    INFO(name);
    const auto model = load_region(region("cpu", true, body, {"loss"}));
    check_parity(*model.module, float_samples(), model.forward, 1e-6);
    const auto captured = capture(*model.module, float_samples(), model.forward);
    CHECK(type_in(captured, "aten::addmm") == "bfloat16");
    const auto plain = load_region(region("cpu", false, body, {"loss"}));
    const double rounding = (model.forward(float_samples()).loss -
                             plain.forward(float_samples()).loss)
                                .abs()
                                .item<double>();
    CHECK(rounding > 1e-5);
    CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  }
}

TEST_CASE("an export for CUDA follows the lists of that device") {
  const json last{{"as_int", -1}};
  const std::vector<json> body = {
      kLinear,
      call("softmax.int", {{"self", tensor("a")}, {"dim", last}}, "s"),
      call("pow.Tensor_Scalar", {{"self", tensor("a")}, {"exponent", {{"as_int", 3}}}}, "p"),
      call("sum.dim_IntList", {{"self", tensor("a")}, {"dim", {{"as_ints", {1}}}}}, "t"),
      call("norm.ScalarOpt_dim",
           {{"self", tensor("a")}, {"p", {{"as_int", 2}}}, {"dim", {{"as_ints", {1}}}}}, "n"),
      call("mul.Tensor", {{"self", tensor("t")}, {"other", tensor("n")}}, "m"),
      call("unsqueeze.default", {{"self", tensor("m")}, {"dim", last}}, "u"),
      call("add.Tensor", {{"self", tensor("s")}, {"other", tensor("p")}}, "v"),
      call("add.Tensor", {{"self", tensor("u")}, {"other", tensor("v")}}, "z"),
      mean_of("z")};
  for (const std::string device : {"cuda", "cpu"}) {
    INFO(device);
    const auto model = load_region(region(device, true, body, {"loss"}));
    const auto captured = capture(*model.module, float_samples(), model.forward);
    const std::string wide = device == "cuda" ? "float32" : "bfloat16";
    CHECK(type_in(captured, "aten::addmm") == "bfloat16");
    for (const auto* op : {"aten::_softmax", "aten::pow.Tensor_Scalar", "aten::sum.dim_IntList"}) {
      INFO(op);
      CHECK(type_in(captured, op) == wide);
    }
  }
}

TEST_CASE("losses of labels compute in float32 within torch.autocast of either device") {
  const Inputs inputs = {{"self", tensor("a")}, {"target", tensor("k")}};
  for (const std::string device : {"cuda", "cpu"}) {
    for (const auto& [op, kept] : {std::pair("cross_entropy_loss", "perigee::cross_entropy"),
                                   std::pair("nll_loss_nd", "perigee::nll")}) {
      INFO(device << " " << op);
      const auto loss = call(std::string(op) + ".default", inputs, "loss");
      const auto model = load_region(region(device, true, {kLinear, kLabels, loss}, {"loss"}));
      const auto captured = capture(*model.module, float_samples(), model.forward);
      CHECK(type_in(captured, "aten::addmm") == "bfloat16");
      CHECK(type_in(captured, kept) == "float32");
    }
  }
}

TEST_CASE("torch.autocast for a device without known lists is refused by name") {
  CHECK_THAT(error_of([] {
               load_region(region("xpu", true, {kLinear, mean_of("a")}, {"loss"}));
             }),
             Contains("\"cpu\" or \"cuda\"") && Contains("\"xpu\""));
}

TEST_CASE("a replay leaves the caller's autocast as it was, and does not follow it") {
  const auto model = load_region(region("cpu", true, {kLinear, mean_of("a")}, {"loss"}));
  const auto batch = float_samples();
  const auto expected = model.forward(batch).loss;
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto loss = model.forward(batch).loss;
  const bool enabled = at::autocast::is_autocast_enabled(at::kCPU);
  const auto type = at::autocast::get_autocast_dtype(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  CHECK(enabled);
  CHECK(type == at::kHalf);
  CHECK(at::equal(loss, expected));
}

}  // namespace perigee::test
