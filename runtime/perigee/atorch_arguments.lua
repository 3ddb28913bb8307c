-- The arguments of ATorch's auto_accelerate other than methods: the model, the optimizer, the data and the search.
local dialect = require "perigee.dialect"
local host = require "perigee.host"
local optimizers = require "perigee.atorch_optimizers"

local fail, show = dialect.fail, dialect.show

-- Sets keys of a table of the job.
local function keys_of(name, spellings)
  return function(draft, given)
    for key, value in pairs(given) do draft:job(name .. "." .. ((spellings or {})[key] or key), value) end
  end
end

local function is_graph(model)
  return type(model) == "table" and model.ops ~= nil and model.scopes ~= nil
end

-- A job's file, the graph of a strategy function, or keys of [model].
local function set_model(draft, model)
  if type(model) == "string" then
    draft.file = model
  elseif not is_graph(model) then
    keys_of "model"(draft, model)
  end
end

-- A name, or a function of (parameters, options) that returns a name and options. It trains at a constant rate unless
-- there is a schedule.
local function set_optimizer(draft, optimizer, options)
  local name, more = optimizer, {}
  if type(optimizer) == "function" then
    local given = {}
    for key, value in pairs(options.optim_args or {}) do given[key] = value end
    name, more = optimizer("parameters", given)
    optimizers.check_returned(name)
    more = more or {}
  end
  local all = {}
  for _, arguments in ipairs { options.optim_args or {}, more } do
    for key, value in pairs(arguments) do all[key] = value end
  end
  optimizers.set_optimizer(draft, name, all)
  optimizers.set_arguments(draft, optimizers.optimizer(name), more, "optim_func")
  if not options.lr_scheduler_cls then optimizers.keep_rate(draft) end
end

local function set_arguments(draft, arguments, options)
  local name = options.optim_func
  optimizers.set_arguments(draft, type(name) == "string" and optimizers.optimizer(name) or "", arguments, "optim_args")
end

local function set_schedule(draft, name, options)
  optimizers.set_schedule(draft, name, options.lr_scheduler_args or {})
end

local function set_schedule_arguments(draft, arguments, options)
  if not options.lr_scheduler_cls then keys_of "lr_schedule"(draft, arguments) end
end

