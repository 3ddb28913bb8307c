// Methods defined in scripts: their arguments, and the parts of a plan that they set.
#include <cctype>
#include <fstream>

#include "base/error.h"
#include "lua/api.h"
#include "tests/lua/support_script.h"

using namespace perigee;
using namespace perigee::test;

namespace {

// Returns a script with a method whose `apply` has this body, from line 4 on.
std::string with_body(const std::string& body, const std::string& mesh = "{ 'data', 2 }") {
  return "local mine = m.define { name = 'mine',\n"
         "  apply = function(plan, config, request)\n" +
         body + "\nend }\nreturn { m.parallel_mode { " + mesh + " }, mine {} }";
}

plan::Plan plan_with(const std::string& body, const std::string& mesh = "{ 'data', 2 }") {
  return plan_of(Folder(), with_body(body, mesh));
}

// Returns the error of the body's first line without "[lua] FILE:LINE: ", whose line it checks.
std::string error_of(const std::string& body, const std::string& mesh = "{ 'data', 2 }") {
  const Folder folder;
  std::string text = "no error";
  try {
    plan_of(folder, with_body(body, mesh));
  } catch (const Error& error) {
    text = error.what();
  }
  INFO(text);
  const auto place = "[lua] " + (folder.path / "s.lua").string() + ":4: ";
  CHECK(text.starts_with(place));
  return text.substr(std::min(place.size(), text.size()));
}

}  // namespace

