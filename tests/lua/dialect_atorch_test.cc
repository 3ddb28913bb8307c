// ATorch's names (runtime/perigee/atorch.lua).
#include "lua/strategy.h"
#include "tests/lua/support_dialect.h"

using namespace perigee;
using namespace perigee::test;
using nlohmann::json;

TEST_CASE("ATorch's auto_accelerate searches, saves and loads a strategy") {
  const Folder folder;
  const std::string head = "local atorch = require 'perigee.atorch'\n";
  const auto missing = run(folder,
                           head +
                               "local ok, result, best, why = atorch.auto_accelerate { model = "
                               "'a.toml', load_strategy = 'no.json' }\n"
                               "assert(not ok and result == nil and best == nil)\nerror(why)",
                           "gpt");
  CHECK_THAT(missing.error, Catch::Contains("s.lua:4: [atorch] load_strategy: there is no file"));
  // With the graph, the search runs at once; its result can be saved and loaded.
  const auto found = run(folder,
                         head +
                             "return function(job, graph)\n"
                             "  local ok, result, best = atorch.auto_accelerate {\n"
                             "    model = graph, included = { { 'half', 'bf16' } },\n"
                             "    save_strategy_to_file = 'found.json' }\n"
                             "  assert(ok and result.args.use_optim_backward == false)\n"
                             "  assert(result.search.gap == 0.25 and not result.search.stopped)\n"
                             "  assert(best.plan.precision.dtype == 'bfloat16')\n"
                             "  return best\nend",
                         "gpt");
  CHECK(found.error == "");
  CHECK(found.plan["precision"]["dtype"] == "bfloat16");
  const auto loaded = run(folder,
                          head +
                              "local ok, result, best = atorch.auto_accelerate { model = "
                              "'a.toml', load_strategy = 'found.json' }\nreturn best",
                          "gpt");
  CHECK(loaded.error == "");
  CHECK(loaded.plan["precision"] == found.plan["precision"]);
  CHECK(loaded.strategy.job == "a.toml");
  const auto beside = run(folder,
                          head +
                              "local ok, result, best = atorch.auto_accelerate { model = 'a.toml', "
                              "load_strategy = 'found.plan.json' }\nreturn best",
                          "gpt");
  CHECK(beside.error == "");
  CHECK(beside.plan["precision"] == found.plan["precision"]);
  CHECK(beside.plan["mesh"] == found.plan["mesh"]);
  CHECK_THAT(
      run(folder, head + "local a = atorch.auto_accelerate { load_strategy = {} }", "gpt").error,
      Catch::Contains("s.lua:2: [atorch] auto_accelerate needs model"));
  const auto job = run_job(
      "[atorch]\nload_strategy = [[\"half\", \"bf16\"], [\"checkpoint\", [\"blocks.*\"]]]\n");
  CHECK(job.error == "");
  CHECK(job.plan["precision"]["dtype"] == "bfloat16");
  CHECK_THAT(run_job("[atorch]\nload_strategy = [\"halff\"]\n").error,
             Catch::Contains("there is no method \"halff\", did you mean \"half\"?"));
}

TEST_CASE("ATorch's searches try combinations of its groups") {
  const Folder folder;
  const auto found = [&](const std::string& options) {
    return run(folder,
               "local atorch = require 'perigee.atorch'\nreturn function(job, graph)\n"
               "  local ok, _, best, why = atorch.auto_accelerate { model = graph, " +
                   options + " }\n  if not ok then error(why, 0) end\n  return best\nend",
               "gpt");
  };
  const auto all = found("sg_algo = 'bo', time_limit = 9");
  CHECK(all.error == "");
  const auto& asked = all.plan["search"]["trials"];
  CHECK(asked["algorithm"] == "bo");
  CHECK(asked["time_limit"] == 9);
  // The variables: precision, zero, axes, module_replace, checkpoint.
  REQUIRE(asked["variables"].size() == 5);
  CHECK(asked["variables"][1].size() == 4);
  CHECK(all.plan["precision"]["dtype"] == "bfloat16");  // the fastest trial's
  const auto some = found(
      "sg_algo = 'combination', excluded = { 'fsdp', 'zero1', 'amp_native' }, included = { "
      "'module_replace' }");
  CHECK(some.error == "");
  const auto& fewer = some.plan["search"]["trials"]["variables"];
  REQUIRE(fewer.size() == 4);
  CHECK(fewer[0].size() == 1);
  CHECK(fewer[1] == json::parse(R"([{"zero": 0}, {"zero": 2}])"));
  const auto timed = found("time_limit = 60");
  CHECK(timed.plan["search"]["time_limit"] == 60);
  CHECK(!timed.plan["search"].contains("trials"));
}