-- A function of the model that returns { { params = PATTERN, lr = ... }, ... }.
local function set_groups(draft, f)
  local groups, seen = {}, {}
  for _, given in ipairs(f("model") or {}) do
    local group = {}
    for key, value in pairs(given) do group[key == "params" and "match" or key] = value end
    local patterns = type(group.match) == "table" and group.match or { group.match }
    for _, pattern in ipairs(patterns) do
      if seen[pattern] then fail("a parameter is in one group, but %s is in two", show(pattern)) end
      seen[pattern] = true
    end
    group.match = patterns
    groups[#groups + 1] = group
  end
  draft:job("optimizer.group", groups)
  draft:job("optimizer.apart", true)
end

local loader = {
  batch_size = function(draft, value)
    if type(value) ~= "number" or value < 1 or value ~= math.floor(value) then
      fail("dataloader_args.batch_size is a number of samples of all ranks together, but got %s", show(value))
    end
    draft:job("batch.global", value)
    draft:job("batch.round", true)
  end,
  shuffle = function(draft, value)
    if type(value) ~= "boolean" then fail("dataloader_args.shuffle must be true or false, but got %s", show(value)) end
    draft:job("data.sampler", value and "shuffle" or "sequential")
  end,
  sampler = function() fail("dataloader_args.sampler is refused: name one in distributed_sampler_cls") end,
}
for _, name in ipairs { "drop_last", "num_workers", "pin_memory", "prefetch_factor", "persistent_workers" } do
  loader[name] = function(draft)
    draft:warn("[atorch] dataloader_args.%s has no effect: batches are made in the process of their rank", name)
  end
end

local function set_loader(draft, given)
  local names = {}
  for name in pairs(loader) do names[#names + 1] = name end
  for key, value in pairs(given) do
    if not loader[key] then fail("dataloader_args has no key %s%s", show(key), host.suggest(tostring(key), names)) end
    loader[key](draft, value)
  end
end

-- { tokens = { 4, 128 }, labels = { 4, 128 } }: the shapes of a batch, samples first.
local function check_sample(batch)
  local samples
  for field, shape in pairs(batch) do
    if type(field) ~= "string" or type(shape) ~= "table" or type(shape[1]) ~= "number" then
      return "lists the shape of each field, { tokens = { 4, 128 } }"
    end
    samples = samples or shape[1]
    if shape[1] ~= samples then return "has as many samples in each field" end
  end
  if not samples then return "has at least one field" end
end

local function set_sample(draft, batch)
  for _, shape in pairs(batch) do draft:job("batch.micro", shape[1]) end
  if batch.tokens and batch.tokens[2] then draft:job("data.sequence", batch.tokens[2]) end
end

-- A built-in order of samples, or a library that defines one.
local function check_sampler(name)
  local samplers = host.samplers()
  for _, known in ipairs(samplers) do
    if name == known then return end
  end
  if type(name) == "string" and name:find("%.so$") then return end
  return "names an order of samples (" .. table.concat(samplers, ", ") .. ") or a library NAME.so"
    .. (type(name) == "string" and host.suggest(name, samplers) or "")
end

-- Functions that are captured with the model (model.around).
local function around(name)
  return function(draft, f)
    draft.around = draft.around or {}
    draft.around[name] = f
  end
end

local arguments = {
  { "model", "string|table", nil, sets = set_model },
  { "optim_func", "string|function", nil, sets = set_optimizer },
  { "optim_args", "table", nil, sets = set_arguments },
  { "optim_param_func", "function", nil, sets = set_groups },
  { "dataset", "table", nil, sets = keys_of "data" },
  { "dataloader_args", "table", nil, sets = set_loader },
  { "distributed_sampler_cls", "any", nil, check = check_sampler, sets = "job.data.sampler" },
  { "loss_func", "function", nil, sets = around "loss" },
  { "prepare_input", "function", nil, sets = around "prepare" },
  { "model_input_format", "string", nil, one_of = { "unpack_sequence", "unpack_dict" },
    sets = function(draft, format)
      draft:job("model.unpack", format == "unpack_sequence" and "sequence" or "dict")
    end },
  { "lr_scheduler_cls", "string", nil, check = optimizers.check_schedule, sets = set_schedule },
  { "lr_scheduler_args", "table", nil, sets = set_schedule_arguments },
  { "excluded", "list", nil, of = "string", with = "build" },
  { "included", "list", nil, with = "expand" },
  { "load_strategy", "string|list|table", nil, with = "expand" },
  { "ignore_dryrun_on_load_strategy", "boolean", true, with = "auto_accelerate" },
  { "finetune_strategy", "boolean", false, with = "build" },
  { "save_strategy_to_file", "string", nil, with = "auto_accelerate" },
  { "verbose", "boolean", false, with = "auto_accelerate" },
  { "time_limit", "number", nil, with = "build",
    check = function(seconds) if seconds <= 0 then return "must be above 0" end end },
  { "sg_algo", "string", nil, lower = true, one_of = { "bo", "combination" }, with = "build" },
  { "find_unused_parameters", "boolean", false, no_effect = "the graph tells which parameters are unused" },
  { "sample_batch", "table", nil, check = check_sample, sets = set_sample },
  { "batch_size", "integer", nil, least = 1, sets = "job.batch.micro" },
  { "expand_sample_batch", "any", nil, refused = "models are captured without memory: leave it out" },
  { "sampler_seed", "integer", nil, least = 0, sets = "job.seed" },
  { "meta_init_offload_name", "any", nil, refused = "models are captured without memory: leave it out" },
}

local rules = {
  { function(o) return o.finetune_strategy and not o.load_strategy end, "finetune_strategy",
    "finetune_strategy needs load_strategy, but there is none" },
  { function(o) return o.excluded and o.load_strategy and not o.finetune_strategy end, "excluded",
    "excluded %s limits a search, but load_strategy says it all: add finetune_strategy = true" },
  { function(o) return (o.time_limit or o.sg_algo) and o.load_strategy and not o.finetune_strategy end, "time_limit",
    "time_limit and sg_algo are of a search, but load_strategy says it all: add finetune_strategy = true" },
  { function(o) return o.batch_size and o.sample_batch end, "sample_batch",
    "sample_batch and batch_size both say how many samples a microbatch has: give one of them" },
  { function(o) return (o.loss_func or o.prepare_input) and is_graph(o.model) end, "model",
    "loss_func and prepare_input are captured with the model, which is so already: call auto_accelerate at the top of "
    .. "the script, with model = a job's file" },
  { function(o) return o.distributed_sampler_cls and (o.dataloader_args or {}).shuffle ~= nil end,
    "distributed_sampler_cls", "distributed_sampler_cls and dataloader_args.shuffle both order the samples: give one" },
  { function(o) return o.included and o.load_strategy end, "included",
    "included %s is for a search without load_strategy: put it into load_strategy" },
}

return { options = arguments, rules = rules, is_graph = is_graph }