TEST_CASE("a defined method receives the graph and the job like a strategy function") {
  const auto plan = plan_of(Folder(), R"(
local seen
local mine = m.define { name = "mine",
  check = function(config, request) assert(request.job.name == "test" and #request.graph.scopes > 0) end,
  apply = function(plan, config, request)
    assert(request.job.optimizer.lr == 0.5 and request.global_batch == 8 and request.micro_batch == 0)
    assert(request.mesh[1][1] == "data" and request.mesh[1][2] == 2)
    assert(#request.graph.ops == #seen.ops and request.graph.parameters[1].name == "embed.weight")
    assert(request.graph == request.graph, "the graph is described once")
    plan:note(request.graph.scopes[2].path)
  end }
return function(job, graph)
  seen = graph
  return { m.parallel_mode { { "data", 2 } }, mine {} }
end
)");
  const plan::Decision note{"mine", "embed"};
  CHECK(std::ranges::find(plan.decisions, note) != plan.decisions.end());
}

TEST_CASE("ops of a graph name the values that they read, in the order of their operands") {
  const auto graph = lua::describe_graph(gpt_graph());
  std::map<std::string, nlohmann::json> ops;
  for (const auto& op : graph["ops"]) ops[op["name"]] = op;
  const auto& product = ops.at("blocks.0.attn.qkv/mm.0");
  CHECK(product["inputs"] ==
        nlohmann::json({"blocks.0.attn.qkv/reshape.0", "blocks.0.attn.qkv/t.0"}));
  CHECK(ops.at("blocks.0.attn.qkv/t.0")["inputs"] == nlohmann::json({"blocks.0.attn.qkv.weight"}));
  CHECK(ops.at("blocks.0.norm1/native_layer_norm.0")["outputs"].size() == 3);
  // Every name that an op reads is a result of an earlier op, a parameter or an input.
  std::set<std::string> known;
  for (const auto* list : {"parameters", "inputs"}) {
    for (const auto& item : graph[list]) known.insert(item["name"]);
  }
  for (const auto& op : graph["ops"]) {
    for (const std::string name : op["inputs"]) CHECK(known.contains(name));
    for (const std::string name : op["outputs"]) known.insert(name);
  }
  CHECK(graph["ops"].size() == gpt_graph().nodes.size());
  std::set<std::string> gradients;
  for (const auto& output : graph["outputs"]) {
    CHECK(known.contains(output["value"]));
    if (output["kind"] == "gradient") gradients.insert(output["name"]);
  }
  CHECK(gradients.size() == graph["parameters"].size());
}

TEST_CASE("a method sets recomputation, offload, overlap, buckets and precision") {
  const auto plan = plan_with(R"(
    assert(plan:recompute { "blocks.*", keep = { "mm" } } == 4)
    plan:recompute { budget_bytes = 1000 }
    plan:offload { "blocks.0", optimizer = true, prefetch = 2 }
    plan:overlap { slices = 2, sliced = { "sums" } }
    plan:communication { bucket_bytes = 4096, reduce_dtype = "bf16" }
    plan:communication { overlap = false }
    plan:precision { dtype = "bfloat16", deny = { "gelu" }, scopes = { "Block" } }
    plan:microbatches(2)
    assert(plan:get().communication.bucket_bytes == 4096))");
  CHECK(plan.recompute.regions == std::vector<std::vector<std::string>>{
                                      {"blocks.0"}, {"blocks.1"}, {"blocks.2"}, {"blocks.3"}});
  CHECK(plan.recompute.keep == std::vector<std::string>{"aten::mm"});
  CHECK(plan.recompute.budget_bytes == 1000);
  CHECK(plan.offload ==
        plan::Offload{.activations = {"blocks.0"}, .optimizer = true, .prefetch = 2});
  CHECK(plan.overlap.slices == 2);
  CHECK(plan.overlap.sliced == std::vector<std::string>{"sums"});
  CHECK(plan.communication.bucket_bytes == 4096);
  CHECK(plan.communication.reduce_dtype == graph::DType::bfloat16);
  CHECK_FALSE(plan.communication.overlap);
  CHECK(plan.precision.dtype == graph::DType::bfloat16);
  CHECK(plan.precision.deny == std::vector<std::string>{"aten::gelu"});
  CHECK(plan.precision.scopes.size() == 4);
  CHECK(plan.microbatches == 2);
}

TEST_CASE("a table within a part keeps the values of fields that it leaves out") {
  const auto plan = plan_with(R"(
    plan:precision { dtype = "fp16", loss_scale = { kind = "dynamic", init_scale = 1024 } }
    plan:precision { loss_scale = { growth_interval = 10 } }
    plan:precision { loss_scale = {} })");
  CHECK(plan.precision.dtype == graph::DType::float16);
  CHECK(plan.precision.loss_scale == plan::LossScale{.kind = plan::LossScale::Kind::dynamic,
                                                     .init_scale = 1024,
                                                     .growth_interval = 10});
}

TEST_CASE("a method cuts stages, and places the activations that cross them") {
  const auto plan = plan_with(
      R"(
    assert(plan:pipeline { axis = "pipe", starts = { "blocks.2" }, schedule = "gpipe" } == 2)
    assert(plan:place_sent(1, "tensor", "S1") > 0)
    plan:pin({ "blocks.0.mlp/gelu.0" }, "tensor", "S2")
    plan:place("blocks.*.mlp.up.*", "tensor", "S0")
    plan:microbatches(2))",
      "{ 'tensor', 2 }, { 'pipe', 2 }");
  CHECK(plan.pipeline.axis == "pipe");
  CHECK(plan.pipeline.schedule == "gpipe");
  CHECK(plan.pipeline.starts == std::vector<std::string>{"blocks.2"});
  const mesh::Placements pinned{mesh::Placement::shard(2), mesh::Placement::open()};
  CHECK(plan.placements.at("blocks.0.mlp/gelu.0") == pinned);
  CHECK(plan.placements.at("blocks.1.mlp.up.bias")[0] == mesh::Placement::shard(0));
}

TEST_CASE("a method makes units, and axes with one rank make no stages") {
  const auto plan = plan_with(R"(
    local units = {}
    for i = 0, 3 do units[i + 1] = { name = "block " .. i, parameters = { "blocks." .. i .. ".**" }, axes = "data" } end
    assert(plan:units(units) == 4)
    assert(plan:units { { name = "head", parameters = { "head.weight" }, axes = { "data" }, level = 1 } } == 5)
    assert(plan:pipeline { axis = "pipe" } == 1))",
                              "{ 'data', 2 }, { 'pipe', 1 }");
  REQUIRE(plan.units.size() == 5);
  CHECK(plan.units[3].parameters.size() == 12);
  CHECK(plan.units[3].level == 3);
  CHECK(plan.units[4].level == 1);
  CHECK(plan.units[4].axes == mesh::AxisSet("data"));
  CHECK_FALSE(plan.pipeline.cuts());
}

TEST_CASE("a method uses built-in, shipped and the script's own methods") {
  const Folder folder;
  const std::string text = R"(
local inner = m.define { name = "inner", fields = { count = "integer" },
  apply = function(plan, config) plan:microbatches(config.count) end }
local mine = m.define { name = "mine", apply = function(plan)
  plan:use("fsdp", { reshard_after_forward = false })
  plan:use("checkpoint", { "blocks.*" })
  plan:use("inner", { count = 2 })
end }
return { m.parallel_mode { { "data", 2 } }, mine {} }
)";
  const auto used = plan_of(folder, text);
  const auto listed = plan_of(folder,
                              "return { m.parallel_mode { { 'data', 2 } }, m.fsdp { "
                              "reshard_after_forward = false }, m.checkpoint { 'blocks.*' }, "
                              "m.gradient_accumulation { microbatches = 2 } }");
  CHECK(used.units == listed.units);
  CHECK(used.recompute == listed.recompute);
  CHECK(used.communication == listed.communication);
  CHECK(used.microbatches == 2);
  CHECK_THROWS_WITH(plan_of(folder, R"(
m.define { name = "inner", apply = function(plan) plan:use("inner") end }
local mine = m.define { name = "mine", apply = function(plan) plan:use("inner") end }
return { mine {} }
)"),
                    Catch::Contains("[method] a method may not use itself, but inner does"));
  const auto copies = plan_with("plan:use('local_sgd', { every = 4 })");
  REQUIRE(copies.averages.size() == 1);
  CHECK(copies.averages[0].every == 4);
}

