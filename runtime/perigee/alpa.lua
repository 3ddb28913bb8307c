-- Alpa's names: parallelize { method = PipeshardParallel { ... } }, ShardParallel, DataParallel, Zero2Parallel,
-- Zero3Parallel, layer, stage and sharding options, mark_pipeline_boundary. In a job: [alpa] num_micro_batches = 4 for
-- PipeshardParallel, [alpa.AutoLayerOption], [alpa.Zero2Parallel], ... runtime/migration/from_alpa.md compares.
local dialect = require "perigee.dialect"
local rows = require "perigee.alpa_options"
local stages = require "perigee.alpa_stages"
local saved = require "perigee.strategy"

local fail = dialect.fail

-- The sections that are methods, and the fields of theirs that hold another section.
local tops = { "PipeshardParallel", "ShardParallel", "DataParallel", "Zero2Parallel", "Zero3Parallel",
  "get_3d_parallel_method", "LocalPipelineParallel" }
local holders = {
  PipeshardParallel = { layer_option = { "AutoLayerOption", "ManualLayerOption" },
    stage_option = { "ManualStageOption", "UniformStageOption", "AutoStageOption" },
    default_auto_sharding_option = { "AutoShardingOption" } },
  ShardParallel = { auto_sharding_option = { "AutoShardingOption" } },
}

-- { layer_option = AutoLayerOption { layer_num = 2 } } gives the section AutoLayerOption; in a job
-- { layer_option = { AutoLayerOption = { layer_num = 2 } } } does, or [alpa.AutoLayerOption] by itself.
local function expand(values, check)
  for top, fields in pairs(holders) do
    for field, allowed in pairs(fields) do
      local value = values[top] and values[top][field]
      if type(value) == "table" then
        local options = value.origin and value.origin.options or value
        local name, given = nil, nil
        for _, section in ipairs(allowed) do
          if options[section] then name, given = section, options[section] end
        end
        if not name then
          fail("[alpa] %s is made by %s, but got %s", field, table.concat(allowed, " or "), dialect.show(value))
        end
        if values[name] then fail("[alpa] %s stands twice: give it one table", name) end
        values[name] = check(name, given)
        values[top][field] = name
      elseif values[top] and value == nil then
        for _, section in ipairs(allowed) do
          if values[section] then values[top][field] = section end
        end
      end
    end
  end
end

-- Methods without stages, and with sizes -----------------------------------------------------------------------------

local function microbatches(draft, count)
  if count then draft:use("gradient_accumulation", { microbatches = count }) end
end

