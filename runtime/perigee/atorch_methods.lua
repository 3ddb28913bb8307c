-- ATorch's methods and the keys of their configs, for perigee.atorch: Perigee's own methods under ATorch's names, one
-- section for each method.
local dialect = require "perigee.dialect"
local host = require "perigee.host"

local fail, show = dialect.fail, dialect.show

local function pass(method, name, kind, more)
  local row = more or {}
  row[1], row[2], row.sets = name, kind, method .. "." .. name
  return row
end

local axes = { data = "data", zero = "zero", tensor = "tensor", sequence = "sequence", expert = "expert",
  pipeline = "pipe", pipe = "pipe", context = "context" }

-- The items after the axes: the order of ranks, whether there may be several instances of the mesh, and whether it is
-- a device mesh.
local function set_mesh(draft, items)
  local order, instances, device_mesh = items[2], items[3], items[4]
  if order and (type(order) ~= "table" or (#order == 0 and not dialect.is_empty(order))) then
    fail("the second item of parallel_mode is an order of ranks, but got %s", show(order))
  end
  for place, flag in pairs { third = instances, fourth = device_mesh } do
    if type(flag) ~= "boolean" then
      fail("the %s item of parallel_mode is true or false, but got %s", place, show(flag))
    end
  end
  for place in pairs(items) do
    if place > 4 then
      fail("parallel_mode is (axes, order, several instances, device mesh), but got an item %d", place)
    end
  end
  draft.ranks = order and #order > 0 and order or nil
  if device_mesh and draft.ranks then
    fail("a device mesh (the fourth item of parallel_mode) has its ranks in their own order, but the second item is %s",
      show(order))
  end
  draft.instances, draft.device_mesh = instances or nil, device_mesh or nil
end

-- ({ {name, size}, ... }, order, several instances, device mesh), or only the list of axes.
local function set_axes(draft, items)
  local list, first = items, items[1]
  if type(first) == "table" and (type(first[1]) == "table" or #first == 0) then list = first end
  local names, order = {}, {}
  for name in pairs(axes) do names[#names + 1] = name end
  for i, item in ipairs(list) do
    local pair = type(item) == "table" and type(item[1]) == "string" and type(item[2]) == "number"
    if not pair then fail("parallel_mode is a list of {name, size}, but item %d is %s", i, show(item)) end
    if not axes[item[1]] then
      fail("parallel_mode has no axis %s%s", show(item[1]), host.suggest(item[1], names))
    end
    order[i] = axes[item[1]]
    draft:axis(order[i], item[2])
  end
  draft.order = order
  if list ~= items then set_mesh(draft, items) end
end

local function set_checkpoint(draft, items)
  local use = draft:use("checkpoint")
  for _, scope in ipairs(items) do use[#use + 1] = scope end
end

local casts_inputs = "ops read floating-point data in param_dtype: leave it out"

-- Keys of torch's MixedPrecision.
local mixed_precision_rows = {
  { "param_dtype", "any" },
  { "reduce_dtype", "any" },
  { "buffer_dtype", "any", nil, check = function(name)
    if dialect.dtype(name) ~= "float32" then return "must be float32, since buffers are not cast" end
  end },
  { "keep_low_precision_grads", "boolean", false, refused = "the optimizer steps float32 masters: leave it out" },
  { "cast_forward_inputs", "boolean", true, refused = casts_inputs },
  { "cast_root_forward_inputs", "boolean", true, refused = casts_inputs },
}

local function set_mixed_precision(draft, given)
  for key, value in pairs(given) do
    dialect.check(draft, "mixed_precision", mixed_precision_rows, key, value)
  end
  local dtype, reduced = dialect.dtype(given.param_dtype), dialect.dtype(given.reduce_dtype)
  if dtype ~= "fp16" and dtype ~= "bf16" then
    fail("mixed_precision.param_dtype must be fp16 or bf16, but got %s", show(given.param_dtype))
  end
  draft:use("half", { dtype = dtype })
  if reduced == "float32" then
    draft:use("half", { gradients = "float32" })
  elseif reduced == dtype then
    draft:use("grad_comm", { dtype = dtype, scale = 1 })
  elseif given.reduce_dtype then
    fail("mixed_precision.reduce_dtype must be float32 or that of param_dtype, but got %s", show(given.reduce_dtype))
  end
end

local function fsdp_rows(method)
  local rows = {
    pass(method, "atorch_wrap_cls", "string|list"),
    pass(method, "atorch_size_based_min_num_params", "integer", { least = 1 }),
    pass(method, "atorch_ignored_cls", "string|list"),
    { "wrap_trainable_outmost", "boolean", nil, sets = method .. ".trainable_outmost" },
    { "fsdp_wrap_params_outmost", "boolean", nil, sets = method .. ".trainable_outmost" },
    { "sync_module_states", "boolean", nil, no_effect = "all ranks have the same first weights" },
    { "use_orig_params", "boolean", nil, no_effect = "parameters always keep their names and shapes" },
    { "mixed_precision", "table", nil, sets = set_mixed_precision },
    { "process_group", "any", nil, refused = "parallel_mode says which ranks are together" },
    { "device_id", "any", nil, refused = "a rank takes the device of its position on its host" },
    { "param_init_fn", "any", nil, refused = "weights are made from recipes, in parts: leave it out" },
    { "auto_wrap_policy", "any", nil, refused = "use atorch_wrap_cls or atorch_size_based_min_num_params" },
    { "ignored_modules", "string|list", nil, sets = function(draft, scopes)
      local ignored = {}
      for i, scope in ipairs(type(scopes) == "table" and scopes or { scopes }) do ignored[i] = scope .. ".**" end
      draft:use(method, { ignored = ignored })
    end },
  }
  local whole = method == "fsdp"
  local gathered = "parameters are whole between steps: nothing is gathered for a unit"
  local function third(row)
    if not whole then row.sets, row.no_effect = nil, gathered end
    rows[#rows + 1] = row
  end
  third(pass(method, "forward_prefetch", "boolean"))
  third(pass(method, "limit_all_gathers", "boolean"))
  third(pass(method, "backward_prefetch", "string", { one_of = { "BACKWARD_PRE", "BACKWARD_POST", "none" } }))
  third(pass(method, "reshard_after_forward", "boolean"))
  third { "sharding_strategy", "string", nil,
    one_of = { "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "NO_SHARD" },
    sets = function(draft, strategy, options)
      if strategy ~= "NO_SHARD" then return draft:use("fsdp", { sharding_strategy = strategy }) end
      if options.cpu_offload then
        fail('sharding_strategy = "NO_SHARD" keeps whole parameters on the device, but cpu_offload = true moves shards '
          .. "of them to the host: leave one of them out")
      end
      draft.no_shard = true
    end }
  rows[#rows + 1] = { "cpu_offload", "boolean", nil, sets = function(draft, offloads)
    if not offloads then return end
    if whole then draft:use("fsdp", { cpu_offload = true }) else draft:use("offload", { optimizer = true }) end
  end }
  return rows
end

local one_implementation = "there is one implementation"

local function zero_rows(method)
  local rows = method == "zero1" and {} or fsdp_rows(method)
  if method == "fsdp" then return rows end
  rows[#rows + 1] = { "use_ds_zero", "boolean", false, no_effect = one_implementation }
  rows[#rows + 1] = { "not_use_fsdp", "boolean", false, no_effect = one_implementation }
  return rows
end

-- Returns the linear layers whose weights have a size that is no multiple of 16, by scope.
local function odd_layers(graph)
  local odd = {}
  for _, parameter in ipairs(graph.parameters) do
    for _, size in ipairs(parameter.shape) do
      if #parameter.shape >= 2 and size % 16 ~= 0 then odd[parameter.name:match "^(.*)%.[^.]*$" or ""] = true end
    end
  end
  return odd
end

-- Layers by substrings of their scopes; exclude has precedence. As in ATorch, layers with a size that is no multiple of
-- 16 are left alone.
local function select_layers(draft, options)
  draft:afterwards(function(list, graph)
    local function has(path, names)
      for _, name in ipairs(names) do
        if path:find(name, 1, true) then return true end
      end
      return false
    end
    local match, odd, others = {}, odd_layers(graph), 0
    for _, scope in ipairs(graph.scopes) do
      local linear = scope.type:lower():find("linear", 1, true)
      local wanted = (not options.include or has(scope.path, options.include))
        and not (options.exclude and has(scope.path, options.exclude))
      if linear and wanted and not odd[scope.path] then
        match[#match + 1] = scope.path
      elseif linear then
        others = others + 1
      end
    end
    if others == 0 then return end
    if #match == 0 and (options.include or options.exclude) then
      dialect.fail_of("load_strategy",
        "fp8.include, fp8.exclude and sizes that are no multiple of 16 leave no linear layer")
    end
    for i, use in ipairs(list) do
      if use[1] == "fp8" then
        local config = { match = match }
        for key, value in pairs(use[2] or {}) do config[key] = value end
        list[i] = { "fp8", config }
      end
    end
    if #match == 0 then
      print "[atorch] fp8 leaves all linear layers alone: none has sizes that are multiples of 16"
      for i = #list, 1, -1 do
        if list[i][1] == "fp8" then table.remove(list, i) end
      end
    end
  end)
end

local fp8_rows = {
  { "include", "list", nil, of = "string", with = "fp8_format, whose row selects the layers" },
  { "exclude", "list", nil, of = "string", with = "fp8_format, whose row selects the layers" },
  { "verbose", "boolean", false, no_effect = "perigee plan --explain lists the layers" },
  { "margin", "integer", 0, least = 0, sets = "fp8.fp8_margin" },
  { "interval", "integer", 1, least = 1, sets = "fp8.fp8_interval" },
  { "fp8_format", "string", "HYBRID", lower = true, one_of = { "hybrid", "e4m3" }, always = true,
    sets = function(draft, format, options)
      draft:use("fp8", { fp8 = format })
      select_layers(draft, options)
    end },
  { "amax_history_len", "integer", 1024, least = 1, always = true, sets = "fp8.fp8_amax_history_len" },
  { "amax_compute_algo", "string", "max", one_of = { "max", "most_recent" }, always = true,
    sets = "fp8.fp8_amax_compute_algo" },
  { "reduce_amax", "boolean", true, sets = "fp8.fp8_reduce_amax" },
  { "emulate", "boolean", false, always = true, sets = "fp8.fp8_emulate" },
}

local checkpoint_rows = {
  { "wrap_class", "string|list", nil, sets = function(draft, scopes)
    set_checkpoint(draft, type(scopes) == "table" and scopes or { scopes })
  end },
  { "no_reentrant", "boolean", true, no_effect = "recomputation is a pass over the graph" },
  { "max_checkpoint_module_num", "integer", nil, least = 1, sets = "checkpoint.most" },
  { "selective_offload", "string|list", nil, sets = function(draft, scopes)
    local use = draft:use("offload")
    for i, scope in ipairs(type(scopes) == "table" and scopes or { scopes }) do use[i] = scope end
  end },
  { "use_te_impl", "boolean", false, no_effect = "recomputation is a pass over the graph" },
}

local function use(name, options, more)
  local section = { name = name, options = options or {}, uses = name, hidden = true }
  for key, value in pairs(more or {}) do section[key] = value end
  return section
end

local pairs_by_name = {}  -- pairs of register_replace_pair

local function set_replacements(draft, items)
  local config = draft:use("module_replace")
  for i, item in ipairs(items) do config[i] = pairs_by_name[item] or item end
end

local low = { "fp16", "bf16" }
local tensor_rows = {
  pass("tensor_parallel", "column", "list"), pass("tensor_parallel", "row", "list"),
  pass("tensor_parallel", "vocab", "list"), pass("tensor_parallel", "sequence", "boolean"),
}
local pipeline_rows = {
  pass("pipeline_parallel", "schedule", "string"), pass("pipeline_parallel", "chunks", "integer", { least = 1 }),
  pass("pipeline_parallel", "starts", "list"), pass("pipeline_parallel", "blocks", "string|list"),
  pass("pipeline_parallel", "group", "integer", { least = 1 }),
  pass("pipeline_parallel", "extra", "integer", { least = 0 }),
}

local methods = {
  { name = "parallel_mode", options = {}, items = set_axes, hidden = true },
  use("amp_native", {
    { "dtype", "dtype", "fp16", one_of = low, always = true, sets = "amp_native.dtype" },
    { "skip_if_nonfinite", "boolean", nil, sets = "amp_native.skip_if_nonfinite" },
  }, { text = "dtype" }),
  use("half", { { "dtype", "dtype", "fp16", one_of = low, always = true, sets = "half.dtype" } }, { text = "dtype" }),
  use("fp8", fp8_rows),
  use("module_replace", {}, { items = set_replacements }),
  use("zero1", zero_rows "zero1"),
  use("zero2", zero_rows "zero2"),
  use("fsdp", zero_rows "fsdp"),
  use("checkpoint", checkpoint_rows, { items = set_checkpoint }),
  use("tensor_parallel", tensor_rows),
  use("pipeline_parallel", pipeline_rows),
  use("sequence_parallel", {}),
  use("mixed_parallel", { pass("mixed_parallel", "tensor", "table"), pass("mixed_parallel", "pipeline", "table") }),
  use("ds_3d_parallel", { pass("ds_3d_parallel", "ds_config", "table"), pass("ds_3d_parallel", "tensor", "table"),
    pass("ds_3d_parallel", "pipeline", "table") }),
}

return { sections = methods, pairs_by_name = pairs_by_name }
