-- ATorch's names: status, result, best_strategy = auto_accelerate { model = "job.toml", load_strategy = { ... } }. The
-- arguments are in atorch_arguments.lua, the methods and their configs in atorch_methods.lua. In a job: [atorch]
-- load_strategy = ["zero2", ["amp_native", { dtype = "bf16" }]]. runtime/migration/from_atorch.md compares.
local dialect = require "perigee.dialect"
local host = require "perigee.host"
local profiler = require "perigee.profiler"
local of_arguments = require "perigee.atorch_arguments"
local of_methods = require "perigee.atorch_methods"
local strategies = require "perigee.strategy"

local fail, show = dialect.fail, dialect.show
local is_graph = of_arguments.is_graph

-- Methods ---------------------------------------------------------------------------------------------------

local methods = of_methods.sections

-- Aliases.
local aliases = { fsdp2 = "fsdp", deepspeed_3d_parallel = "ds_3d_parallel", auto_ddp = "parallel_mode" }
local idle = { native_dynamo = "programs are compiled anyway" }
local groups = { amp = { "amp_native", "fp8" }, zero = { "zero1", "zero2", "fsdp" } }

-- Strategies ------------------------------------------------------------------------------------------------

local function section_of(name)
  for _, section in ipairs(methods) do
    if section.name == name then return section end
  end
  return nil
end

