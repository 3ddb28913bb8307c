// Graphs of torch.export, replayed under capture and eagerly.
#include <algorithm>
#include <utility>

#include "tests/capture/exported/support.h"
#include "tests/capture/support.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using nlohmann::json;

namespace perigee::test {
namespace {

json buffer_input(const std::string& value, const std::string& name, bool persistent) {
  json spec;
  spec["buffer"]["arg"]["name"] = value;
  spec["buffer"]["buffer_name"] = name;
  spec["buffer"]["persistent"] = persistent;
  return spec;
}

json constant_input(const std::string& value, const std::string& name) {
  json spec;
  spec["tensor_constant"]["arg"]["name"] = value;
  spec["tensor_constant"]["tensor_constant_name"] = name;
  return spec;
}

// Returns the archive with the call between the layer and its loss, as the value that the
// loss reads.
ArchiveMaker with(const json& between) {
  ArchiveMaker archive;
  archive.nodes().insert(archive.nodes().begin() + 1, between);
  archive.nodes()[2]["inputs"][0]["arg"] = tensor("z");
  return archive;
}

at::Tensor expected_loss(const Model& model, const Batch& batch) {
  const auto weights = model.module->named_parameters();
  const auto h = at::linear(batch.at("x"), weights["layer.weight"], weights["layer.bias"]);
  return at::mse_loss(h, batch.at("y"));
}

}  // namespace

TEST_CASE("an archive has its tensors by name, its modules as scopes, and any number of samples") {
  const auto model = load(ArchiveMaker());
  CHECK(model.inputs == std::vector<std::string>{"x", "y"});
  for (const int64_t count : {1, 3, 8}) {
    const auto batch = samples(count);
    check_parity(*model.module, batch, model.forward);
    CHECK(at::allclose(model.forward(batch).loss, expected_loss(model, batch), 1e-14));
  }
  const auto captured = capture(*model.module, samples(), model.forward);
  REQUIRE(captured.graph.find_input("layer.weight"));
  std::map<std::string, std::string> scope_of;
  for (const auto& node : captured.graph.nodes) {
    if (node.phase == graph::Phase::forward) scope_of[node.op] = node.scope;
  }
  CHECK(scope_of.at("aten::addmm") == "layer");
  CHECK(scope_of.at("aten::mse_loss") == "");
  CHECK(captured.graph.scopes[0].type == "Net");
  CHECK(captured.graph.scopes[1].type == "Linear");
}

TEST_CASE("an exported model refuses a batch of other names, types and sizes") {
  const auto model = load(ArchiveMaker());
  const auto error = [&](const Batch& batch) {
    return error_of([&] { capture(*model.module, batch, model.forward); });
  };
  CHECK_THAT(error({{"x", normal({3, 4})}}), Contains("takes \"y\" (x, y)"));
  CHECK_THAT(error({{"x", normal({3, 4}).to(at::kFloat)}, {"y", normal({3, 2})}}),
             Contains("\"x\" as Double, but the batch has Float"));
  CHECK_THAT(error({{"x", normal({3, 5})}, {"y", normal({3, 2})}}),
             Contains("\"x\" as [-1, 4]") && Contains("[3, 5]"));
  CHECK_THAT(error({{"x", normal({3, 4})}, {"y", normal({2, 2})}}),
             Contains("one number of samples, but \"y\" has 2 and a tensor before it 3"));
  ArchiveMaker fixed;
  fixed.value("x", {2, 4});
  fixed.value("y", {1, 2});
  const auto two = load(fixed);
  CHECK_THAT(error_of([&] { capture(*two.module, samples(4), two.forward); }),
             Contains("for 2 samples alone") && Contains("dynamic_shapes"));
  ArchiveMaker limited;
  limited.program["range_constraints"]["s0"] = {{"min_val", 4}, {"max_val", 8}};
  const auto some = load(limited);
  CHECK_NOTHROW(capture(*some.module, samples(8), some.forward));
  for (const int64_t count : {2, 9}) {
    CHECK_THAT(error_of([&] { capture(*some.module, samples(count), some.forward); }),
               Contains("for 4 to 8 samples"));
  }
}

TEST_CASE("results are a tensor, or those of a tuple or dict by name") {
  ArchiveMaker archive;
  archive.results({{"logits", "h"}, {"loss", "loss"}});
  const auto model = load(archive);
  const auto batch = samples();
  const auto result = model.forward(batch);
  CHECK(result.loss.dim() == 0);
  CHECK(result.results.at("logits").sizes() == at::IntArrayRef{3, 2});
  check_parity(*model.module, batch, model.forward);
  ArchiveMaker none;
  none.results({{"", "h"}});
  const auto inference = load(none);
  CHECK_THAT(error_of([&] { capture(*inference.module, batch, inference.forward); }),
             Contains("the model gives none"));
  CHECK(capture_evaluation(*inference.module, batch, inference.forward).graph.outputs.size() == 1);
}

TEST_CASE("sizes are computed, assertions about them are checked") {
  auto archive = with(call(
      "view.default",
      {{"self", tensor("h")}, {"size", {{"as_sym_ints", {{{"as_name", "s"}}, {{"as_int", 2}}}}}}},
      "z"));
  auto sizes = node("torch.ops.aten.sym_size.int",
                    {{"self", tensor("x")}, {"dim", {{"as_int", 0}}}}, {});
  sizes["outputs"] = {size("s")};
  auto compared = node("_operator.ge", {{"a", size("s")}, {"b", {{"as_int", 2}}}}, {});
  compared["outputs"] = {{{"as_sym_bool", {{"as_name", "large"}}}}};
  const auto asserted = node("torch.ops.aten._assert_scalar.default",
                             {{"self", {{"as_sym_bool", {{"as_name", "large"}}}}},
                              {"assert_msg", {{"as_string", "two samples"}}}},
                             {});
  auto& nodes = archive.nodes();
  nodes.insert(nodes.begin(), {sizes, compared, asserted});
  const auto model = load(archive);
  check_parity(*model.module, samples(2), model.forward);
  CHECK_THAT(error_of([&] { capture(*model.module, samples(1), model.forward); }),
             Contains("not for these: two samples"));
}

TEST_CASE("dropout is drawn as in the export") {
  for (const bool training : {true, false}) {
    const auto model = load(with(call(
        "dropout.default",
        {{"input", tensor("h")}, {"p", {{"as_float", 0.5}}}, {"train", {{"as_bool", training}}}},
        "z")));
    check_parity(*model.module, samples(), model.forward);
    const auto captured = capture(*model.module, samples(), model.forward);
    CHECK(std::ranges::count(captured.graph.nodes, "perigee::dropout", &graph::Node::op) ==
          2 * training);
  }
}

TEST_CASE("a number where an op takes a tensor keeps the other operand's type") {
  for (const std::string op : {"mul.Tensor", "add.Tensor", "div.Tensor", "sub.Tensor"}) {
    INFO(op);
    const auto model = load(
        with(call(op, {{"self", tensor("h")}, {"other", {{"as_float", 2.5}}}}, "z")));
    check_parity(*model.module, samples(), model.forward);
    const auto captured = capture(*model.module, samples(), model.forward);
    const auto scalar = "aten::" + op.substr(0, 4) + "Scalar";
    CHECK(std::ranges::any_of(captured.graph.nodes,
                              [&](const auto& node) { return node.op == scalar; }));
  }
  CHECK_THAT(error_of([] {
               const auto model = load(with(call(
                   "maximum.default", {{"self", tensor("h")}, {"other", {{"as_int", 2}}}}, "z")));
               model.forward(samples());
             }),
             Contains("maximum.default takes a Tensor as \"other\""));
}

TEST_CASE("assertions about a tensor's type and elements are left out") {
  auto archive = with(call("tanh.default", {{"self", tensor("h")}}, "z"));
  auto& nodes = archive.nodes();
  // PyTorch writes these after .to() and torch._assert_async.
  const auto metadata = node("torch.ops.aten._assert_tensor_metadata.default",
                             {{"a", tensor("h")},
                              {"dtype", {{"as_scalar_type", 8}}},
                              {"device", {{"as_device", {{"type", "cpu"}, {"index", nullptr}}}}},
                              {"layout", {{"as_layout", 7}}}},
                             {});
  auto positive = call("gt.Scalar", {{"self", tensor("h")}, {"other", {{"as_int", 0}}}}, "p");
  auto all = call("all.default", {{"self", tensor("p")}}, "q");
  const auto plain = node("torch.ops.aten._assert_async.default", {{"self", tensor("q")}}, {});
  const auto text = node("torch.ops.aten._assert_async.msg",
                         {{"self", tensor("q")}, {"assert_msg", {{"as_string", "positive"}}}}, {});
  nodes.insert(nodes.begin() + 1, {metadata, positive, all, plain, text});
  const auto model = load(archive);
  check_parity(*model.module, samples(), model.forward);
  const auto captured = capture(*model.module, samples(), model.forward);
  CHECK(std::ranges::none_of(captured.graph.nodes, [](const auto& node) {
    return node.op.find("assert") != std::string::npos;
  }));
}

TEST_CASE("torch.no_grad and a disabled torch.autocast are inlined") {
  const auto wrapped = [](const std::string& op, Inputs inputs) {
    auto inner = json{{"inputs", {tensor("t")}},
                      {"outputs", {tensor("u")}},
                      {"nodes", {call("tanh.default", {{"self", tensor("t")}}, "u")}}};
    inputs.emplace_back("", json{{"as_graph", {{"name", "g"}, {"graph", inner}}}});
    inputs.emplace_back("", tensor("h"));
    return node("torch.ops.higher_order." + op, inputs, {"v"});
  };
  const auto archive = [&](const json& wrap) {
    auto archive = with(call("add.Tensor", {{"self", tensor("h")}, {"other", tensor("v")}}, "z"));
    archive.nodes().insert(archive.nodes().begin() + 1, wrap);
    return archive;
  };
  const json off{{"as_bool", false}};
  const auto model = load(archive(wrapped("wrap_with_set_grad_enabled", {{"", off}})));
  const auto batch = samples();
  const auto& weights = model.module->named_parameters();
  const auto loss = [&](bool constant) {
    const auto h = at::linear(batch.at("x"), weights["layer.weight"], weights["layer.bias"]);
    return at::mse_loss(h + (constant ? h.detach() : h).tanh(), batch.at("y"));
  };
  const auto gradient = [&](const at::Tensor& of) {
    return torch::autograd::grad({of}, {weights["layer.weight"]})[0];
  };
  const auto captured = capture(*model.module, batch, model.forward);
  const auto got = evaluate(*model.module, captured, batch).at("gradient:layer.weight");
  CHECK(at::allclose(got, gradient(loss(true)), 1e-12));
  CHECK_FALSE(at::allclose(got, gradient(loss(false)), 1e-3));

  const Inputs cpu{{"", {{"as_string", "cpu"}}}, {"", {{"as_scalar_type", 13}}}};
  auto disabled = cpu;
  disabled.insert(disabled.end(), {{"", off}, {"", off}});
  const auto plain = load(archive(wrapped("wrap_with_autocast", disabled)));
  check_parity(*plain.module, batch, plain.forward);
}

TEST_CASE("buffers change in place or by a new value, tied weights are one parameter") {
  const auto made = [](const std::string& op) {
    auto archive = with(call("add.Tensor", {{"self", tensor("h")}, {"other", tensor("m")}}, "z"));
    archive.value("m", {2});
    archive.weights["mean"] = at::zeros({2}, at::kDouble);
    archive.signature()["input_specs"].push_back(buffer_input("m", "mean", true));
    archive.nodes().push_back(call(op, {{"self", tensor("m")}, {"other", tensor("b")}}, "m2"));
    return archive;
  };
  const auto written = made("add_.Tensor");
  auto returned = made("add.Tensor");
  json change;
  change["buffer_mutation"]["arg"]["name"] = "m2";
  change["buffer_mutation"]["buffer_name"] = "mean";
  returned.signature()["output_specs"].push_back(change);
  for (const auto* archive : {&written, &std::as_const(returned)}) {
    const auto model = load(*archive);
    const auto captured = capture(*model.module, samples(), model.forward);
    const auto got = evaluate(*model.module, captured, samples());
    CHECK(at::equal(got.at("buffer:mean"), model.module->named_parameters()["layer.bias"]));
  }

  ArchiveMaker tied;
  tied.weights["head.weight"] = tied.weights["layer.weight"];
  const auto model = load(tied);
  const auto captured = capture(*model.module, samples(), model.forward);
  CHECK(captured.tied == std::map<std::string, std::string>{{"head.weight", "layer.weight"}});
}

TEST_CASE("indices of a triangle have their shape without their values") {
  for (const int64_t offset : {-2, -1, 0, 2, 5}) {
    check_layer({"triangles", nullptr, {normal({3, 4})}, [&](const std::vector<at::Tensor>& in) {
                   const auto low = at::tril_indices(3, 4, offset, at::kLong);
                   const auto high = at::triu_indices(3, 4, offset, at::kLong);
                   return std::vector<at::Tensor>{in[0].index({low[0], low[1]}).sum(),
                                                  in[0].index({high[0], high[1]}).sum()};
                 }});
  }
}

TEST_CASE("a constant and a buffer that is not saved are the archive's constants") {
  auto archive = with(call("mul.Tensor", {{"self", tensor("h")}, {"other", tensor("c")}}, "z"));
  archive.value("c", {2});
  archive.constants["scale"] = at::arange(2, at::kDouble) + 0.5;
  for (const bool constant : {true, false}) {
    auto& specs = archive.signature()["input_specs"];
    specs.push_back(constant ? constant_input("c", "scale") : buffer_input("c", "scale", false));
    const auto model = load(archive);
    check_parity(*model.module, samples(), model.forward);
    CHECK(model.module->named_buffers().contains("scale") == !constant);
    specs.erase(specs.size() - 1);
  }
}

}  // namespace perigee::test