TEST_CASE("ATorch's fp8 leaves layers alone whose sizes are no multiples of 16") {
  const Folder folder;
  const auto fp8 = [&](const std::string& config, int64_t other) {
    graph::Graph graph;
    graph.scopes = {{"", "Net"}, {"first", "Linear"}, {"second", "Linear"}};
    for (const auto& [name, inputs] :
         {std::pair("first", int64_t{32}), std::pair("second", other)}) {
      const auto value = graph.add_value({graph::DType::float32, {16, inputs}});
      graph.inputs.push_back({.kind = graph::Input::Kind::parameter,
                              .name = std::string(name) + ".weight",
                              .value = value});
    }
    lua::StrategyScript script(
        folder.write("s.lua",
                     "return (select(3, require('perigee.atorch').auto_accelerate { model = "
                     "'a.toml', load_strategy = { { 'fp8', " +
                         config + " } } }))"),
        options());
    for (const auto& use : script.resolve({}, graph).methods) {
      if (use.method->name() == "fp8") return use.config.fields.value("match", json("all"));
    }
    return json("none");
  };
  CHECK(fp8("{ emulate = true }", 48) == json("all"));
  CHECK(fp8("{ emulate = true }", 24) == json{"first"});
  CHECK(fp8("{ emulate = true, exclude = { 'second' } }", 48) == json{"first"});
  CHECK(fp8("{ emulate = true, exclude = { 'first' } }", 48) == json{"second"});
  CHECK_THROWS_WITH(fp8("{ emulate = true, include = { 'second' } }", 24),
                    Catch::Contains("leave no linear layer"));
}

TEST_CASE("ATorch's register_replace_pair takes graphs, or a class and its replacement") {
  const Folder folder;
  const auto items = [&](const std::string& dtypes, const std::string& pair) {
    const auto outcome = run(
        folder,
        "local atorch = require('perigee.atorch')\natorch.register_replace_pair('mine', " + dtypes +
            ", " + pair +
            ")\nreturn (select(3, atorch.auto_accelerate { model = 'a.toml', load_strategy = { { "
            "'module_replace', { 'mine' } } } }))",
        "gpt");
    for (const auto& use : outcome.strategy.methods) {
      if (use.method->name() == "module_replace") return json(use.config.items).dump();
    }
    return outcome.error;
  };
  CHECK(items("{ 'torch.float16', 'bf16' }", "{ 'GPT2Attention', 'attention' }") ==
        R"([{"dtypes":["float16","bfloat16"],"name":"attention","within":["GPT2Attention"]}])");
  const std::string shapes =
      "perigee.graph/1\\ninput data %0: float32[1009] = x\\n%1: float32[1009] = aten::";
  const auto graph = [&](const std::string& op) {
    return "'" + shapes + op + "(self=%0)   @ forward\\noutput result %1 = y\\n'";
  };
  // The model has no relu: the errors tell the pattern and where it was looked for.
  const auto pair = "{ " + graph("relu") + ", " + graph("silu") + " }";
  CHECK_THAT(items("nil", "{ 'Mlp', " + pair + " }"),
             Catch::Contains("the pattern of mine must match the graph within blocks.0.mlp, "));
  CHECK_THAT(items("nil", pair), Catch::Contains("the pattern of mine must match the graph, but"));
  CHECK_THAT(items("{ 'int9' }", "{ 'Mlp', 'swiglu' }"), Catch::Contains("supported_dtypes are"));
  for (const auto* wrong : {"{ 'Mlp' }", "'Mlp'", "{ 'Mlp', { 'Mlp', 'swiglu' } }"}) {
    CHECK_THAT(items("nil", wrong), Catch::Contains("or { class, the name of a built-in pair }"));
  }
}

TEST_CASE("ATorch's functions around the model are the script's own functions") {
  const Folder folder;
  const auto with = [&](const std::string& model) {
    return run(folder,
               "local atorch = require 'perigee.atorch'\nreturn function(job, graph)\n"
               "  local ok, _, best = atorch.auto_accelerate { model = " +
                   model +
                   ", loss_func = function(b, o) return o end, load_strategy = {} }\n"
                   "  return best\nend",
               "gpt")
        .error;
  };
  CHECK_THAT(with("graph"), Catch::Contains("s.lua:3: [atorch] loss_func and prepare_input are "
                                            "captured with the model, which is so already"));
  CHECK_THAT(with("'a.toml'"), Catch::Contains("functions around the model are captured with it"));
  const auto set = run(folder,
                       "return { { 'half' }, around = { loss = function(b, o) return o end } }",
                       "gpt")
                       .strategy.set;
  REQUIRE(set.size() == 1);
  CHECK(set[0] == "model.around=\"" + (folder.path / "s.lua").string() + "\"");
  CHECK_THAT(run(folder, "return { around = { los = print } }", "gpt").error,
             Catch::Contains("around is {loss = function, prepare = function}"));
}
