-- EPL's names: init(Config { ["pipeline.num_micro_batch"] = 4 }), the scopes replicate and split, set_default_strategy,
-- and the collection of checkpoints. In a job: [epl.pipeline] num_micro_batch = 4, [[epl.scopes.taskgraphs]], ...
-- Missing options are read from EPL_PIPELINE_NUM_MICRO_BATCH, ... runtime/migration/from_epl.md compares.
local candidates = require "perigee.candidates"
local dialect = require "perigee.dialect"
local host = require "perigee.host"
local methods = require "perigee.methods"
local rows = require "perigee.epl_options"
local sizes = require "perigee.sizes"

local fail = dialect.fail

local listed, schedules, levels, shared = rows.listed, rows.schedules, rows.levels, rows.shared

-- Scopes ----------------------------------------------------------------------------------------------------

local fields = { kind = "string", name = "string", device_count = "number", match = "table", default = "boolean",
  experts = "boolean" }

-- Returns the error of a taskgraph.
local function wrong(graph)
  for key, value in pairs(graph) do
    if type(value) ~= fields[key] then return "has kind, name, device_count, match, default and experts" end
  end
  if graph.kind ~= "replicate" and graph.kind ~= "split" then return "is of the kind replicate or split" end
  if not graph.device_count or graph.device_count < 1 or graph.device_count ~= math.floor(graph.device_count) then
    return "needs device_count, at least 1"
  end
  for _, scope in ipairs(graph.match or {}) do
    if type(scope) ~= "string" then return "names scopes of the model" end
  end
end

local function check_graphs(graphs)
  for i, graph in ipairs(graphs) do
    local why = type(graph) ~= "table" and "is a table" or wrong(graph)
    if why then return string.format("item %d %s", i, why) end
  end
end

local scopes = {
  { "taskgraphs", "list", nil, check = check_graphs, with = "build" },
  { "checkpoints", "list", nil, of = "string", with = "build", across = true, idle = function(_, all)
    return all.Config["gradient_checkpoint.type"] ~= "collection"
      and 'gradient_checkpoint.type is not "collection", which keeps their results' or nil
  end },
}

-- The places of a script's taskgraphs, by their tables.
local written = {}

-- Returns the place of the taskgraph of that number.
local function place_of(draft, graph)
  return written[graph] or (draft.place_of("scopes.taskgraphs." .. draft.numbers[graph]))
end

-- Sets the place of a taskgraph for all methods used from now on, and for errors that name its scopes.
local function stand_at(draft, method, graph)
  draft:stand(place_of(draft, graph), true)
  for _, scope in ipairs(graph.match or {}) do
    draft:word(method, scope)
    draft:word(method, scope .. ".**")
  end
end

local function title(graph, i)
  return graph.kind .. " " .. (graph.name and dialect.show(graph.name) or "number " .. i)
end

-- tensor_parallel requires an axis that does not shard the batch; a split beside replicas uses their axis.
methods.define {
  name = "epl_split",
  doc = "Splits dense layers by their outputs over an axis that the batch is split over, too.",
  fields = { match = { type = "list", required = true }, axis = { type = "string", required = true } },
  apply = function(plan, given)
    for _, scope in ipairs(given.match) do
      local found, count = pcall(plan.place, plan, scope .. ".**", given.axis, "S0")
      if not found then
        fail("epl_split: a split names modules with weights of their own, but %s has none (a tied head's is the "
          .. "embedding's)", dialect.show(scope))
      end
      plan:note(string.format("%d parameters of %s are split by outputs over %s", count, scope, given.axis))
    end
  end,
}

-- Returns whether a name or pattern ("blocks.*") may be that of a scope or its module type.
local function is_of(name, scope)
  local pattern = name:gsub("[%^%$%(%)%%%[%]%+%-]", "%%%0"):gsub("[.*]+", function(run)
    return run:find("*", 1, true) and ".*" or "%."
  end):gsub("%?", ".")
  return scope.type == name or scope.path:find("^" .. pattern .. "$") ~= nil
end