local builders = {
  PipeshardParallel = stages.pipeshard,
  LocalPipelineParallel = function(draft, given)
    local boundaries = stages.manual_layers(draft, given)
    if not boundaries then return end
    draft:axis("pipe", #boundaries + 1)
    draft:use("pipeline_parallel", { starts = boundaries })
    draft:job("cluster.in_process", true)
    draft:job("cluster.devices", "0")
  end,
  ShardParallel = function(draft, given)
    local o, options = given.ShardParallel, given.AutoShardingOption
    stages.shard(draft, options, false)
    if o.devices or not stages.may_split(options) then
      microbatches(draft, o.num_micro_batches)
      local shape = o.devices or { 1, 1 }
      stages.fix(draft, shape[1], shape[2], options)
      draft.exact = o.devices and true
      return
    end
    draft:pin("pipe", 1)
    stages.search(draft, options, o.num_micro_batches)
  end,
  DataParallel = function(draft, given)
    microbatches(draft, given.DataParallel.num_micro_batches)
  end,
  Zero2Parallel = function(draft, given)
    draft:use("zero2")
    microbatches(draft, given.Zero2Parallel.num_micro_batches)
  end,
  Zero3Parallel = function(draft, given)
    draft:use("fsdp")
    microbatches(draft, given.Zero3Parallel.num_micro_batches)
  end,
  get_3d_parallel_method = function(draft, given)
    local o = given.get_3d_parallel_method
    microbatches(draft, o.num_micro_batches)
    stages.fix(draft, math.max(o.data_parallel or 1, 1), o.operator_parallel or 1, given.AutoShardingOption)
    draft.exact = (o.data_parallel or -1) ~= -1 or nil
    if not draft.exact then draft.axes.data = nil end  -- the ranks that are left
    if (o.pipeline_parallel or 1) > 1 then
      draft:axis("pipe", o.pipeline_parallel)
      draft:use("pipeline_parallel")
    end
  end,
}

-- Returns the methods that accept each section: by name, and the first as [1].
local function owners_of()
  local owners = {}
  for _, top in ipairs(tops) do
    for _, sections in pairs(holders[top] or {}) do
      for _, section in ipairs(sections) do
        owners[section] = owners[section] or { top }
        owners[section][top] = true
      end
    end
  end
  return owners
end

local function build(draft, given)
  local per_node = given.init.devices_per_node or given.init.num_devices_per_node
  if draft.given.init and per_node then
    draft:job("cluster.ranks", (given.init.num_nodes or 1) * per_node)
  end
  local chosen
  for _, top in ipairs(tops) do
    if draft.given[top] then
      if chosen then dialect.fail_of(top .. ".", "a step has one method, but got %s and %s", chosen, top) end
      chosen = top
    end
  end
  for _, section in ipairs { "DataParallel", "Zero2Parallel", "Zero3Parallel" } do
    if draft.given[section] and given[section].devices then
      stages.fix(draft, stages.product(given[section].devices), 1, given.AutoShardingOption)
    end
  end
  if not chosen and draft.alone then
    draft.unfinished = "[alpa] this is an option of a method, PipeshardParallel or another, and no strategy by itself"
    return
  end
  chosen = chosen or "ShardParallel"
  if given.marks.scopes and chosen ~= "PipeshardParallel" and chosen ~= "LocalPipelineParallel" then
    draft:warn("[alpa] mark_pipeline_boundary has no effect: the method %s has no stages", chosen)
  end
  for section, owners in pairs(owners_of()) do
    if draft.given[section] and not owners[chosen] then
      dialect.fail_of(section .. ".", "%s is an option of %s, but the method is %s", section, owners[1], chosen)
    end
  end
  draft:stand(draft.place_of(chosen .. "."))
  builders[chosen](draft, given)
end

local alpa = dialect.new {
  name = "alpa",
  axes = { "tensor", "data", "pipe" },
  sections = {
    { name = "PipeshardParallel", options = rows.pipeshard, rules = rows.pipeshard_rules },
    { name = "AutoLayerOption", options = rows.auto_layers, rules = rows.auto_layer_rules },
    { name = "ManualLayerOption", options = rows.manual_layers },
    { name = "ManualStageOption", options = rows.manual_stages, rules = rows.manual_stage_rules },
    { name = "UniformStageOption", options = rows.uniform_stages },
    { name = "AutoStageOption", options = rows.auto_stages, rules = rows.auto_stage_rules },
    { name = "AutoShardingOption", options = rows.sharding, rules = rows.sharding_rules },
    { name = "ShardParallel", options = rows.flat { { "auto_sharding_option", "table", nil, with = "build" } } },
    { name = "DataParallel", options = rows.flat() },
    { name = "Zero2Parallel", options = rows.flat() },
    { name = "Zero3Parallel", options = rows.flat() },
    { name = "get_3d_parallel_method", options = rows.three_d },
    { name = "LocalPipelineParallel", options = {} },
    { name = "init", options = rows.init, rules = rows.init_rules },
    { name = "parallelize", options = rows.parallelize },
    { name = "marks", options = rows.marks },
    { name = "random", options = rows.random },
  },
  expand = expand,
  build = build,
  finish = stages.finish,
}

-- Functions ------------------------------------------------------------------------------------------------------

local module = { from_job = alpa.from_job, rows = alpa.rows, util = {}, ray = {}, random = {} }

-- The table of options has the functions, too.
local function row(name, verdict, says)
  table.insert(module.rows, { section = "alpa", name = name, type = "function", verdict = verdict, says = says })
end

for _, name in ipairs { "AutoLayerOption", "ManualLayerOption", "ManualStageOption", "UniformStageOption",
  "AutoStageOption", "AutoShardingOption", "PipeshardParallel", "ShardParallel", "DataParallel", "Zero2Parallel",
  "Zero3Parallel",
  "get_3d_parallel_method", "LocalPipelineParallel" } do
  module[name] = alpa[name]
  row(name, "works")
end
for _, name in ipairs { "init", "shutdown", "util.disable_tqdm_globally", "parallelize", "mark_pipeline_boundary",
  "random.PRNGKey", "assert_allclose", "plan_to_method" } do
  row(name, "works")
end
for _, name in ipairs { "grad", "CreateStateParallel", "FollowParallel" } do row(name, "same plan") end
row("ray.init", "no effect", "ranks are the launcher's, which joins them")

local cluster, boundaries, seed, joined, made
local more_keys = {}  -- keys of the job, set by functions that belong to no section

-- Sets a key of the job, also of the latest strategy.
local function set_key(key, value)
  more_keys[key] = value
  if made then
    made.set = made.set or {}
    made.set[key] = value
  end
end

-- The ranks of the run; a second call has no effect, as in Alpa.
module.init = dialect.at_user(function(given)
  cluster = cluster or alpa.init(type(given) == "string" and { cluster = given } or given or {})
end)

module.shutdown = dialect.at_user(function()
  if not cluster then fail("[alpa] shutdown comes after init, but there was none") end
  cluster = nil
end)

-- The launcher determines the ranks; parallelize warns once.
module.ray.init = dialect.at_user(function(given)
  joined = alpa.init { address = type(given) == "table" and (given.address or given[1]) or given or "auto" }
end)

function module.util.disable_tqdm_globally() set_key("train.progress", false) end

local function is_step(value) return type(value) == "table" and (value.origin or value.methods) end

-- assert_allclose(a, b, rtol, atol), or with { rtol =, atol = }: the first step's gradients and the parameters after it
-- are compared with one device's before training begins, each element within atol + rtol * |b|. Without tolerances:
-- gradients, to rounding. A strategy among the arguments is the one that is compared, else the latest and all later
-- ones are.
module.assert_allclose = dialect.at_user(function(...)
  local given, step = {}, nil
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if is_step(value) then
      step = value
    elseif type(value) == "table" then
      given.rtol, given.atol = value.rtol or given.rtol, value.atol or given.atol
    elseif i == 3 or i == 4 then
      given[i == 3 and "rtol" or "atol"] = value
    end
  end
  local keys = { ["train.check_gradients"] = true, ["train.check_rtol"] = given.rtol,
    ["train.check_atol"] = given.atol }
  for _, name in ipairs { "rtol", "atol" } do
    local value = given[name]
    if value ~= nil and (type(value) ~= "number" or value < 0) then
      fail("[alpa] assert_allclose: %s must be a number of at least 0, but got %s", name, dialect.show(value))
    end
  end
  for key, value in pairs(keys) do
    if step then
      step.set = step.set or {}
      step.set[key] = value
    else
      set_key(key, value)
    end
  end
end)

-- The job's seed, of first values and dropout.
module.random.PRNGKey = dialect.at_user(function(number)
  seed = alpa.random { PRNGKey = number }
  return number
end)

-- A layer begins at the scope, or at each scope of a list.
module.mark_pipeline_boundary = dialect.at_user(function(scopes)
  if type(scopes) ~= "string" and type(scopes) ~= "table" then
    fail("[alpa] mark_pipeline_boundary names the scope at which a layer begins, \"blocks.2\", but got %s",
      dialect.show(scopes))
  end
  boundaries = boundaries or {}
  for _, scope in ipairs(type(scopes) == "table" and scopes or { scopes }) do boundaries[#boundaries + 1] = scope end
end)

-- First values are made in place, and an evaluation uses the plan of training: both return the given step's strategy.
local function same_step(name)
  module[name] = dialect.at_user(function(step)
    if type(step) ~= "table" or not (step.origin or step.methods) then
      fail("[alpa] %s takes the result of parallelize for the train step, but got %s", name, dialect.show(step))
    end
    return step
  end)
end
same_step "CreateStateParallel"
same_step "FollowParallel"

-- The joint graph already separates the gradients' and the step's sections.
function module.grad(f) return f end

-- Returns a saved plan or strategy as the method of a step.
module.plan_to_method = dialect.at_user(function(file)
  local plan, why = saved.load(file)
  if not plan then fail("[alpa] %s", why) end
  return plan
end)

-- Returns the strategy: parallelize(method), or parallelize { method = ..., job = FILE, ... }.
module.parallelize = dialect.at_user(function(given)
  given = given or {}
  if given.origin or given.format or given[1] then given = { method = given } end
  local method, more = given.method, {}
  if method and not method.origin then return method end
  for key, value in pairs(given) do
    if key ~= "method" and key ~= "job" then more[key] = value end
  end
  local parts = { job = given.job }
  if method then parts[#parts + 1] = method end
  for _, part in ipairs { cluster or joined or {}, seed or {} } do
    if part.origin then parts[#parts + 1] = part end
  end
  if boundaries then parts[#parts + 1] = alpa.marks { scopes = boundaries } end
  boundaries = nil  -- another step of the script has marks of its own
  if not dialect.is_empty(more) then parts[#parts + 1] = alpa.parallelize(more) end
  local strategy = alpa.strategy(parts)
  if joined and cluster then
    strategy.warnings = strategy.warnings or {}
    table.insert(strategy.warnings, joined.warnings[1])
  end
  made = strategy
  for key, value in pairs(more_keys) do set_key(key, value) end
  return strategy
end)

-- Functions of the host, and libraries that are refused.
local function elsewhere(name, why)
  return dialect.at_user(function() fail("[alpa] %s is refused: %s", name, why) end)
end
local from_job = "model, loss and optimizer come from the job, which names them ([model], [optimizer])"
for library, names in pairs { jax = { "grad", "value_and_grad", "jit", "numpy" }, flax = { "linen" },
  optax = { "adam", "adamw", "sgd" }, TrainState = { "create", "apply_gradients" } } do
  module[library] = {}
  for _, name in ipairs(names) do module[library][name] = elsewhere(library .. "." .. name, from_job) end
  row(library, "refused", from_job)
end
return module