TEST_CASE("a wrong call of a plan's function is an error at its line") {
  using Catch::Matchers::StartsWith;
  const auto check = [](const std::string& body, const std::string& wanted,
                        const std::string& mesh = "{ 'data', 2 }") {
    CAPTURE(body);
    CHECK_THAT(error_of(body, mesh), StartsWith(wanted));
  };
  check("plan:recompute { 'blocs.*' }",
        "[method] plan:recompute: a scope or module type must be one of the model's, but got "
        "\"blocs.*\"");
  check("plan:recompute { 'blocks.*', kep = {} }",
        "[method] plan:recompute: recompute has no field \"kep\", did you mean \"keep\"?");
  check("plan:recompute { 'blocks.*', keep = { 'm' } }",
        "[method] plan:recompute: keep must name ops of the forward pass, but got \"m\"");
  check("plan:recompute { 'blocks.*', only = { 'mm' }, keep = { 'mm' } }",
        "[method] plan:recompute: ");
  check("plan:recompute { regions = { { 'blocks.0' }, { 'blocks.0.mlp' } } }",
        "[method] plan:recompute: ");
  check("plan:recompute { regions = { 'blocks.0' } }",
        "[method] plan:recompute: recompute.regions[1] must be a list of strings");
  check("plan:recompute { 'blocks.*', kept_microbatches = 1 }",
        "[method] plan:recompute: kept_microbatches requires a pipeline");
  check("plan:recompute('blocks.*')",
        "[method] plan:recompute: argument recompute must be of type perigee.Recompute, but got "
        "string");
  check("plan:offload { prefetch = -1 }",
        "[method] plan:offload: prefetch must be at least 0, but got -1");
  check("plan:overlap { sliced = { 'sum' } }",
        "[method] plan:overlap: sliced must list any of gathers, sums, gradient_sums, but got "
        "\"sum\", did you mean \"sums\"?");
  check("plan:communication { 'data' }",
        "[method] plan:communication: communication takes named fields, but got a list");
  check("plan:communication { bucket_bytes = 0.5 }",
        "[method] plan:communication: communication.bucket_bytes must be an integer, but got 0.5");
  check("plan:precision { dtype = 'int8' }", "[method] plan:precision: dtype must be one of");
  check("plan:precision { dtype = 'fp16', loss_scale = { kind = 'fix' } }",
        "[method] plan:precision: kind must be one of none, fixed, dynamic, given, but got");
  check("plan:pipeline { starts = {} }",
        "[method] plan:pipeline: axis must name the axis of the stages");
  check("plan:pipeline { axis = 'pip' }",
        "[method] plan:pipeline: a pipeline runs over an axis of the mesh", "{ 'pipe', 2 }");
  check("plan:pipeline { axis = 'pipe', starts = { 'blocks.1', 'blocks.2' } }",
        "[method] plan:pipeline: a pipeline of 2 stages", "{ 'pipe', 2 }");
  check("plan:units { { name = 'a', parameters = { 'blocks.9.**' }, axes = 'data' } }",
        "[method] plan:units: parameters must match parameters of the model");
  check("plan:units { { name = 'a', parameters = { 'head.weight' }, axes = 'data', level = 4 } }",
        "[method] plan:units: level must be from 1 to 3, but got 4");
  check("plan:units { { name = 'a', parameters = { 'head.weight' } } }",
        "[method] plan:units: unit needs the field axes");
  check(
      "plan:units { { name = 'a', parameters = { 'head.*' }, axes = 'data' }, "
      "{ name = 'b', parameters = { 'head.*' }, axes = 'data' } }",
      "[method] plan:units: a parameter ");
  check("plan:units { name = 'a' }", "[method] plan:units: units are a list of");
  check("plan:place('head.weight', 'dta', 'S0')",
        "[method] plan:place takes an axis of the mesh (data), but got \"dta\", did you mean");
  check("plan:place('heads', 'data', 'S0')", "[method] plan:place needs a match, but \"heads\"");
  check("plan:place('head.weight', 'data')",
        "[method] plan:place: argument placement must be of type string, but got nothing");
  check("plan:pin('head.weight', 'data', 'S0')",
        "[method] plan:pin takes names of values that ops compute, but got the input");
  check("plan:pin('head/mm.9', 'data', 'S0')",
        "[method] plan:pin takes names of values that ops compute, but got \"head/mm.9\"");
  check("plan:place_sent(1, 'data', 'S0')", "[method] plan:place_sent takes a part");
  check("plan:microbatches(0)", "[method] plan:microbatches takes at least 1, but got 0");
  check("plan:batch_axes('dta')", "[method] plan:batch_axes takes axes of the mesh");
  check("plan.note('a sentence')",
        "[method] functions of a plan are called with a colon, plan:note(...)");
  check("plan:use('fsdpp')", "[strategy] methods must be known, but got \"fsdpp\"");
  check("plan:use('fsdp', { axis = 'pipe' })", "[fsdp] axis must be data");
  const std::string once = "[method] plan:use takes methods that the strategy neither lists nor";
  check("plan:use('mine')", once);
  check("plan:use('zero1') plan:use('zero1')", once);
  check("plan:use('zero1') plan:use('zero2')", "[strategy] zero1 and zero2 exclude each other");
  check("plan:use('parallel_mode')", "[method] plan:use takes methods that keep the mesh");
}