-- Without stages nothing else reads the scopes of replicas.
methods.define {
  name = "epl_scopes",
  doc = "Refuses scopes that the model lacks.",
  fields = { match = { type = "list", required = true } },
  apply = function(_, given, request)
    local known = {}
    for i, scope in ipairs(request.graph.scopes) do known[i] = scope.path end
    for _, name in ipairs(given.match) do
      local found = false
      for _, scope in ipairs(request.graph.scopes) do found = found or is_of(name, scope) end
      if not found then
        fail("epl_scopes: a taskgraph names scopes or module types of the model, but got %s%s", dialect.show(name),
          host.suggest(name, known))
      end
    end
  end,
}

local function check_scopes(draft, graphs)
  local match = {}
  for _, graph in ipairs(graphs) do
    for _, scope in ipairs(graph.match or {}) do match[#match + 1] = scope end
  end
  draft:stand(place_of(draft, graphs[1]), true)
  if #match > 0 then draft:use("epl_scopes", { match = match }) end
end

-- The scopes of all these splits except those of experts, which expert_parallel shards.
local function split_scopes(draft, splits, axis)
  local match = {}
  for _, graph in ipairs(splits) do
    stand_at(draft, axis == "tensor" and "tensor_parallel" or "epl_split", graph)
    if graph.experts then draft:use("expert_parallel", { axis = axis }) end
    for _, scope in ipairs(not graph.experts and graph.match or {}) do match[#match + 1] = scope end
  end
  if splits[1] then draft:stand(place_of(draft, splits[1]), true) end
  return match
end

-- Splits over the ranks that also shard the batch.
local function split_beside(draft, splits)
  for i, graph in ipairs(splits) do
    if not graph.experts and #(graph.match or {}) == 0 then
      dialect.fail_at(place_of(draft, graph), "%s needs the scopes that it holds", title(graph, i))
    end
  end
  local match = split_scopes(draft, splits, "data")
  if #match > 0 then draft:use("epl_split", { match = match, axis = "data" }) end
end

-- Splits over an axis of their own; one without scopes shards all layers, one over one device none.
local function split_alone(draft, given)
  local splits = {}
  for _, graph in ipairs(given) do
    if graph.device_count > 1 then splits[#splits + 1] = graph end
  end
  local match, all = split_scopes(draft, splits, "tensor"), false
  for _, graph in ipairs(splits) do all = all or not graph.experts and #(graph.match or {}) == 0 end
  for i, scope in ipairs(match) do match[i] = scope .. ".**" end  -- all modules within it
  if all or #match > 0 then draft:use("tensor_parallel", { axis = "tensor", column = not all and match or nil }) end
end

local function pipeline(draft, graphs, strategy)
  local starts, holds = {}, {}
  for i, graph in ipairs(graphs) do holds[i] = graph.match or {} end
  for i = 2, #graphs do
    local first = holds[i][1]
    if not first then
      dialect.fail_at(place_of(draft, graphs[i]), "%s needs the scopes that it holds, the first where it begins",
        title(graphs[i], i))
    end
    starts[#starts + 1] = first
    stand_at(draft, "pipeline_parallel", graphs[i])
  end
  draft:stand(place_of(draft, graphs[2]), true)
  draft:axis("pipe", #graphs)
  draft:use("pipeline_parallel", { starts = starts, holds = holds })
  draft:use("pipeline_parallel", schedules[strategy], "pipeline.strategy")
end

-- Returns whether taskgraphs have different numbers of devices.
local function unequal(graphs)
  for _, graph in ipairs(graphs) do
    if graph.device_count ~= graphs[1].device_count then return true end
  end
  return false
end

-- Stages with devices of their own: replicas shard the batch over theirs, a split its weights.
local function place_unequal(draft, graphs, splits, options)
  if #splits > 0 and options.Config["cluster.colocate_split_and_replicate"] then
    dialect.fail_of("cluster.colocate_split_and_replicate", "cluster.colocate_split_and_replicate has taskgraphs "
      .. "share their devices, but %s has %d and another not", title(graphs[1], 1), graphs[1].device_count)
  end
  draft.submeshes = {}
  for i, graph in ipairs(graphs) do
    local axis = graph.kind == "split" and "tensor" or "data"
    draft.submeshes[i] = { graph.device_count > 1 and { axis, graph.device_count } or nil }
  end
  if #splits > 0 then split_alone(draft, splits) end
  pipeline(draft, graphs, options.Config["pipeline.strategy"])
end

-- From scopes to axes: stages in order, or one group of devices for all if they are colocated; replicas over data, a
-- split over an axis of its own, or over that of the replicas if there are any.
local function place(draft, options)
  local graphs, splits = listed(options), {}
  draft.numbers = {}
  for i, graph in ipairs(options.scopes.taskgraphs or {}) do draft.numbers[graph] = i end
  for _, graph in ipairs(graphs) do
    if graph.kind == "split" then splits[#splits + 1] = graph end
  end
  for _, graph in ipairs(options.scopes.taskgraphs or {}) do
    if graph.default and graph.kind == "split" then graphs[1] = graphs[1] or graph; splits[1] = splits[1] or graph end
    if graph.default and #graphs == 0 and graph.device_count > 1 then draft:axis("data", graph.device_count) end
  end
  if #graphs == 0 then return end
  if unequal(graphs) then return place_unequal(draft, graphs, splits, options) end
  local count = graphs[1].device_count
  draft:stand(place_of(draft, graphs[1]), true)
  if #splits < #graphs then
    if count > 1 then draft:axis("data", count) end
    split_beside(draft, splits)
  else
    draft:axis("tensor", count)
    split_alone(draft, splits)
  end
  if #graphs > 1 and not shared(graphs, options.Config) then
    pipeline(draft, graphs, options.Config["pipeline.strategy"])
  else
    check_scopes(draft, graphs)
  end
end

-- Returns the module whose result is the tensor ("blocks.0/add.1"): of the modules that end with the op, a
-- repeated one, else the innermost. Nothing where the op is within modules; the second result is then the innermost.
local function module_of(tensor, graph)
  local at, inner
  for i, op in ipairs(graph.ops) do
    for _, name in ipairs(op.outputs) do
      if name == tensor and not op.backward then at, inner = i, op.scope end
    end
  end
  if not at then return nil end
  local found
  for _, scope in ipairs(graph.scopes) do
    if scope.path ~= "" and candidates.inside(inner, scope.path) then
      local ends = true
      for i = at + 1, #graph.ops do
        ends = ends and (graph.ops[i].backward or not candidates.inside(graph.ops[i].scope, scope.path))
      end
      if ends and not (found and found:find "%.%d+$") then found = scope.path end
    end
  end
  return found, inner
end

-- A collection may name tensors, as graph.ops names them: each is kept as the result of its module.
local function keep_tensors(draft, names)
  local any = false
  for _, name in ipairs(names) do any = any or name:find("/", 1, true) ~= nil end
  if not any then return end
  draft:afterwards(function(list, graph)
    local kept, seen = {}, {}
    for _, name in ipairs(names) do
      local scope, inner = name, nil
      if name:find("/", 1, true) then scope, inner = module_of(name, graph) end
      if not scope and not inner then
        local known = {}
        for _, op in ipairs(graph.ops) do
          if not op.backward then known[#known + 1] = op.name end
        end
        dialect.fail_of("scopes.checkpoints", "checkpoints names a tensor of the forward pass, but %s is none%s",
          dialect.show(name), host.suggest(name, known))
      end
      if not scope then
        dialect.fail_of("scopes.checkpoints", "checkpoints names results of modules, but %s is computed within %s: "
          .. "name the last tensor of a module, or the module", dialect.show(name), inner)
      end
      if not seen[scope] then kept[#kept + 1] = scope end
      seen[scope] = true
    end
    for i, use in ipairs(list) do
      if use[1] == "checkpoint" and use[2] and use[2].kept then
        local config = {}
        for key, value in pairs(use[2]) do config[key] = value end
        config.kept = kept
        list[i] = { "checkpoint", config }
      end
    end
  end)
end

local function checkpoint(draft, options)
  local kind, last = options.Config["gradient_checkpoint.type"], options.Config["gradient_checkpoint.end_taskgraph"]
  local graphs = listed(options)
  if last >= math.max(#graphs, 1) then
    local text = "gradient_checkpoint.end_taskgraph must be below the %d taskgraphs, but got %d"
    dialect.fail_of("gradient_checkpoint.end_taskgraph", text, math.max(#graphs, 1), last)
  end
  if kind == "collection" then
    if not options.scopes.checkpoints then
      local why = 'gradient_checkpoint.type = "collection" needs epl.checkpoints { SCOPE, ... }, but there are none'
      if not draft.alone then dialect.fail_of("gradient_checkpoint.type", why) end
      draft.unfinished = "[epl] " .. why
      return
    end
    draft:use("checkpoint", { kept = options.scopes.checkpoints }, "scopes.checkpoints")
    keep_tensors(draft, options.scopes.checkpoints)
  elseif kind == "auto" and last >= 0 and last < #graphs - 1 then
    local use = draft:use("checkpoint", { memory = "device" }, "gradient_checkpoint.type")
    for i = 1, last + 1 do
      for _, scope in ipairs(graphs[i].match or {}) do use[#use + 1] = scope end
    end
  elseif kind == "auto" then
    draft:use("checkpoint", { "auto", memory = "device" }, "gradient_checkpoint.type")
  end
end

-- Returns the number of microbatches of a found strategy.
local function microbatches_of(list)
  for _, use in ipairs(list) do
    if use[1] == "gradient_accumulation" then return use[2].microbatches end
  end
end

-- Adjacent ranks are replicas.
local function data_first(list)
  for i, use in ipairs(list) do
    if use[1] == "parallel_mode" then
      local axes = {}
      for key, value in pairs(use[2]) do axes[key] = value end
      for at, axis in ipairs(use[2]) do
        if axis[1] == "data" then table.insert(axes, 1, table.remove(axes, at)) end
      end
      list[i] = { "parallel_mode", axes }
    end
  end
end

-- The search cuts a model between repeated blocks. A model without them is cut into stages of equal numbers of ops.
local function stages_by_count(draft, options, given)
  local count, again, zero = options["pipeline.num_stages"], draft.uses.checkpoint, nil
  if count < 2 then return end
  for _, name in pairs(levels) do
    if draft:uses_method(name) then zero = { name, draft.uses[name] } end
  end
  draft.instead = function(graph)
    if candidates.row_of(graph) then return nil end
    local staged = { balance = "count" }
    for key, value in pairs(schedules[options["pipeline.strategy"]]) do staged[key] = value end
    local list = { { "parallel_mode", { { "pipe", count }, { "data", 1 } } }, { "pipeline_parallel", staged } }
    if given["pipeline.num_micro_batch"] then
      list[3] = { "gradient_accumulation", { microbatches = options["pipeline.num_micro_batch"] } }
    end
    for _, use in ipairs(candidates.methods_of(draft)) do list[#list + 1] = use end
    if again and not draft:uses_method("checkpoint") then list[#list + 1] = { "checkpoint", again } end
    list[#list + 1] = zero
    return list
  end
end

-- Choices of the search are pinned, not used: with type "auto" it chooses the recomputed blocks.
local function pin_found(draft, options, given)
  stages_by_count(draft, options, given)
  draft:pin_zero()
  if options["gradient_checkpoint.type"] == "auto" then
    draft:remove("checkpoint")
  else
    draft:pin("checkpoint", false)
  end
  if given["pipeline.strategy"] then
    local wanted = schedules[options["pipeline.strategy"]]
    draft:pin("schedule", wanted.schedule)
    draft:complete("pipeline_parallel", { extra = wanted.extra })
  end
  local count = options["pipeline.num_micro_batch"]
  if given["pipeline.num_micro_batch"] then
    draft:remove("gradient_accumulation")
    draft.accept = function(list) return (microbatches_of(list) or 1) == count end
    draft.sized = function(pins, job, graph) return sizes.of_microbatches(pins, count, job, graph) end
  end
  if not options["cluster.device_place_prefer_intra_node"] then draft:afterwards(data_first) end
end

-- The step updates one bucket of gradients after another: this number of buckets, of similar size.
local function apply_in_groups(draft, count)
  draft:afterwards(function(list, graph)
    local bytes = 0
    for _, parameter in ipairs(graph.parameters) do
      if parameter.trainable then bytes = bytes + parameter.bytes end
    end
    for i, use in ipairs(list) do
      if use[1] == "grad_comm" then
        local buckets = { bucket_mb = bytes / count / 2 ^ 20 }
        for key, value in pairs(use[2]) do buckets[key] = value end
        list[i] = { "grad_comm", buckets }
      end
    end
  end)
end

local function build(draft, options)
  local given = draft.given.Config or {}
  local groups = options.Config["optimizer.num_apply_group"]
  if groups > 1 then
    apply_in_groups(draft, groups)
    draft:warn("[epl] optimizer.num_apply_group is the number of buckets that are stepped one after another, and "
      .. "lowers no peak: optimizers step their elements in place")
  end
  if groups > options.Config["communication.max_splits"] then
    draft:use("grad_comm", { buckets = groups }, "optimizer.num_apply_group")
  end
  if given["communication.sparse_as_dense"] == false then
    draft:use("grad_comm", { sparse = "any" }, "communication.sparse_as_dense")
  end
  if given["communication.clip_after_allreduce"] == false then
    draft:use("grad_comm", { clip = "before" }, "communication.clip_after_allreduce")
  end
  if options.Config["auto.auto_parallel"] then
    local graphs = options.scopes.taskgraphs or {}
    if #graphs > 0 then
      local text = "auto.auto_parallel finds the stages, but there is %s: leave one of them out"
      dialect.fail_of("auto.auto_parallel", text, title(graphs[1], 1))
    end
    checkpoint(draft, options)
    return pin_found(draft, options.Config, given)
  end
  draft:stand(draft.place_of "scopes.taskgraphs")
  if not (draft.alone and draft.given.scopes) then place(draft, options) end
  checkpoint(draft, options)
end

local epl = dialect.new {
  name = "epl",
  axes = { "tensor", "expert", "pipe", "data" },
  flat = true,
  sections = {
    { name = "Config", options = rows.config, rules = rows.rules, environment = "EPL_", always = true },
    { name = "scopes", options = scopes },
  },
  build = build,
  blame = "scopes.taskgraphs",
}

-- Functions ---------------------------------------------------------------------------------------------------

local started, graphs, kept

local function need_init(what)
  if not started then fail("[epl] init comes first, but %s was called before it", what) end
end

local function scope(kind)
  return dialect.at_user(function(given)
    need_init(kind)
    if type(given) == "number" then given = { device_count = given } end
    if type(given) ~= "table" then fail("[epl] %s takes a table, but got %s", kind, dialect.show(given)) end
    local graph = { kind = kind, match = {} }
    for key, value in pairs(given) do
      if type(key) == "number" then graph.match[key] = value else graph[key] = value end
    end
    local why = wrong(graph)
    if why then fail("[epl] %s %s, but got %s", kind, why, dialect.show(given)) end
    written[graph] = host.place()
    graphs[#graphs + 1] = graph
    return graph
  end)
end

local module = { Config = epl.Config, from_job = epl.from_job, rows = epl.rows }

-- Starts a strategy with the options of a Config, or the defaults.
module.init = dialect.at_user(function(given)
  if started then fail("[epl] init is called once, but this is the second time") end
  started, graphs = given or epl.Config {}, {}
end)

-- replicate { device_count = 1, name = "first", "embed", "blocks.0" }: a taskgraph of these scopes, which begins at the
-- first. split { ... }: shards their weights; with experts = true the experts of a mixture.
module.replicate = scope "replicate"
module.split = scope "split"

-- The strategy of all modules that no scope names.
module.set_default_strategy = dialect.at_user(function(graph)
  need_init "set_default_strategy"
  graph.default = true
end)

-- Adds scopes that keep their results, for gradient_checkpoint.type = "collection".
module.checkpoints = dialect.at_user(function(names)
  need_init "checkpoints"
  kept = kept or {}
  for _, name in ipairs(type(names) == "table" and names or { names }) do kept[#kept + 1] = name end
end)

-- Returns the strategy of all calls since init; accepts { job = FILE }.
module.strategy = dialect.at_user(function(more)
  need_init "strategy"
  local said = epl.scopes { taskgraphs = graphs, checkpoints = kept }
  return epl.strategy { started, said, job = more and more.job }
end)

return module
