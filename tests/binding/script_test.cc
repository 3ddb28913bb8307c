// A model's script: its table, options, batch and modules, and the lifetime of its objects.
#include <torch/nn/module.h>

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "exec/reference/reference.h"
#include "lua/api.h"
#include "lua/state.h"
#include "tests/binding/support.h"

namespace perigee::test {
namespace {

using Catch::Matchers::Contains;

const std::string head =
    "local nn, torch = require 'perigee.nn', require 'perigee.torch'\n"
    "local Net = nn.Module 'Net'\n";  // line 3 follows

}  // namespace

TEST_CASE("a script's table is checked") {
  CHECK_THAT(error_of("return 3"),
             Contains("returns a table with `model`, but this returns number"));
  CHECK_THAT(error_of("return {}"), Contains("returns a table with `model`, but got none"));
  CHECK_THAT(error_of("return { modle = print }"),
             Contains("but got \"modle\", did you mean \"model\"?"));
  CHECK_THAT(error_of("return { model = 3 }"), Contains("`model` is a function, but got a number"));
  CHECK_THAT(error_of("return { model = function() return 3 end }"),
             Contains("`model` returns a module, but it returned number"));
  CHECK_THAT(error_of("error 'mine'"), Contains("mine"));
  CHECK_THAT(error_of("local a = = 1"), Contains(".lua:1:"));
  CHECK_THAT(error_of(script_of("return 3")), Contains("`forward` returns a table of tensors"));
  CHECK_THAT(error_of(script_of("return { a = 3 }")), Contains("but got a number under a"));
  for (const std::string field :
       {"shape = { -1 }", "shape = { 0 }", "classes = -3", "shift = -1"}) {
    INFO(field);
    CHECK_THAT(error_of(head + "function Net:init() self.fc = nn.Linear(3, 3) end\n" +
                        "return { model = function() return Net() end, batch = { x = { " + field +
                        " } }, forward = function(net, b) return { y = net.fc(b.x) } end }"),
               Contains("batch.x holds whole numbers of at least"));
  }
}

TEST_CASE("options have defaults, and unknown ones are errors") {
  const std::string script = head +
                             "return { options = { width = 4, name = 'a' }, model = function(o) "
                             "error(o.name .. o.width) end }";
  CHECK_THAT(error_of(script), Contains("a4"));
  CHECK_THAT(error_of(script, R"({"width": 5})"), Contains("a5"));
  CHECK_THAT(error_of(script, R"({"widht": 5})"),
             Contains("has no option \"widht\", did you mean \"width\"?"));
  CHECK_THAT(error_of(script, R"({"width": "5"})"),
             Contains("model.options.width of") && Contains("is a number, but got \"5\""));
}

TEST_CASE("modules keep tensors and modules under the given names") {
  const LuaFile file(head + R"(
function Net:init()
  self.first = nn.Linear(3, 4)
  self.blocks = nn.ModuleList { nn.Linear(4, 4), nn.Linear(4, 4) }
  self.scale = nn.Parameter(torch.ones { 4 }, false)
  self.seen = nn.Buffer(torch.zeros {})
  self.last = nn.Linear(4, 4, { bias = false })
  self.last.weight = self.first.weight:detach()[0] and nn.Parameter(torch.zeros { 4, 4 })
  self.tied = nn.Linear(4, 4)
  self.tied.weight = self.blocks:get(0).weight
  self.copy = nn.Parameter(self.last.weight:clone(), false)
  self.tied.bias:requires_grad_(false)
end
function Net:forward(batch)
  local x = self.first(batch.x) * self.scale
  for _, block in self.blocks:each() do x = block(x) end
  if self.training then self.seen:add_(1) end
  return { loss = self.tied(self.last(x)):sum() }
end
return { model = function() return Net() end })");
  const auto lua = binding::load_lua(file.settings());
  std::vector<std::string> names;
  for (const auto& item : lua.model.module->named_parameters()) names.push_back(item.key());
  CHECK(names == std::vector<std::string>{"scale", "copy", "first.weight", "first.bias",
                                          "blocks.0.weight", "blocks.0.bias", "blocks.1.weight",
                                          "blocks.1.bias", "last.weight", "tied.weight",
                                          "tied.bias"});
  const Batch batch{{"x", torch::ones({2, 3}, torch::kDouble)}};
  const auto captured = capture(*lua.model.module, batch, lua.model.forward);
  CHECK(captured.tied.at("tied.weight") == "blocks.0.weight");
  CHECK(captured.graph.find_output(graph::Output::Kind::gradient, "last.weight"));
  CHECK(!captured.graph.find_output(graph::Output::Kind::gradient, "scale"));
  CHECK(captured.graph.find_output(graph::Output::Kind::gradient, "first.bias"));
  CHECK(!captured.graph.find_output(graph::Output::Kind::gradient, "tied.bias"));
  CHECK(captured.graph.find_output(graph::Output::Kind::buffer, "seen"));
  const auto evaluation = capture_evaluation(*lua.model.module, batch, lua.model.forward);
  CHECK(!evaluation.graph.find_output(graph::Output::Kind::buffer, "seen"));
}

TEST_CASE("the last value of a module's field holds") {
  const LuaFile file(head + R"(
function Net:init()
  self.scale = 1
  self.scale = nn.Parameter(torch.full({ 3 }, 0.5))
  self.mask = nn.Buffer(torch.zeros { 3 })
  self.other = nn.Buffer(torch.ones { 3 })
  self.mask = nn.Buffer(torch.ones { 3 })
  self.kept = nn.Parameter(torch.zeros { 3 })
  self.kept = nn.Buffer(torch.ones { 3 })
  self.factor = nn.Buffer(torch.zeros { 3 })
  self.factor = 4
  self.fc = nn.Linear(3, 3)
  self.fc.bias = nil
  self.gone = nn.Linear(3, 3)
  self.gone = nil
  self.layer = nn.Parameter(torch.ones { 3 })
  self.layer = nn.Linear(3, 3, { bias = false })
  self.late = nn.Linear(3, 3)
  self.late = nn.Parameter(torch.ones { 3 })
end
function Net:forward(batch)
  torch.check(self.fc.bias == nil and self.gone == nil, "removed fields are nil")
  return { y = batch.x * self.scale * self.mask * self.kept * self.late * self.factor }
end
return { model = function() return Net() end })");
  const auto lua = binding::load_lua(file.settings());
  const auto names = [](const auto& named) {
    std::vector<std::string> names;
    for (const auto& item : named) names.push_back(item.key());
    return names;
  };
  CHECK(names(lua.model.module->named_parameters()) ==
        std::vector<std::string>{"scale", "late", "fc.weight", "layer.weight"});
  CHECK(names(lua.model.module->named_buffers()) ==
        std::vector<std::string>{"mask", "other", "kept"});
  CHECK(names(lua.model.module->named_children()) == std::vector<std::string>{"fc", "layer"});
  const auto x = torch::ones({2, 3}, torch::kDouble);
  const auto captured = capture_evaluation(*lua.model.module, {{"x", x}}, lua.model.forward);
  auto inputs = exec::evaluate(captured.init, {}, {.seed = 1});
  inputs["x"] = x;
  CHECK(exec::evaluate(captured.graph, inputs).at("y").equal(2 * x));
}

TEST_CASE("mistakes with modules are errors at the script's line") {
  const auto in_init = [](const std::string& line) {
    return error_of(head + "function Net:init()\n" + line +
                    "\nend\nreturn { model = function() return Net() end }");
  };
  CHECK_THAT(
      in_init("self.w = torch.ones { 2 }"),
      Contains(".lua:4: [model] a module keeps a tensor as nn.Parameter(x) or nn.Buffer(x)"));
  CHECK_THAT(in_init("self.list = { nn.Linear(2, 2) }"),
             Contains(":4: [model] a list of modules is "
                      "nn.ModuleList"));
  CHECK_THAT(in_init("self.l = nn.Linear(2)"),
             Contains(":4: [model] nn.Linear: outputs is a whole number from 1 on, but got nil"));
  CHECK_THAT(
      in_init("self.l = nn.Linear(2, 2, { bais = false })"),
      Contains(":4: [model] nn.Linear has the options bias, but got bais, did you mean \"bias\"?"));
  CHECK_THAT(in_init("self.l = nn.Liner(2, 2)"),
             Contains(":4: perigee.nn has no field \"Liner\", did you mean \"Linear\"?"));
  CHECK_THAT(in_init("self.l = nn.Parameter(3)"),
             Contains(":4: [model] nn.Parameter takes a tensor"));
  CHECK_THAT(in_init("self.l = nn.Parameter(torch.tensor { 1, 2 })"), Contains("floating type"));
  CHECK_THAT(in_init("self.a = nn.Linear(2, 2)\nself.b = nn.Parameter(self.a.weight, false)"),
             Contains(":5: [model] nn.Parameter(x, false) must get a tensor of its own, but got a "
                      "trained parameter: write x:requires_grad_(false)"));
  CHECK_THAT(in_init("self.a = nn.Parameter(torch.ones { 2 }, false)\n"
                     "self.b = nn.Parameter(self.a)"),
             Contains(":5: [model] nn.Parameter(x, true) must get a tensor of its own, but got a "
                      "frozen parameter: write x:requires_grad_(true)"));
  CHECK_THAT(in_init("self[1] = 2"), Contains(":4: [model] a module's fields have names"));
  for (const std::string name : {"a.b", ""}) {
    for (const std::string what : {"nn.Parameter(torch.ones { 2 })", "nn.Linear(2, 2)"}) {
      const auto error = in_init("self['" + name + "'] = " + what);
      CHECK_THAT(error, Contains(":4: [model] a name in a module must have no dots"));
      CHECK(error.find('\n') == error.npos);
    }
  }
  CHECK_THAT(in_init("Net.forward(3)"), Contains(":4: "));
  CHECK_THAT(error_of(head + "local l = nn.Linear(2, 2)\nreturn {}"),
             Contains(".lua:3: [model] modules are made in the function `model`"));
  CHECK_THAT(error_of(head + "local t = torch.ones { 2 }\nreturn {}"),
             Contains(".lua:3: [model] tensors are made in the functions `model` and `forward`"));
  CHECK_THAT(error_of(script_of("net.other = nn.Linear(2, 2)\nreturn { y = x }")),
             Contains(":6: [model] modules are made in the function `model`"));
}

TEST_CASE("a tensor cannot be used after the pass that created it") {
  const LuaFile file(
      "local nn, torch = require 'perigee.nn', require 'perigee.torch'\n"
      "local Net, kept = nn.Module 'Net', nil\n"
      "function Net:init() self.w = nn.Parameter(torch.ones { 3 }) end\n"
      "function Net:forward(batch)\n"
      "  local y = batch.x * self.w\n"
      "  if kept then y = y + kept end\n"
      "  kept = y\n"
      "  return { y = y }\n"
      "end\n"
      "return { model = function() return Net() end }");
  const auto lua = binding::load_lua(file.settings());
  const Batch batch{{"x", torch::ones({2, 3}, torch::kDouble)}};
  const auto run = [&] { capture_evaluation(*lua.model.module, batch, lua.model.forward); };
  CHECK_NOTHROW(run());
  CHECK_THROWS_WITH(run(), Contains(".lua:6: [model] torch.add") || Contains("earlier pass"));
}

TEST_CASE("a script can be captured after a failed capture") {
  const LuaFile file(
      script_of("if batch.bad then x = x:matmul(x) end\nreturn { y = x:matmul(w) }"));
  const auto lua = binding::load_lua(file.settings());
  const auto x = torch::ones({2, 3}, torch::kDouble);
  CHECK_THROWS(capture_evaluation(*lua.model.module, {{"x", x}, {"bad", x}}, lua.model.forward));
  CHECK_NOTHROW(capture_evaluation(*lua.model.module, {{"x", x}}, lua.model.forward));
}

TEST_CASE("pcall catches an op's error") {
  CHECK(error_of(script_of("local good = pcall(function() return x:matmul(x) end)\n"
                           "return { y = good and x or x:matmul(w) }")) == "");
}

TEST_CASE("ops have the scope that the script marks") {
  const LuaFile file(
      script_of("local y = nn.scope('mine', function() return x:matmul(w) end)\n"
                "return { y = y }"));
  const auto lua = binding::load_lua(file.settings());
  const auto captured = capture_evaluation(
      *lua.model.module, {{"x", torch::ones({2, 3}, torch::kDouble)}}, lua.model.forward);
  CHECK(captured.graph.nodes.front().scope == "mine");
}

TEST_CASE("a module can be the marked scope, also without parameters") {
  const LuaFile file(R"(local nn = require "perigee.nn"
local Core = nn.Module "Core"
function Core:init() end
function Core:forward(x) return nn.scope(self, function() return x * 2 end) end
local Net = nn.Module "Net"
function Net:init() self.core = Core(); self.fc = nn.Linear(3, 3) end
function Net:forward(x) return self.fc(self.core(x)) end
return { model = function() return Net() end, batch = { x = { shape = { 3 } } },
         forward = function(net, batch) return { y = net(batch.x) } end })");
  const auto lua = binding::load_lua(file.settings());
  const auto captured = capture_evaluation(
      *lua.model.module, {{"x", torch::ones({2, 3}, torch::kDouble)}}, lua.model.forward);
  CHECK(captured.graph.nodes.front().op == "aten::mul.Scalar");
  CHECK(captured.graph.nodes.front().scope == "core");
}

TEST_CASE("initial values have the model's dtype") {
  const LuaFile file(script_of("return { y = x }"));
  const auto lua = binding::load_lua(file.settings("{}", "bfloat16"));
  CHECK(lua.model.module->named_parameters()["w"].scalar_type() == torch::kBFloat16);
}

TEST_CASE("the documentation of perigee.nn lists exactly its functions") {
  const LuaFile file(
      "local nn, torch = require 'perigee.nn', require 'perigee.torch'\n"
      "return { model = function(o)\n"
      "  for _, name in ipairs(o.names) do local field = nn[name] end\n"
      "  for _, name in ipairs(o.torch) do local field = torch[name] end\n"
      "  error 'all are there'\n"
      "end }");
  nlohmann::json options;
  for (const auto& module : lua::api()) {
    if (module.name != "perigee.nn" && module.name != "perigee.torch") continue;
    CHECK(module.elsewhere);
    auto& names = options[module.name == "perigee.nn" ? "names" : "torch"];
    for (const auto& function : module.functions) names.push_back(function.name);
  }
  CHECK_THROWS_WITH(binding::load_lua(file.settings(options.dump())), Contains("all are there"));
  std::ifstream source("runtime/perigee/nn.lua");
  const std::string text(std::istreambuf_iterator<char>(source), {});
  size_t layers = 0;
  for (size_t at = 0; (at = text.find("\nnn.", at)) != std::string::npos; ++at) {
    const auto name = text.substr(at + 4, text.find(' ', at) - at - 4);
    INFO(name);
    ++layers;
    CHECK(std::find(options["names"].begin(), options["names"].end(), name) !=
          options["names"].end());
  }
  CHECK(layers >= 15);
}

TEST_CASE("perigee.torch is available to models only") {
  lua::State state(lua::Options{.runtime_folder = "runtime"});
  CHECK_THROWS_WITH(state.run_text("require 'perigee.nn'", "s.lua"),
                    Contains("perigee.torch is for the script of a model"));
}

}  // namespace perigee::test
