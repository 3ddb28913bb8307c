-- AutoDist's names (nnScaler): AutoDistConfig { mesh_col = 4, memory_constraint = 16, recompute_modules = "layer" }. In
-- a job: [autodist] mesh_col = 4. The search is Perigee's; the options bound it.
-- runtime/migration/from_autodist.md compares.
local candidates = require "perigee.candidates"
local dialect = require "perigee.dialect"
local host = require "perigee.host"
local saved = require "perigee.strategy"
local sizes = require "perigee.sizes"

local function names_of(text)
  local names = {}
  for name in text:gmatch("[^,%s]+") do names[#names + 1] = name end
  return names
end

local function ratio(value)
  if value <= 0 or value >= 1 then return "must be above 0 and below 1" end
end

-- A file of constraints relative to the script, or the list itself.
local function constrain(draft, constraints)
  if type(constraints) == "string" then
    local list, why = saved.constraints(constraints)
    if not list then dialect.fail("partition_constraints_path: %s", why) end
    constraints = list
  end
  draft:use("partition_constraints", constraints)
end

-- The user's coefficients of memory.
local factors = {
  transient_mem_coef = "reserve", opt_resident_coef = "optimizer_resident", opt_transient_coef = "optimizer_transient",
}

local function no_pipeline(o)
  local none = o.pipeline_pivots == "" and (o.pipeline_nstages == "auto" or o.pipeline_nstages == 1)
  return none and "there is no pipeline: give pipeline_pivots or pipeline_nstages" or nil
end

local function no_limit(o) return not o.consider_mem and "consider_mem is false" or nil end

local config = {
  { "task_name", "string", "default", sets = "job.name",
    check = function(name) if name == "" then return "must not be empty" end end },
  { "consider_mem", "boolean", true, with = "memory_constraint" },
  { "memory_constraint", "number", 32, with = "finish", idle = no_limit,
    check = function(gigabytes) if gigabytes <= 0 then return "must be above 0" end end },
  { "memory_granularity", "integer", 1, least = 1, with = "memory_constraint", idle = no_limit },
  { "transient_mem_coef", "number", 2, least = 0, with = "build, where it is given: the pin reserve" },
  { "opt_resident_coef", "integer", 2, least = 0, with = "build, where it is given: the pin optimizer_resident" },
  { "opt_transient_coef", "integer", 0, least = 0, with = "build, where it is given: the pin optimizer_transient" },
  { "recompute_modules", "string", "", with = "finish" },
  { "zero_stage", "integer", 0, one_of = { 0, 1, 2, 3 }, with = "build" },
  { "zero_ngroups", "integer", 1, least = 1, with = "finish" },
  { "pipeline_pivots", "string", "", with = "build" },
  { "pipeline_nstages", "integer|string", "auto", least = 1, one_of = { "auto" }, with = "build" },
  { "pipeline_scheduler", "string", "1f1b", with = "build", idle = no_pipeline,
    one_of = { "1f1b", "gpipe", "eager_1f1b", "interleaved", "looped_bfs", "zb1p", "zb2p", "zbv", "v_half", "v_min",
      "dualpipe_v", "auto" } },
  { "max_pipeline_bubble_ratio", "number", 0.2, check = ratio, with = "finish", idle = no_pipeline },
  { "max_pipeline_unbalance_ratio", "number", 0.5, check = ratio, with = "finish", idle = no_pipeline },
  { "min_pipeline_balance", "number", nil, check = ratio, idle = no_pipeline,
    with = "max_pipeline_unbalance_ratio, by its meaning" },
  { "mesh_row", "integer", 1, least = 1, with = "build" },
  { "mesh_col", "integer", 1, least = 1, with = "build" },
  { "world_size", "integer", 1, least = 1, with = "build" },
  { "micro_batch_size", "integer", 1, least = 1, with = "finish" },
  { "update_freq", "integer", 1, least = 1, with = "finish" },
  { "profile_dir", "string", nil,
    sets = function(draft, folder)
    draft:job("cluster.profile", folder:gsub("/$", "") .. "/profile.sqlite")
  end },
  { "parallel_profile", "boolean", true, sets = "job.profile.parallel" },
  { "re_profile", "boolean", false, sets = "job.profile.again" },
  { "topk", "integer", 20, least = 1, with = "finish" },
  { "solver", "string", "dp", one_of = { "dp", "ilp" },
    sets = function(draft) draft:pin("solver", "ilp") end },
  { "nproc", "integer", 1, least = 1, sets = "pin.threads" },
  { "load_plan_path", "string", "", with = "finish" },
  { "save_plan_path", "string", "", with = "finish" },
  { "partition_constraints_path", "string|list", "", sets = constrain },
  { "is_train", "boolean", true, sets = function(draft) draft:job("train.forward_only", true) end },
  { "verbose", "boolean", false, with = "finish" },
  { "ignore_small_tensor_threshold", "integer", 1, least = 0, sets = "pin.smallest" },
}

local rules = {
  { function(o) return o.load_plan_path ~= "" and o.save_plan_path ~= "" end, "save_plan_path",
    "load_plan_path and save_plan_path exclude each other, but both are given" },
  { function(o) return o.min_pipeline_balance and o.max_pipeline_unbalance_ratio ~= 0.5 end, "min_pipeline_balance",
    "min_pipeline_balance and max_pipeline_unbalance_ratio are two names of one option: give one" },
  { function(o) return o.zero_ngroups > 1 and o.zero_stage == 0 end, "zero_ngroups",
    "zero_ngroups = %s are groups of ranks that share parts: zero_stage must be 1 or more" },
  { function(o) return o.pipeline_nstages == 1 and o.pipeline_pivots ~= "" end, "pipeline_nstages",
    "pipeline_nstages = 1 would ignore pipeline_pivots: leave one of them out" },
  { function(o) return o.world_size > 1 and o.world_size % (o.mesh_row * o.mesh_col) ~= 0 end, "world_size",
    "world_size must be a multiple of mesh_row x mesh_col, but got %s" },
  { function(o) return o.pipeline_nstages ~= "auto" and o.pipeline_nstages > o.mesh_row * o.mesh_col end,
    "pipeline_nstages",
    "pipeline_nstages = %s needs as many devices: mesh_row x mesh_col is less" },
}

-- With groups, parts are sharded over an axis zero of the ranks of a group.
local function grouped(strategy, groups)
  local axes = candidates.fields_of(strategy, "parallel_mode")
  for i, axis in ipairs(axes) do
    if axis[1] == "data" then
      axes[i] = { "zero", axis[2] / groups }
      table.insert(axes, i + 1, { "data", groups })
      return
    end
  end
end

-- Options of the search, which a loaded plan replaces.
local of_search = { "consider_mem", "memory_constraint", "recompute_modules", "zero_stage", "zero_ngroups",
  "pipeline_pivots", "pipeline_scheduler", "micro_batch_size", "update_freq", "topk", "solver",
  "partition_constraints_path", "ignore_small_tensor_threshold", "nproc" }

local function warn_of_loaded(draft, o, asked)
  local idle = {}
  for _, option in ipairs(of_search) do
    if o.load_plan_path ~= "" and asked[option] ~= nil then idle[#idle + 1] = option end
  end
  if #idle == 0 then return end
  draft:warn("[autodist] %s %s no effect: load_plan_path has the plan", table.concat(idle, ", "),
    #idle == 1 and "has" or "have")
end

local function build(draft, given)
  local o = given.AutoDistConfig
  local asked = draft.given.AutoDistConfig or {}
  warn_of_loaded(draft, o, asked)
  draft.search = true
  draft:pin("zero", o.zero_stage)
  for option, pin in pairs(factors) do
    if asked[option] then draft:pin(pin, asked[option]) end
  end
  if o.consider_mem then draft:pin("memory", o.memory_constraint * 2 ^ 30) end
  if o.pipeline_scheduler ~= "auto" then draft:pin("schedule", o.pipeline_scheduler) end
  if o.pipeline_nstages ~= "auto" then
    draft:pin("pipe", o.pipeline_nstages)
    if o.pipeline_nstages > 1 and o.pipeline_pivots == "" then
      draft:warn("[autodist] pipeline_nstages = %d without pipeline_pivots: stages begin at any block",
        o.pipeline_nstages)
    end
  elseif o.pipeline_pivots == "" then
    draft:pin("pipe", 1)
  end
  if asked.world_size or asked.mesh_row or asked.mesh_col then
    draft:job("cluster.ranks", math.max(o.world_size, o.mesh_row * o.mesh_col))
    draft:pin("host_devices", o.mesh_col)
  end
end

-- Scopes ---------------------------------------------------------------------------------------------------------

local function components(path)
  local list = {}
  for part in path:gmatch("[^.]+") do
    if not part:find("^%d+$") then list[#list + 1] = part end
  end
  return list
end

-- Returns whether the name is a suffix of the scope's path at component boundaries, numbers left out, or its type.
local function names_scope(name, scope)
  if scope.type == name then return true end
  local wanted, path = components(name), components(scope.path)
  if #wanted == 0 or #wanted > #path then return false end
  for i = 1, #wanted do
    if wanted[#wanted - i + 1] ~= path[#path - i + 1] then return false end
  end
  return true
end

-- Returns the modules' names and types.
local function known_names(graph)
  local names, seen = {}, {}
  for _, scope in ipairs(graph.scopes) do
    local path = components(scope.path)
    for _, name in ipairs { path[#path], scope.type } do
      if not seen[name] then names[#names + 1] = name end
      seen[name] = true
    end
  end
  return names
end

-- Returns the scopes that are within no other scope of the list.
local function outermost(scopes)
  local list = {}
  for _, scope in ipairs(scopes) do
    local inside = false
    for _, other in ipairs(scopes) do inside = inside or scope ~= other and candidates.inside(scope, other) end
    if not inside then list[#list + 1] = scope end
  end
  return list
end

-- Returns the outermost scopes that match the names. A name that matches none is an error.
local function scopes_of(names, graph, option)
  local found, seen = {}, {}
  for _, name in ipairs(names) do
    local any = false
    for _, scope in ipairs(graph.scopes) do
      -- "blocks" matches both blocks.3 and blocks: prefers the repeated one
      local repeated = scope.path:find("%.%d+$") or scope.type ~= "ModuleList"
      if scope.path ~= "" and repeated and names_scope(name, scope) then
        any = true
        if not seen[scope.path] then found[#found + 1] = scope.path end
        seen[scope.path] = true
      end
    end
    if not any then
      dialect.fail_of(option, "%s names a module of the model, but %s is none%s", option, dialect.show(name),
        host.suggest(name, known_names(graph)))
    end
  end
  return outermost(found)
end

-- Returns the pattern of a path: "blocks.*.mlp" of blocks.3.mlp.
local function pattern_of(path)
  local parts = {}
  for part in path:gmatch("[^.]+") do parts[#parts + 1] = part:find("^%d+$") and "*" or part end
  return table.concat(parts, ".")
end

-- Returns all modules of the model as scopes that hold no other of them: repeated ones, and innermost ones elsewhere.
local function units_of(graph)
  local holds, units, blocks = {}, {}, candidates.blocks_of(graph)
  for _, scope in ipairs(graph.scopes) do
    local outer = scope.path:match "^(.*)%.[^.]*$"
    if outer then holds[outer] = true end
  end
  for _, scope in ipairs(graph.scopes) do
    if scope.path ~= "" and (blocks[scope.path] or not holds[scope.path]) then units[#units + 1] = scope.path end
  end
  return outermost(units)
end

-- Returns the checkpoint method's list; ROOT is all modules. It has patterns, since the search also uses models of
-- fewer blocks, and types where a pattern matches other scopes, too.
local function recomputed(text, graph)
  local found, others, list, seen, names, root = {}, {}, {}, {}, {}, false
  for _, name in ipairs(names_of(text)) do
    if name == "ROOT" then root = true else names[#names + 1] = name end
  end
  local scopes = scopes_of(names, graph, "recompute_modules")
  if root then scopes = units_of(graph) end
  for _, scope in ipairs(scopes) do found[scope] = true end
  for _, scope in ipairs(graph.scopes) do
    if not found[scope.path] then others[pattern_of(scope.path)] = true end
  end
  for _, scope in ipairs(graph.scopes) do
    local pattern = pattern_of(scope.path)
    if others[pattern] then pattern = scope.type end
    if found[scope.path] and not seen[pattern] then
      list[#list + 1] = pattern
      seen[pattern] = true
    end
  end
  return list
end

-- The search -----------------------------------------------------------------------------------------------------

-- Returns whether pivots allow all starts of a candidate's stages.
local function at_pivots(starts, allowed)
  if not allowed or not starts then return true end
  for _, start in ipairs(starts) do
    local found = false
    for _, scope in ipairs(allowed) do found = found or scope == start end
    if not found then return false end
  end
  return true
end

-- Returns whether a candidate has the sizes of the options, or false and the option that excludes it.
local function fits(o, asked, allowed)
  local copies = sizes.copies(o)
  return function(c)
    if c.data % copies ~= 0 then return false, "world_size" end
    if c.data % o.zero_ngroups ~= 0 then return false, "zero_ngroups" end
    if asked.update_freq and c.microbatches ~= o.update_freq then return false, "update_freq" end
    if asked.micro_batch_size and c.micro * c.data * (c.expert or 1) ~= o.micro_batch_size * copies then
      return false, "micro_batch_size"
    end
    if c.pipe > 1 then
      local most = sizes.most_stages(o.max_pipeline_bubble_ratio, c.microbatches)
      if c.pipe > most then return false, "max_pipeline_bubble_ratio" end
    end
    if not at_pivots(candidates.starts_of(c.strategy), allowed) then return false, "pipeline_pivots" end
    return true
  end
end

-- Returns whether a plan's peak memory, rounded up, is within the limit.
local function in_memory(o)
  return function(estimate)
    local peak = math.ceil(estimate.peak_bytes / o.memory_granularity) * o.memory_granularity
    if o.consider_mem and peak > o.memory_constraint * 2 ^ 30 then return false, "memory_constraint" end
    return true
  end
end

local function tell(candidate, estimate)
  print(string.format("[autodist] %s: %.4g s a step by the model, %.4g by the simulator, %.4g GB", candidate.text,
    candidate.seconds, estimate.seconds, estimate.peak_bytes / 2 ^ 30))
end

local limits = { "micro_batch_size", "update_freq", "pipeline_pivots", "pipeline_nstages", "max_pipeline_bubble_ratio",
  "max_pipeline_unbalance_ratio", "min_pipeline_balance", "zero_ngroups", "world_size", "mesh_row", "mesh_col",
  "memory_constraint" }

-- Returns the options that a user may change if no plan meets them. `more`: the search has more plans than topk.
local function limits_of(asked, o, more)
  local given = {}
  for _, option in ipairs(limits) do
    if asked[option] ~= nil then given[#given + 1] = option .. " = " .. dialect.show(asked[option]) end
  end
  local _, balances = sizes.balance(o)
  if o.pipeline_pivots ~= "" and asked[balances] == nil then
    given[#given + 1] = string.format("%s (%s by default)", balances, dialect.show(o[balances]))
  end
  if o.consider_mem and asked.memory_constraint == nil then
    given[#given + 1] = string.format("memory_constraint (%s by default)", dialect.show(o.memory_constraint))
  end
  if o.recompute_modules == "" then given[#given + 1] = 'recompute_modules = "" (nothing is recomputed)' end
  if more then given[#given + 1] = string.format("topk = %d, the plans that are simulated", o.topk) end
  return #given > 0 and ": change " .. table.concat(given, ", or ") or ""
end

-- Returns the number of stages of a saved strategy or a plan.
local function stages_of(plan)
  local axes = plan.format and plan.mesh.axes or candidates.fields_of(plan, "parallel_mode") or {}
  for _, axis in ipairs(axes) do
    if (axis.name or axis[1]) == "pipe" then return axis.size or axis[2] end
  end
  return 1
end

-- Both the options and the launcher may set the number of ranks.
local function check_ranks(asked, o, job)
  local ranks, given = (job.cluster or {}).ranks or 0, nil
  for _, option in ipairs { "world_size", "mesh_row", "mesh_col" } do
    if asked[option] and not given then given = option end
  end
  local wanted = math.max(o.world_size, o.mesh_row * o.mesh_col)
  if not given or ranks == 0 or ranks == wanted then return end
  local text = o.world_size > o.mesh_row * o.mesh_col and string.format("world_size = %d", o.world_size)
    or string.format("mesh_row = %d x mesh_col = %d", o.mesh_row, o.mesh_col)
  dialect.fail_of(given, "%s is %d ranks, but this run has %d (--nproc, or a launcher): change one of them", text,
    wanted, ranks)
end

-- Calls f, whose errors are reported at the option.
local function of_option(option, f, ...)
  local ok, a, b = pcall(f, ...)
  if not ok then dialect.fail_of(option, "%s: %s", option, (tostring(a):gsub("^.-%[%a+%] ", ""))) end
  return a, b
end

local function finish(draft, strategy)
  local asked = draft.given.AutoDistConfig or {}
  local o = {}
  for _, row in ipairs(config) do
    o[row[1]] = asked[row[1]]
    if o[row[1]] == nil then o[row[1]] = row[3] end
  end
  if o.load_plan_path ~= "" then
    strategy.methods = function(job)
      check_ranks(asked, o, job)
      local plan, why = of_option("load_plan_path", saved.load, o.load_plan_path)
      if not plan then dialect.fail_of("load_plan_path", "load_plan_path: %s", why) end
      if o.pipeline_nstages ~= "auto" and o.pipeline_nstages ~= stages_of(plan) then
        dialect.fail_of("load_plan_path", "load_plan_path: the plan has %d stages, but pipeline_nstages is %d",
          stages_of(plan), o.pipeline_nstages)
      end
      return plan
    end
    return strategy
  end
  strategy.methods = function(job, graph)
    check_ranks(asked, o, job)
    -- Nothing is recomputed or offloaded that the options do not name.
    local pins = { methods = candidates.methods_of(draft), checkpoint = false, offload = false }
    for name, value in pairs(draft.pins) do pins[name] = value end
    if pins.pipe ~= 1 then pins.balance = sizes.balance(o) end
    if o.recompute_modules ~= "" then
      pins.methods[#pins.methods + 1] = { "checkpoint", recomputed(o.recompute_modules, graph) }
    end
    local allowed, all = nil, { pins }
    if o.pipeline_pivots ~= "" then
      allowed = scopes_of(names_of(o.pipeline_pivots), graph, "pipeline_pivots")
      all = sizes.of_pivots(pins, o, allowed, graph)
    end
    local function pinned(by)
      local list = {}
      for _, stages in ipairs(all) do
        for _, sized in ipairs(by(stages, o, asked, job, graph)) do list[#list + 1] = sized end
      end
      return list
    end
    local within = fits(o, asked, allowed)
    local function grouping(candidate)
      local fit, option = within(candidate)
      if not fit then return false, option end
      if o.zero_ngroups > 1 then grouped(candidate.strategy, o.zero_ngroups) end
      return true
    end
    local told = o.verbose and tell or nil
    local function best(list) return candidates.best(list, o.topk, grouping, in_memory(o), told) end
    local found, why, more = best(pinned(sizes.of_data))
    local longer = found and {} or pinned(sizes.of_bubble)  -- more microbatches than those of the fastest plans
    if #longer > 0 then
      local other, plans = best(longer)
      if other then found, why = other, plans end
    end
    if not found then error("[autodist] " .. why .. limits_of(asked, o, more), 0) end
    if o.save_plan_path ~= "" then
      of_option("save_plan_path", saved.save, o.save_plan_path, found, { costs = why[1].costs, plans = why })
    end
    return found
  end
  return strategy
end

return dialect.new {
  name = "autodist",
  axes = { "tensor", "data", "pipe" },
  sections = { { name = "AutoDistConfig", options = config, rules = rules, always = true } },
  build = build,
  finish = finish,
}