local function check_method(name)
  if type(name) == "string" and (section_of(name) or idle[name]) then return end
  local names = {}
  for i, section in ipairs(methods) do names[i] = section.name end
  for alias in pairs(aliases) do names[#names + 1] = alias end
  fail("[atorch] there is no method %s%s", show(name), type(name) == "string" and host.suggest(name, names) or "")
end

-- Returns the config as a table: "bf16" is a dtype, {"use_ds_zero", true} a field, "Block" an item.
local function config_of(section, config)
  if config == nil then return {} end
  if type(config) ~= "table" then
    if section.text then return { [section.text] = config } end
    return section.items and { config } or config
  end
  for _, row in ipairs(section.options) do
    if config[1] == row[1] then return { [row[1]] = config[2] == nil or config[2] } end
  end
  if section.text and config[1] then return { [section.text] = config[1] } end
  return config
end

-- Adds the list's methods to the values of sections; of two equal names the first is kept.
local function take(values, list, check, warnings)
  for i, item in ipairs(list) do
    local name, config = item, nil
    if type(item) == "table" then name, config = item[1], item[2] end
    name = aliases[name] or name
    check_method(name)
    if idle[name] then
      warnings[#warnings + 1] = string.format("%s has no effect: %s", name, idle[name])
    elseif not values[name] then
      local section = section_of(name)
      if name == "checkpoint" and (config == nil or type(config) == "table" and dialect.is_empty(config)) then
        fail("[atorch] checkpoint needs the modules that it wraps, as in {\"checkpoint\", {\"Block\"}}, but item %d "
          .. "has none", i)
      end
      values[name] = check(name, config_of(section, config))
    end
  end
end

-- Returns a strategy as a list, or nil and the reason. Text is JSON or a file's name.
local function read(given)
  if type(given) ~= "string" then return given end
  if given:find("^%s*[{%[]") then return host.parse_json(given) end
  if given:byte(1) == 128 then fail("[atorch] pickled strategy: save it from Perigee as JSON") end
  return strategies.load(given)
end

local function expand(values, check, warnings)
  local o = values.auto_accelerate or {}
  if o.included then take(values, o.included, check, warnings) end
  if not o.load_strategy then return end
  local list, why = read(o.load_strategy)
  if not list then
    values.auto_accelerate.failed = why
    return
  end
  if list.methods or list.format then
    values.auto_accelerate.ready = list
  else
    take(values, list, check, warnings)
  end
end

-- Rules between methods, those of ATorch that apply here.
local function combine(draft)
  local found
  for _, name in ipairs(groups.zero) do
    if draft:uses_method(name) then
      if found then fail("%s and %s exclude each other: both keep the optimizer's state in parts", found, name) end
      found = name
    end
  end
  if draft:uses_method("half") and draft:uses_method("amp_native") then
    local half, amp = draft.uses.half.dtype, draft.uses.amp_native.dtype
    if half ~= amp then fail("half is %s, but amp_native %s: give them one dtype", half, amp) end
    draft:remove("amp_native")
  end
  local degrees = { tensor_parallel = "tensor", pipeline_parallel = "pipe", sequence_parallel = "sequence" }
  for method, axis in pairs(degrees) do
    if draft:uses_method(method) and not draft.axes[axis] and not draft.search then
      fail('%s needs its degree in parallel_mode, {"%s", 2}, but there is none', method, axis)
    end
  end
end

local function members(names)
  local all = {}
  for _, name in ipairs(names or {}) do
    name = aliases[name] or name
    if not groups[name] then check_method(name) end
    for _, member in ipairs(groups[name] or { name }) do all[member] = true end
  end
  return all
end

-- Returns a variable of a search by trials: its options that are not excluded, each { METHOD, PINS }.
local function variable(out, list)
  local options = {}
  for _, option in ipairs(list) do
    if not out[option[1]] then options[#options + 1] = option[2] end
  end
  return options
end

-- ATorch's searches: a variable for each of its groups; a combination's axes, microbatches and schedule are found by
-- the planner.
local function by_trials(draft, o, out)
  local variables = {}
  local function add(list) variables[#variables + 1] = variable(out, list) end
  local precision = draft:uses_method("half") or draft:uses_method("amp_native") or draft:uses_method("fp8")
  if not precision then
    add { { "none", {} }, { "amp_native", { methods = { { "amp_native", { dtype = "bf16" } } } } } }
  end
  if draft.pins.zero == nil then
    add { { "none", { zero = 0 } }, { "zero1", { zero = 1 } }, { "zero2", { zero = 2 } }, { "fsdp", { zero = 3 } } }
  end
  if draft.pins.tensor == nil and draft.pins.pipe == nil and not draft.axes.tensor and not draft.axes.pipe then
    add { { "none", { tensor = 1, pipe = 1 } }, { "parallel_mode", {} } }
  end
  if not draft:uses_method("module_replace") then
    local kept = { methods = { { "module_replace", { enabled = false } } } }
    add { { "none", kept }, { "module_replace", { methods = { { "module_replace" } } } } }
  end
  if draft.pins.checkpoint == nil then
    add { { "none", { checkpoint = false } }, { "checkpoint", { checkpoint = true } } }
  end
  draft.trials = { algorithm = o.sg_algo, variables = variables, time_limit = o.time_limit }
end

-- Refuses parts of parallel_mode that a search does not keep.
local function check_mesh(draft)
  local part = draft.instances and "several instances (the third item of parallel_mode) are"
    or draft.ranks and "an order of ranks (the second item of parallel_mode) is"
  for _, axis in ipairs { "sequence", "zero" } do
    if draft:size(axis) > 1 then part = string.format("the axis %s of parallel_mode is", axis) end
  end
  if part then
    fail("%s of a strategy that is given, but this is searched for all ranks: give load_strategy without "
      .. "finetune_strategy", part)
  end
end

-- Makes a search of the draft: fixed methods become pins, the precision is kept, the rest is searched.
local function search(draft, o)
  local out, wanted = members(o.excluded), {}
  for name in pairs(draft.uses) do
    if out[name] then fail("%s is both excluded and included: take it out of one", name) end
  end
  local again = o.finetune_strategy
  if not again then draft:pin_zero() end
  if draft.no_shard then draft:pin("zero", 0) end
  for _, name in ipairs(groups.zero) do
    if draft:uses_method(name) then draft:remove(name) end
  end
  if draft:uses_method("checkpoint") then
    if not again then draft:pin("checkpoint", false) else draft:remove("checkpoint") end
  end
  for _, name in ipairs { "tensor_parallel", "pipeline_parallel", "mixed_parallel" } do
    if draft:uses_method(name) then
      if not again and name ~= "mixed_parallel" then wanted[name] = true end
      draft:remove(name)
    end
  end
  if out.tensor_parallel or out.mixed_parallel then draft:pin("tensor", 1) end
  if out.pipeline_parallel or out.mixed_parallel then draft:pin("pipe", 1) end
  if out.checkpoint then draft:pin("checkpoint", false) end
  if out.zero1 and out.zero2 and out.fsdp then draft:pin("zero", 0) end
  draft.search = true
  if o.sg_algo then
    by_trials(draft, o, out)
  elseif o.time_limit then
    draft:pin("time_limit", o.time_limit)
  end
  draft.accept = function(found)
    local has = {}
    for _, item in ipairs(found) do has[type(item) == "table" and item[1] or item] = true end
    for name in pairs(out) do
      if has[name] then return false end
    end
    for name in pairs(wanted) do
      if not has[name] then return false end
    end
    return true
  end
end

local function build(draft, options)
  local o = options.auto_accelerate
  if draft.no_shard then draft:remove("fsdp") end  -- replicas, as of DistributedDataParallel
  draft.whole = draft:uses_method("ds_3d_parallel")  -- it requires all three axes
  local given = draft.given.auto_accelerate or {}
  if given.failed then
    draft.unfinished = "[atorch] load_strategy: " .. given.failed
  elseif not o.load_strategy or o.finetune_strategy then
    combine(draft)
    check_mesh(draft)
    search(draft, o)
  elseif not given.ready then
    combine(draft)
  end
  draft.origin.options.auto_accelerate = nil
end

-- Returns the saved strategy of load_strategy, with the keys that the arguments set.
local function ready(strategy, saved)
  if saved.format then return saved end
  strategy.methods = saved.methods
  for key, value in pairs(saved.set or {}) do
    strategy.set = strategy.set or {}
    if strategy.set[key] == nil then strategy.set[key] = value end
  end
  return strategy
end

local sections = { { name = "auto_accelerate", options = of_arguments.options, rules = of_arguments.rules,
  hidden = true, always = true } }
for _, section in ipairs(methods) do sections[#sections + 1] = section end

local unread = false  -- load_strategy of the latest strategy could not be read

local atorch = dialect.new {
  name = "atorch",
  axes = { "tensor", "sequence", "expert", "zero", "data", "pipe" },
  sections = sections,
  expand = expand,
  build = build,
  blame = "load_strategy",
  finish = function(draft, strategy)
    local given = draft.given.auto_accelerate or {}
    unread = given.failed ~= nil
    if draft.file then strategy.job = draft.file end
    if draft.around and given.ready and given.ready.format then
      fail("[atorch] load_strategy is a plan, which says nothing of the model: name the script of loss_func and "
        .. "prepare_input in the job (model.around)")
    end
    strategy.around = draft.around
    return given.ready and ready(strategy, given.ready) or strategy
  end,
}

local module = { from_job = atorch.from_job, rows = atorch.rows }

local function is_graph_text(text) return type(text) == "string" and text:find("^%s*perigee%.graph/") ~= nil end

-- Returns the item of module_replace for a pair, or nil for a value that is not a pair.
local function replacement(name, pair)
  if type(pair) ~= "table" then return nil end
  local from, to = pair[1], pair[2]
  if is_graph_text(from) and is_graph_text(to) then return { name = name, pattern = from, replacement = to } end
  if type(from) ~= "string" or is_graph_text(from) or is_graph_text(to) then return nil end
  local item = type(to) == "string" and { name = to } or replacement(name, to)
  if not item or item.within then return nil end
  item.within = { from }
  return item
end

-- Registers a pair under a name for module_replace: { pattern, replacement }, graphs in text form, or { class,
-- replacement } of a module type or scope, whose replacement is a built-in pair's name or such a pair of graphs.
-- `supported_dtypes`: the pair is used only where the model computes in one of them; nil: in any.
module.register_replace_pair = dialect.at_user(function(name, supported_dtypes, pair)
  if type(name) ~= "string" or of_methods.pairs_by_name[name] then
    fail("[atorch] register_replace_pair takes a new name, but got %s", show(name))
  end
  local item = replacement(name, pair)
  if not item then
    fail("[atorch] register_replace_pair takes { pattern, replacement }, graphs as text (runtime/methods/"
      .. "module_replace.md), or { class, the name of a built-in pair }, but got %s", show(pair))
  end
  for _, dtype in ipairs(supported_dtypes or {}) do
    local known = dialect.dtype(dtype)
    if not known then fail("[atorch] supported_dtypes are dtypes, but one is %s", show(dtype)) end
    item.dtypes = item.dtypes or {}
    table.insert(item.dtypes, ({ fp16 = "float16", bf16 = "bfloat16" })[known] or known)
  end
  of_methods.pairs_by_name[name] = item
end)

local function result_of(strategy, given)
  local keys = strategy.set or {}
  return {
    model = given.model, optim = { name = keys["optimizer.name"], options = given.optim_args },
    dataloader = { batch_size = keys["batch.global"] },
    loss_func = given.loss_func and "of the script" or "of the model",
    prepare_input = given.prepare_input and "of the script" or "of the model",
    lr_scheduler = { kind = keys["lr_schedule.kind"] },
    args = { use_optim_backward = false, requires_set_gradient_accumulation_boundary = false },
  }
end

-- Returns true, the result and the strategy, which the script returns; or false, nil, nil and the reason. With the
-- graph of a strategy function as model, a search runs at once; else once the model is known.
module.auto_accelerate = dialect.at_user(function(given)
  if type(given) ~= "table" or given.model == nil then
    fail("[atorch] auto_accelerate needs model: a job's file, keys of [model], or a strategy function's graph")
  end
  local strategy, about = atorch.make(given), nil
  if type(strategy.methods) == "function" and (is_graph(given.model) or unread) then
    local ok, found, known = pcall(strategy.methods, {}, given.model)
    if not ok then return false, nil, nil, (tostring(found):gsub("^[^%[]*:%d+: %[", "[")) end  -- a reason, not a place
    strategy.methods, about = found, known
  end
  if is_graph(given.model) and type(strategy.methods) == "table" then
    strategy.plan = profiler.plan(strategy.methods)
  end
  if given.verbose and type(strategy.methods) == "table" then
    for _, item in ipairs(strategy.methods) do print(show(item)) end
  end
  local result = result_of(strategy, given)
  if about then  -- a search that returned a bound
    result.search = { seconds = about.seconds, lower_bound = about.lower_bound, stopped = about.stopped,
      gap = 1 - about.lower_bound / about.seconds }
  end
  if given.ignore_dryrun_on_load_strategy == false then
    if not is_graph(given.model) then
      fail("[atorch] ignore_dryrun_on_load_strategy = false measures the plan: call auto_accelerate in a strategy "
        .. "function, with model = its graph")
    end
    result.dryrun = profiler.measure(strategy.methods)
  end
  if given.save_strategy_to_file then
    if type(strategy.methods) ~= "table" then
      fail("[atorch] save_strategy_to_file requires the result of the search: call auto_accelerate in a strategy "
        .. "function, with model = its graph")
    end
    strategies.save(given.save_strategy_to_file, { methods = strategy.methods, set = strategy.set })
    if strategy.plan then
      strategies.save(given.save_strategy_to_file:gsub("%.json$", "") .. ".plan.json", strategy.plan)
    end
  end
  return true, result, strategy
end)

return module
