// Built-in methods written in Lua with the public API: their plans are the built-in methods' plans,
// byte for byte, decisions included.
#include <regex>

#include "tests/lua/support_script.h"

using namespace perigee;
using namespace perigee::test;

namespace {

// Returns the plan as text. Methods named my_NAME are written as NAME.
std::string text_of(const Folder& folder, const std::string& script) {
  return std::regex_replace(plan::print(plan_of(folder, script)), std::regex("\"my_"), "\"");
}

const std::string kCheckpoint = R"lua(
local mine = m.define {
  name = "my_checkpoint",
  doc = "Recomputes the matched scopes.",
  fields = { scopes = { type = "list of strings", required = true }, keep = "list of strings" },
  apply = function(plan, config)
    local given = { keep = config.keep }
    for i, scope in ipairs(config.scopes) do given[i] = scope end
    local count = plan:recompute(given)
    local recompute = plan:get().recompute
    local text = string.format("%d scopes (%s to %s) are recomputed in the backward pass", count,
      recompute.regions[1][1], recompute.regions[count][1])
    if config.keep then text = text .. ", except the ops " .. table.concat(recompute.keep, ", ") end
    plan:note(text)
  end,
}
)lua";

const std::string kZero1 = R"lua(
local mine = m.define {
  name = "my_zero1",
  doc = "Optimizer state in parts over `data`: units are buckets of gradients, filled in the order of the backward pass.",
  apply = function(plan, _, request)
    local graph, limit = request.graph, plan:get().communication.bucket_bytes
    local first = {}
    for i, op in ipairs(graph.ops) do
      for _, name in ipairs(op.inputs) do first[name] = first[name] or i end
    end
    local list = {}
    for i, parameter in ipairs(graph.parameters) do list[i] = { parameter, first[parameter.name], i } end
    table.sort(list, function(a, b)
      if a[2] ~= b[2] then return a[2] > b[2] end
      return a[3] > b[3]
    end)
    local units, size, most = {}, math.huge, 0
    for _, item in ipairs(list) do
      if size >= limit then
        units[#units + 1] = { name = "size." .. #units, axes = "data", level = 1, matrices = {}, others = {} }
        size = 0
      end
      local unit = units[#units]
      table.insert(#item[1].shape > 1 and unit.matrices or unit.others, item[1].name)
      size = size + item[1].bytes
      most = math.max(most, size)
    end
    for _, unit in ipairs(units) do
      unit.parameters, unit.matrices = unit.matrices, nil
      for _, name in ipairs(unit.others) do table.insert(unit.parameters, name) end
      unit.others = nil
    end
    plan:units(units)
    local power = most < 999.5 and 0 or most < 999.5 * 1024 and 1 or 2
    plan:note(string.format("optimizer state is kept in parts: %d units of up to %.3g %s over data (%d ranks); " ..
      "gradients are reduce-scattered once a step, and the new weights gathered once a step",
      #units, most / 2 ^ (10 * power), ({ [0] = "B", "KiB", "MiB" })[power], request.mesh[1][2]))
  end,
}
)lua";

const std::string kTensorParallel = R"lua(
local ways = { ["attn.qkv"] = "column", ["mlp.up"] = "column", ["attn.out"] = "row", ["mlp.down"] = "row" }
local products = { ["aten::mm"] = true, ["aten::bmm"] = true, ["aten::addmm"] = true }

local function way_of(name)
  if name == "embed.weight" then return "vocab" end
  if name == "head.weight" then return "column" end
  local layer = name:match "^blocks%.%d+%.(.+)%.weight$"
  return layer and ways[layer]
end

local mine = m.define {
  name = "my_tensor_parallel",
  doc = "Splits the layers of the model over `tensor`.",
  apply = function(plan, _, request)
    local graph = request.graph
    local users, computed, has = {}, {}, {}
    for _, op in ipairs(graph.ops) do
      for _, name in ipairs(op.outputs) do computed[name] = true end
      for _, name in ipairs(op.inputs) do
        users[name] = users[name] or {}
        table.insert(users[name], op)
      end
    end
    for _, parameter in ipairs(graph.parameters) do has[parameter.name] = true end
    local function pin(name)
      if computed[name] then plan:pin(name, "tensor", "R") end
    end
    local split = { column = {}, row = {}, vocab = {} }
    for _, parameter in ipairs(graph.parameters) do
      local name = parameter.name
      local way = way_of(name)
      if way then
        table.insert(split[way], name)
        plan:place(name, "tensor", way == "row" and "S1" or "S0")
        local bias = name:gsub("weight$", "bias")
        if way == "column" and has[bias] then plan:place(bias, "tensor", "S0") end
        for _, op in ipairs(users[name]) do
          if op.op == "aten::embedding" then pin(op.name) end
          for _, product in ipairs(op.op == "aten::t" and not op.backward and users[op.name] or {}) do
            local count = #product.inputs
            if products[product.op] and product.inputs[count] == op.name then
              local sum, after = product.name, users[product.name] or {}
              if #after == 1 and after[1].op == "perigee::reshape" then sum = after[1].name end
              pin(way == "row" and sum or product.inputs[count - 1])
            end
          end
        end
      end
    end
    local parts = {}
    for _, by in ipairs { { "column", "outputs" }, { "row", "inputs" }, { "vocab", "vocabulary" } } do
      local names = split[by[1]]
      table.sort(names)
      table.insert(parts, string.format("%d by %s (%s%s)", #names, by[2], names[1], #names > 1 and ", ..." or ""))
    end
    plan:note(string.format("weights are split over the %d ranks of axis tensor: %s; between them every rank has " ..
      "the whole activations", request.mesh[1][2], table.concat(parts, ", ")))
  end,
}
)lua";

}  // namespace

TEST_CASE("checkpoint written in Lua gives the built-in method's plan") {
  const Folder folder;
  const std::string mesh = "return { m.parallel_mode { { 'data', 2 } }, ";
  CHECK(text_of(folder, kCheckpoint + mesh + "mine { scopes = { 'blocks.*' } } }") ==
        text_of(folder, mesh + "m.checkpoint { 'blocks.*' } }"));
  CHECK(text_of(folder, kCheckpoint + mesh + "mine { scopes = { 'Block' }, keep = { 'mm' } } }") ==
        text_of(folder, mesh + "m.checkpoint { 'Block', keep = { 'mm' } } }"));
  // The comparison detects a difference in one scope.
  CHECK(text_of(folder, kCheckpoint + mesh + "mine { scopes = { 'blocks.*' } } }") !=
        text_of(folder, mesh + "m.checkpoint { 'blocks.*', most = 3 } }"));
}

TEST_CASE("zero1 written in Lua gives the built-in method's plan") {
  const Folder folder;
  for (const auto* bucket : {"0.01", "0.002"}) {  // some and many units
    CAPTURE(bucket);
    const auto mesh = fmt::format(
        "return {{ m.parallel_mode {{ {{ 'data', 2 }} }}, m.grad_comm {{ bucket_mb = {} }}, ",
        bucket);
    CHECK(text_of(folder, kZero1 + mesh + "mine {} }") == text_of(folder, mesh + "m.zero1 {} }"));
    CHECK(text_of(folder, kZero1 + mesh + "mine {} }") != text_of(folder, mesh + "m.zero2 {} }"));
  }
}

TEST_CASE("tensor_parallel written in Lua gives the built-in method's plan") {
  const Folder folder;
  const std::string mesh = "return { m.parallel_mode { { 'tensor', 2 } }, ";
  CHECK(text_of(folder, kTensorParallel + mesh + "mine {} }") ==
        text_of(folder, mesh + "m.tensor_parallel {} }"));
  CHECK(text_of(folder, kTensorParallel + mesh + "mine {} }") !=
        text_of(folder, mesh + "m.tensor_parallel { sequence = true } }"));
}
