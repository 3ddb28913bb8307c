#include "lua/strategy.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "base/fail.h"
#include "lua/api.h"
#include "methods/placed.h"
#include "tests/lua/support_dialect.h"

using namespace perigee;
using test::Folder;

namespace {

graph::Graph small_graph() {
  graph::Graph g;
  g.scopes = {{"", "Net"}, {"fc", "Linear"}};
  const auto x = g.add_input(graph::Input::Kind::data, "x", {graph::DType::float32, {8, 4}});
  const auto w = g.add_input(graph::Input::Kind::parameter, "fc.weight",
                             {graph::DType::float32, {4, 4}});
  const auto y = g.add_node("aten::mm", {{"self", x}, {"mat2", w}},
                            {{graph::DType::float32, {8, 4}}}, "fc");
  g.outputs.push_back({graph::Output::Kind::result, "y", y[0]});
  return g;
}

plan::Plan plan_of(const std::string& script, methods::PlanRequest request = {.global_batch = 8}) {
  const auto graph = small_graph();
  request.graph = &graph;
  lua::StrategyScript strategy(script);
  return methods::make_plan(strategy.resolve({{"name", "test"}}, graph), request);
}

std::string script_error(const std::string& script) {
  try {
    plan_of(script);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("names, pairs and calls give the same plan") {
  Folder folder;
  const auto a = plan_of(
      folder.write("a.lua",
                   "local m = require 'perigee.methods'\n"
                   "return { m.parallel_mode { { 'data', 2 } }, m.grad_comm { bucket_mb = 1 } }"));
  const auto b = plan_of(folder.write("b.lua",
                                      "return { methods = { { 'parallel_mode', { { 'data', 2 } } "
                                      "}, { 'grad_comm', { bucket_mb = 1 } } } }"));
  CHECK(a == b);
  CHECK(a.mesh.axes == std::vector<mesh::Axis>{{"data", 2}});
  CHECK(a.communication.bucket_bytes == 1 << 20);
}

TEST_CASE("a strategy may be a function of the job and the graph") {
  Folder folder;
  const auto plan = plan_of(
      folder.write("f.lua",
                   "return function(job, graph)\n"
                   "  assert(job.name == 'test' and graph.parameters[1].name == 'fc.weight')\n"
                   "  assert(graph.ops[1].flops == 256 and graph.scopes[2].type == 'Linear')\n"
                   "  return { { 'parallel_mode', { { 'data', #graph.ops * 4 } } } }\n"
                   "end"));
  CHECK(plan.mesh.axes == std::vector<mesh::Axis>{{"data", 4}});
}

TEST_CASE("a script can define a method and require a file beside it") {
  Folder folder;
  folder.write(
      "mine.lua",
      "local m = require 'perigee.methods'\n"
      "return m.define { name = 'mine', fields = { count = { type = 'integer', default = 2 } },\n"
      "  apply = function(plan, config) plan:microbatches(config.count) plan:note('mine did it') "
      "end }");
  const auto plan = plan_of(
      folder.write("s.lua", "local mine = require 'mine'\nreturn { mine { count = 4 }, }"));
  CHECK(plan.microbatches == 4);
  CHECK(plan.decisions[1].by == "mine");
  CHECK(plan.decisions[1].sentence == "mine did it");
}

TEST_CASE("the job that a script names is relative to the script") {
  Folder folder;
  const auto path = folder.write("s.lua", "return { job = 'gpt.toml', methods = {} }");
  CHECK(lua::StrategyScript(path).job() == (folder.path / "gpt.toml").string());
}

TEST_CASE("a method without its options is refused with the remedy") {
  Folder folder;
  const auto script = folder.write("s.lua", "return { require('perigee.methods').fsdp }");
  CHECK_THROWS_WITH(lua::StrategyScript(script),
                    Catch::EndsWith("s.lua's strategy[1] is a function: call it, as in m.fsdp {}"));
}

TEST_CASE("the data axis adjusts only to a given number of ranks") {
  Folder folder;
  const auto script = folder.write(
      "s.lua", "return { { 'parallel_mode', { { 'tensor', 2 }, { 'data', 2 } } } }");
  CHECK(plan_of(script, {.global_batch = 8, .world = 1}).mesh.size() == 4);
  const auto eight = plan_of(script, {.global_batch = 8, .world = 8, .world_given = true});
  CHECK(eight.mesh.axes == std::vector<mesh::Axis>{{"tensor", 2}, {"data", 4}});
  CHECK_THROWS_WITH(
      plan_of(script, {.global_batch = 8, .world = 3, .world_given = true}),
      Catch::EndsWith(
          "s.lua:1: [parallel_mode] axes must multiply to the 3 ranks of this run, but "
          "they multiply to 4 and the other axes multiply to 2: change a size, or run 4 "
          "ranks (--nproc, cluster.ranks)"));
}

TEST_CASE("the strategy or the job sets microbatches, not both") {
  Folder folder;
  const auto script = folder.write("s.lua",
                                   "return { { 'gradient_accumulation', { microbatches = 2 } } }");
  CHECK(plan_of(script, {.global_batch = 8}).microbatches == 2);
  CHECK(plan_of(script, {.global_batch = 8, .micro_batch = 4}).microbatches == 2);
  CHECK_THROWS_WITH(plan_of(script, {.global_batch = 8, .micro_batch = 2}),
                    Catch::Contains("asks for 2 microbatches, but batch.micro = 2 makes 4"));
  CHECK_THROWS_WITH(plan_of(script, {.global_batch = 7}),
                    Catch::Contains("batch.global must divide"));
}

TEST_CASE("a step's samples divide over the microbatches and data ranks of a given plan") {
  const auto graph = small_graph();
  methods::StrategySpec strategy;
  auto& plan = strategy.plan.emplace();
  plan.mesh.axes = {{"data", 2}};
  plan.microbatches = 2;
  const auto made = [&](methods::PlanRequest request) {
    request.graph = &graph;
    return methods::make_plan(strategy, request);
  };
  CHECK(made({.global_batch = 8}) == plan);
  CHECK(made({.global_batch = 9, .round = true}) == plan);
  CHECK_THROWS_WITH(made({.global_batch = 9}),
                    "[plan] batch.global must divide over microbatches x data ranks, but got 9 for "
                    "2 x 2");
  CHECK_THROWS_WITH(made({.global_batch = 10, .micro_batch = 2}),
                    "[plan] batch.global must be a multiple of batch.micro x data ranks, but got "
                    "10 for 2 x 2");
}

TEST_CASE("mistakes in a strategy are errors at the user's line") {
  Folder folder;
  const auto with = [&](std::string_view text) {
    return script_error(folder.write("s.lua", text));
  };
  CHECK_THAT(
      with("local m = require 'perigee.methods'\nreturn { m.grad_comm { buckt_mb = 1 } }"),
      Catch::Contains(
          "s.lua:2: [strategy] grad_comm has no field \"buckt_mb\", did you mean \"bucket_mb\"?"));
  CHECK_THAT(with("local m = require 'perigee.methods'\nreturn { m.fsdpp {} }"),
             Catch::Contains("s.lua:2: perigee.methods has no field \"fsdpp\""));
  CHECK_THAT(with("return { 'paralel_mode' }"), Catch::Contains("did you mean \"parallel_mode\"?"));
  CHECK_THAT(with("return { { 'parallel_mode', { { 'dta', 2 } } } }"),
             Catch::Contains("did you mean \"data\"?"));
  CHECK_THAT(with("return { 'grad_comm', 'grad_comm' }"), Catch::Contains("is listed twice"));
  for (const std::string list :
       {"{ 'fsdp', nil, 'grad_comm' }", "{ methods = { 'fsdp', nil, 'grad_comm' } }"}) {
    CHECK_THAT(with("return " + list),
               Catch::Contains("no holes, but item 2 is nil: leave it out"));
  }
  CHECK_THAT(with("return 3"), Catch::Contains("returns number"));
  CHECK_THAT(with("return function() end"), Catch::Contains("returned nothing"));
  CHECK_THAT(with("local m = require 'perigee.methods'\n"
                  "return { m.define { name = 'a', aply = print } {} }"),
             Catch::Contains("did you mean \"apply\"?"));
  CHECK_THAT(
      with("local m = require 'perigee.methods'\n"
           "local bad = m.define { name = 'a', apply = function(plan) plan:place('nothing', "
           "'data', 'S0') end }\n"
           "return { bad {} }"),
      Catch::Contains(
          "s.lua:2: [method] plan:place needs a match, but \"nothing\" matches no parameter"));
  CHECK_THAT(with("local m = require 'perigee.mesh'\nreturn m.new(1)"),
             Catch::Contains("s.lua:2: [lua] new: argument axes must be of type table, but got "
                             "number"));
  CHECK_THAT(with("local m = require 'perigee.mesh'\nreturn m.new({}, 2, 3)"),
             Catch::Contains("s.lua:2: [lua] new takes at most "));
}

TEST_CASE("an error of a method is at the line that uses it") {
  Folder folder;
  const auto check = [&](const std::string& text, const std::string& wanted,
                         const std::string& area = "[strategy] ") {
    const auto error = script_error(folder.write(
        "s.lua",
        "local m = require 'perigee.methods'\nlocal list = { m.parallel_mode {} }\n" + text));
    INFO(error);
    CHECK(error.starts_with(area + (folder.path / "s.lua:").string() + wanted));
  };
  const std::string bad = "[gradient_accumulation] microbatches must be at least 1";
  // A value that the method's field table refuses is an error of the call.
  check("list[2] =\n  m.gradient_accumulation { microbatches = 0 }\nreturn list", "4: " + bad,
        "[lua] ");
  check("return {\n  m.grad_comm {},\n  m.gradient_accumulation { microbatches = 0 },\n}",
        "5: " + bad, "[lua] ");
  check(
      "return function()\n  list[2] = m.gradient_accumulation { microbatches = 0 }\n"
      "  return list\nend",
      "4: " + bad, "[lua] ");
  // Plain data has the line of its table.
  check("list = nil\nreturn {\n  { 'gradient_accumulation', { microbatches = 0 } },\n}",
        "4: " + bad);
  check(
      "return function()\n  local more = {\n    { 'gradient_accumulation', { microbatches = 0 } } "
      "}\n"
      "  return more\nend",
      "4: " + bad);
  check("\nreturn { 'ddpp' }", "4: [strategy] methods must be known, but got \"ddpp\"");
  // Items of a method are refused where it is called, or else written.
  check("list[2] = m.parallel_mode { { 'data' } }\nreturn list",
        "3: [parallel_mode] an axis is {name, size}, but got [\"data\"]", "[lua] ");
  check("return {\n  { 'parallel_mode', { { 'data' } } },\n}",
        "3: [parallel_mode] an axis is {name, size}, but got [\"data\"]");
  // Other parts of the result have the line at which it begins.
  check("return {\n  m.grad_comm {},\n  events = { stp = print },\n}",
        "3: [strategy] events are step, loss_scale, but got \"stp\", did you mean \"step\"?");
  check("return {\n  methods = {},\n  sets = {},\n}",
        "3: [strategy] a strategy is a list of methods");
  check("return {\n  methods = {},\n  set = { strategy = 'ddp' },\n}",
        "3: [strategy] set changes keys of the job, but not which strategy is read");
  check("return { plan = {} }", "3: [strategy] plan is the result of a strategy's methods");
  // A method in place of a list.
  const std::string alone =
      "[strategy] a strategy is a list of methods, but this is the method fsdp "
      "alone: {m.fsdp ...}";
  check("return m.fsdp {}", "3: " + alone);
  check("return {\n  methods = m.fsdp {},\n}", "4: " + alone);
  check("return function()\n  return m.fsdp {}\nend", "4: " + alone);
  // Two methods that exclude each other: the line of the second.
  check("return {\n  m.zero2 {},\n  m.zero1 {},\n}", "5: [strategy] zero1 and zero2 exclude");
  // An error of the combination: the line of the method without which the plan is valid.
  check(
      "list[2] = m.gradient_accumulation { microbatches = 3 }\nlist[3] = m.grad_comm {}\nreturn "
      "list",
      "3: [plan] batch.global must divide over microbatches");
}

TEST_CASE("an error in a user's method is at its own line, or at the line that uses the method") {
  Folder folder;
  const auto error = [&](const std::string& body) {
    return script_error(folder.write("s.lua",
                                     "local m = require 'perigee.methods'\n"
                                     "local mine = m.define { name = 'mine',\n"
                                     "  apply = function(plan) " +
                                         body + " end }\n\nreturn { mine {} }"));
  };
  const auto file = (folder.path / "s.lua:").string();
  CHECK(error("error 'not so'") == "[lua] " + file + "3: not so");
  CHECK(error("error('not so', 0)") == "[lua] " + file + "5: not so");
  CHECK_THAT(error("plan:place('none', 'data', 'R')"),
             Catch::StartsWith("[lua] " + file + "3: [method] plan:place needs a match"));
}

TEST_CASE("an error found by a plan's check names the line of the method that caused it") {
  Folder folder;
  const auto graph = small_graph();
  const methods::PlanRequest request{.graph = &graph, .global_batch = 8};
  const auto verify = [&](const std::string& text) -> std::string {
    lua::StrategyScript script(folder.write("s.lua", text));
    const auto strategy = script.resolve({{"name", "test"}}, graph);
    const auto plan = methods::make_plan(strategy, request);
    try {
      methods::check_methods(strategy, request, plan, [&](plan::Plan made) {
        made.microbatches = plan.microbatches;
        plan::verify(made, graph);
      });
    } catch (const Error& thrown) {
      return thrown.what();
    }
    return "no error";
  };
  const std::string script =
      "local m = require 'perigee.methods'\n"
      "local place = m.define { name = 'place', fields = { as = 'string' },\n"
      "  apply = function(plan, given) plan:place('fc.weight', 'tensor', given.as) end }\n"
      "return {\n  m.parallel_mode { { 'tensor', 2 } },\n  place { as = 'S5' },\n"
      "  m.grad_comm {},\n}";
  CHECK(verify(script) ==
        "[strategy] " + (folder.path / "s.lua").string() +
            ":6: [plan] fc.weight has 2 dims, but is placed as S5 on axis tensor");
  CHECK(verify("return { { 'parallel_mode', { { 'tensor', 2 } } } }") == "no error");
  // An error that no method caused has no line.
  const auto strategy = methods::from_json({"grad_comm"}, "test");
  const auto plan = methods::make_plan(strategy, request);
  CHECK_THROWS_WITH(
      methods::check_methods(strategy, request, plan, [](auto&&) { fail("plan", "never"); }),
      "[plan] never");
}

TEST_CASE("a script adds a sharding rule to its plans") {
  Folder folder;
  const auto rule = [&](const std::string& arguments) {
    return "local shard = require 'perigee.shard'\n\nshard.rule(" + arguments +
           ")\nreturn { 'parallel_mode' }";
  };
  const auto plan = plan_of(folder.write("s.lua", rule("'my::op', 'b* k+, n k+ -> b* n'")));
  CHECK(plan.rules.at("my::op") == "b* k+, n k+ -> b* n");
  const auto error = [&](const std::string& arguments) {
    return script_error(folder.write("s.lua", rule(arguments)));
  };
  CHECK_THAT(error("'my::op', 'b k, n k -> b n'"),
             Catch::Contains("s.lua:3: [shard] the rule of my::op has k in every result"));
  CHECK_THAT(error("'my::op', 'b k'"),
             Catch::Contains("s.lua:3: [shard] the rule of my::op has \"->\""));
  CHECK_THAT(error("'op', 'b -> b'"),
             Catch::Contains("s.lua:3: [shard] an op is named like my::op, but got \"op\""));
  CHECK_THAT(error("'my::op'"),
             Catch::Contains("s.lua:3: [lua] rule: argument text must be of type string"));
}

TEST_CASE("strategies are saved, loaded and compared") {
  Folder folder;
  const auto path = folder.write(
      "s.lua",
      "local s = require 'perigee.strategy'\n"
      "local mine = { 'parallel_mode', { 'grad_comm', { overlap = false } } }\n"
      "s.save('saved.json', mine)\n"
      "local back = s.load('saved.json')\n"
      "assert(s.compare(mine, back))\n"
      "local same, why = s.compare(mine, { 'parallel_mode' })\n"
      "assert(not same and why:find('/1'))\n"
      "assert(s.compare({ 'fsdp', { 'zero1', {} } }, { { 'fsdp', {} }, { 'zero1' } }))\n"
      "assert(s.compare({ methods = { 'fsdp' } }, { methods = { { 'fsdp' } } }))\n"
      "assert(select(2, s.load('none.json')):find('there is no file'))\n"
      "return back");
  CHECK(plan_of(path).communication.overlap == false);
  CHECK_THAT(
      script_error(folder.write("t.lua", "require('perigee.strategy').save('../x.json', {})")),
      Catch::Contains("below the script's folder"));
  for (const auto* text : {R"({"format": "perigee.strategy/1"})", R"({"format": 3})", "[1]", "{"}) {
    folder.write("broken.json", text);
    CHECK_THAT(
        script_error(folder.write("t.lua", "require('perigee.strategy').load('broken.json')")),
        Catch::Contains("broken.json must hold"));
  }
  std::filesystem::create_directory(std::filesystem::path(path).parent_path() / "taken.json");
  CHECK_THAT(
      script_error(folder.write("t.lua", "require('perigee.strategy').save('taken.json', {})")),
      Catch::Contains("taken.json must be written, but: Is a directory"));
  folder.write("pickle.json", "\x80\x04\x95");
  CHECK_THAT(script_error(folder.write("t.lua", "require('perigee.strategy').load('pickle.json')")),
             Catch::Contains("t.lua:1: [strategy] ") && Catch::Contains("is a pickle"));
}

TEST_CASE("editor types and reference page in runtime/ match the API table") {
  const auto read = [](const char* name) {
    std::ifstream file(std::string("runtime/") + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  CHECK(read("perigee.d.lua") == lua::editor_types());
  CHECK(read("lua.md") == lua::reference_page());
}
