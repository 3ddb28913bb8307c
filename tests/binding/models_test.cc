// Shipped models in Lua against the built-in ones and against eager autograd.
#include "capture/models/models.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "base/error.h"
#include "exec/reference/reference.h"
#include "tests/binding/support.h"

namespace perigee::test {
namespace {

// Checks that both models have the same graph and initial values.
void check_same(const std::string& name, const std::string& keys, const std::string& options) {
  INFO(name << " " << options);
  const auto job = job::Job::parse(fmt::format("[model]\nkind = '{}'\ndtype = 'float64'\n{}\n"
                                               "[data]\nsynthetic = true\nsequence = 6\n",
                                               name, keys),
                                   "test.toml");
  const auto built = make_model(job.model, job.data.sequence);
  const LuaFile file("runtime/models/" + name + ".lua");
  const auto lua = binding::load_lua(file.settings(options));
  const auto batch = random_batch(built.batch, 3);
  REQUIRE(random_batch(lua.batch, 3).size() == batch.size());
  const auto expected = capture(*built.model.module, batch, built.model.forward);
  const auto got = capture(*lua.model.module, batch, lua.model.forward);
  CHECK(graph::difference(got.graph, expected.graph) == "");
  CHECK(graph::structural_hash(got.graph) == graph::structural_hash(expected.graph));
  CHECK(graph::structural_hash(
            capture_evaluation(*lua.model.module, batch, lua.model.forward).graph) ==
        graph::structural_hash(
            capture_evaluation(*built.model.module, batch, built.model.forward).graph));
  const auto first = exec::evaluate(got.init, {}, {.seed = 3});
  for (const auto& [tensor, value] : exec::evaluate(expected.init, {}, {.seed = 3})) {
    INFO(tensor);
    CHECK(first.at(tensor).equal(value));
  }
}

}  // namespace

TEST_CASE("the gpt in Lua has the graph and initial values of the built-in gpt") {
  check_same("gpt", "layers = 2\nwidth = 8\nheads = 2\nvocab = 11",
             R"({"layers": 2, "width": 8, "heads": 2})");
  check_same("gpt",
             "layers = 1\nwidth = 8\nheads = 4\nvocab = 13\ntied = false\nbias = false\n"
             "dropout = 0.1\nhidden = 12",
             R"({"layers": 1, "width": 8, "heads": 4, "vocab": 13, "tied": false, "bias": false,
                 "dropout": 0.1, "hidden": 12})");
}

TEST_CASE("the resnet in Lua has the graph and initial values of the built-in resnet") {
  check_same("resnet", "depth = 18\nwidth = 2\nclasses = 3\nimage = 8",
             R"({"depth": 18, "width": 2, "classes": 3, "image": 8})");
  check_same("resnet", "depth = 50\nwidth = 2\nclasses = 3\nimage = 64",
             R"({"depth": 50, "width": 2, "classes": 3, "image": 64})");
}

TEST_CASE("the llama of torchtitan's ops takes norms and angles in float32 under bfloat16") {
  const LuaFile file("runtime/models/torchtitan_llama.lua");
  const auto lua = binding::load_lua(
      file.settings(R"({"layers": 1, "width": 8, "heads": 2, "kv_heads": 1, "hidden": 12,
                        "vocab": 11})",
                    "bfloat16"));
  const auto graph =
      capture(*lua.model.module, random_batch(lua.batch, 2), lua.model.forward).graph;
  std::map<std::string, graph::DType> types;
  for (const auto& node : graph.nodes) {
    if (node.outputs[0].defined()) types[node.op] = graph.type(node.outputs[0]).dtype;
    if (node.op.starts_with("aten::arange")) CHECK(types.at(node.op) == graph::DType::float32);
  }
  for (const std::string op : {"aten::rsqrt", "aten::cos", "aten::sin"}) {
    INFO(op);
    CHECK(types.at(op) == graph::DType::float32);
  }
  CHECK(types.at("aten::silu") == graph::DType::bfloat16);
}

TEST_CASE("a changed script changes the graph's hash") {
  const LuaFile file("runtime/models/gpt.lua");
  const auto hash = [&](const std::string& options) {
    const auto lua = binding::load_lua(file.settings(options));
    return graph::structural_hash(
        capture(*lua.model.module, random_batch(lua.batch, 2), lua.model.forward).graph);
  };
  const std::string small = R"({"layers": 1, "width": 8, "heads": 2)";
  CHECK(hash(small + "}") == hash(small + "}"));
  CHECK(hash(small + "}") != hash(small + R"(, "eps": 1e-6})"));
}

TEST_CASE(
    "the encoder-decoder's output depends on all source tokens and on earlier target tokens") {
  const LuaFile file("runtime/models/transformer.lua");
  const auto lua = binding::load_lua(
      file.settings(R"({"layers": 1, "width": 8, "heads": 2, "hidden": 12, "vocab": 11})"));
  auto batch = random_batch(lua.batch, 2);
  const auto captured = capture(*lua.model.module, batch, lua.model.forward);
  std::set<std::string> scopes;
  for (const auto& node : captured.graph.nodes) scopes.insert(node.scope);
  CHECK(scopes.contains("encoder.blocks.0.attn"));
  CHECK(scopes.contains("decoder.blocks.0.cross.query"));
  const auto run = [&] {
    auto inputs = exec::evaluate(captured.init, {}, {.seed = 3});
    inputs.insert(batch.begin(), batch.end());
    return exec::evaluate(captured.graph, inputs);
  };
  const auto before = run().at("logits");
  // A later target token changes nothing before it; any source token changes all.
  batch["target"] = batch["target"].clone();
  batch["target"].select(1, 4).add_(1).remainder_(11);
  const auto after = run().at("logits");
  CHECK(after.slice(1, 0, 4).equal(before.slice(1, 0, 4)));
  CHECK(!after.slice(1, 4).equal(before.slice(1, 4)));
  batch["source"] = batch["source"].clone();
  batch["source"].select(1, 5).add_(1).remainder_(11);
  CHECK((run().at("logits") - after).abs().amax(at::IntArrayRef({0, 2})).min().item<double>() > 0);
}

}  // namespace perigee::test