TEST_CASE("a plan and a request cannot be used after the method's function") {
  using Catch::Matchers::Contains;
  const auto error = [](const std::string& late) -> std::string {
    try {
      plan_of(Folder(),
              "local kept, asked\n"
              "local first = m.define { name = 'first', apply = function(plan, _, request)\n"
              "  kept, asked = plan, request end }\n"
              "local second = m.define { name = 'second', apply = function() " +
                  late +
                  " end }\n"
                  "return { m.parallel_mode { { 'data', 2 } }, first {}, second {} }");
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  CHECK_THAT(error("kept:microbatches(2)"),
             Contains("s.lua:5: [method] a plan is edited inside apply, but apply has returned"));
  CHECK_THAT(
      error("return asked.graph"),
      Contains("s.lua:5: [method] request.graph can be read while a method's function runs"));
  CHECK(error("assert(asked.world == 1)") == "no error");
}

TEST_CASE("types and reference have every function of a plan and every field of its parts") {
  const auto types = lua::editor_types(), page = lua::reference_page();
  for (const auto& function : lua::plan_functions()) {
    CAPTURE(function.name);
    CHECK(types.find("function Plan:" + function.name + "(") != std::string::npos);
    CHECK(page.find("### plan:" + function.name + "(") != std::string::npos);
  }
  for (const auto* line :
       {"---@class perigee.Recompute", "---@param units perigee.Unit[] a list",
        "---@field regions? any[]", "---@field inputs string[]", "---@field graph perigee.Graph",
        "---@class perigee.OpTime", "---@field parameters string[]", "---@field job? perigee.Job",
        "---@field lr_schedule perigee.JobLrSchedule",
        "---@field group? perigee.JobOptimizerGroup[]",
        "---@alias perigee.StrategyFunction fun(job: perigee.Job, graph: perigee.Graph)"}) {
    CAPTURE(line);
    CHECK(types.find(line) != std::string::npos);
  }
  // Every key of a resolved job is a field of its section, with the type of its value.
  std::ifstream resolved("tests/job/resolved.toml");
  std::string section = "perigee.Job";
  int keys = 0;
  for (std::string line; std::getline(resolved, line);) {
    if (line.starts_with('[')) {
      section = "perigee.Job";
      for (size_t i = 1; line[i] != ']'; ++i) {
        if (line[i] == '_') continue;
        const bool first = line[i - 1] == '[' || line[i - 1] == '_';
        section += first ? static_cast<char>(std::toupper(line[i])) : line[i];
      }
    } else if (!line.empty()) {
      const auto name = line.substr(0, line.find(' ')), value = line.substr(name.size() + 3);
      const auto type = value == "true" || value == "false"         ? "boolean"
                        : value.starts_with('"')                    ? "string"
                        : value.starts_with("[\"") || value == "[]" ? "string[]"
                        : value.starts_with('[')                    ? "number[]"
                        : value.find_first_of(".e") != value.npos   ? "number"
                                                                    : "integer";
      CAPTURE(section, name, type);
      const auto begin = types.find("---@class " + section + "\n");
      REQUIRE(begin != types.npos);
      const auto fields = types.substr(begin, types.find("\n\n", begin) - begin);
      const auto given = "---@field " + name, rest = std::string(" ") + type + " ";
      CHECK((fields.find(given + rest) != fields.npos ||
             fields.find(given + "?" + rest) != fields.npos));
      ++keys;
    }
  }
  CHECK(keys > 80);
  CHECK(page.find("- `level` (integer?): sharded are 1") != std::string::npos);
}
