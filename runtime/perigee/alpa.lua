-- Alpa's names: parallelize { method = PipeshardParallel { ... } }, ShardParallel, DataParallel, Zero2Parallel, Zero3Parallel,
-- layer, stage and sharding options, mark_pipeline_boundary. In a job: [alpa] num_micro_batches = 4 for PipeshardParallel,
-- [alpa.AutoLayerOption], [alpa.Zero2Parallel], ... runtime/from_alpa.md compares.
local candidates = require "perigee.candidates"
local dialect = require "perigee.dialect"
local saved = require "perigee.strategy"

local fail = dialect.fail

local equal_meshes = "all stages have as many devices"
local no_cost = "the search weighs measured times where there are any, and says which share of a prediction they are"
local no_pin = "placements of single tensors are fixed by a method of a script (perigee.methods.define, plan:place)"

local pipeshard = {
  { "num_micro_batches", "integer", 1, least = 1, with = "build" },
  { "layer_option", "string|table", nil, one_of = { "manual", "auto" }, with = "build" },
  { "stage_option", "string|table", nil, one_of = { "auto", "uniform" }, with = "build" },
  { "devices", "list", nil, missing = "ranks are the launcher's: --nproc, --nodes, cluster.ranks or init" },
  { "pipeline_schedule", "string", "1f1b", one_of = { "1f1b", "gpipe", "inference", "1f1b_overlap_friendly" }, with = "build",
    but = { inference = { missing = "perigee evaluate runs the forward pass of a checkpoint" } } },
  { "default_auto_sharding_option", "table", nil, with = "build" },
  { "stage_input_shardings", "list", nil, missing = no_pin },
  { "manual_sharding_option", "table", nil, missing = no_pin },
}

local pipeshard_rules = {
  { function(o) return o.stage_input_shardings and o.manual_sharding_option end, "manual_sharding_option",
    "stage_input_shardings and manual_sharding_option exclude each other" },
}

local auto_layers = {
  { "layer_num", "integer|string", "auto", least = 1, one_of = { "auto" }, with = "build" },
  { "remat_mode", "string", "none", one_of = { "none", "coarse_grained_remat", "fine_grained_remat" }, with = "build",
    but = { fine_grained_remat = { missing = "coarse_grained_remat runs each block again" } } },
  { "fine_grained_remat_layer_num", "integer", nil, missing = "see remat_mode" },
  { "eps", "number", 0.5, least = 0, missing = "layers are cut between blocks, so that the slowest has as little work as can be" },
}

local manual_layers = { { "remat_layer", "boolean", false, with = "build" } }

local function check_lists(value)
  for _, item in ipairs(value) do
    if type(item) ~= "table" then return "is a list of lists" end
  end
end

local manual_stages = {
  { "forward_stage_layer_ids", "list", nil, check = check_lists, with = "build" },
  { "submesh_physical_shapes", "list", nil, check = check_lists, with = "build" },
  { "submesh_logical_shapes", "list", nil, check = check_lists, with = "build" },
  { "submesh_autosharding_option_dicts", "list", nil, check = check_lists, with = "build" },
}

local manual_stage_rules = {
  { function(o) return not o.forward_stage_layer_ids end, "forward_stage_layer_ids",
    "forward_stage_layer_ids says which layers are a stage, { { 0 }, { 1 } }, but it is not given" },
}

local uniform_stages = {
  { "num_stages", "integer", nil, least = 1, with = "build" },
  { "submesh_physical_shape", "list", nil, of = "integer", with = "build" },
  { "submesh_logical_shape", "list", nil, of = "integer", with = "build" },
  { "submesh_autosharding_option", "table", nil, with = "build" },
}

local auto_stages = {
  { "submesh_physical_shape_space", "string", "power_of_two", with = "build",
    one_of = { "all", "power_of_two", "small_power_of_two", "manual" } },
  { "manually_specified_submeshes", "list", nil, check = check_lists, with = "build" },
  { "submesh_logical_shape_space", "string", "single_node_model_parallel", with = "build",
    one_of = { "same_as_physical", "data_parallel_only", "model_parallel_only", "single_node_model_parallel", "all" } },
  { "layer_profile_mode", "string", "composition", one_of = { "composition", "individual" },
    no_effect = "ops are profiled, not layers" },
  { "use_hlo_cost_model", "boolean", false, missing = no_cost },
  { "stage_imbalance_tolerance", "number", nil, missing = "stages are cut so that the slowest has as little work as can be" },
  { "profiling_database_filename", "string", nil, missing = "perigee profile --import FILE takes over stored times" },
  { "cached_profile_result", "string", nil, missing = "perigee profile keeps times in the user's cache folder" },
}

local auto_stage_rules = {
  { function(o) return o.submesh_physical_shape_space == "manual" and not o.manually_specified_submeshes end,
    "manually_specified_submeshes", 'submesh_physical_shape_space = "manual" takes manually_specified_submeshes, but they are not given' },
}

local sharding = {
  { "enable_auto_sharding", "boolean", true, with = "build" },
  { "force_data_parallel", "boolean", false, with = "build" },
  { "force_batch_dim_to_mesh_dim", "integer", nil, with = "build",
    check = function(v) if v ~= 0 then return "must be 0, the axis data (others are not available yet)" end end },
  { "force_zero_stage_3", "boolean", false, with = "build" },
  { "prefer_reduce_scatter", "boolean", false, with = "build" },
  { "allow_all_gather", "boolean", true, missing = no_pin },
  { "allow_all_to_all", "boolean", true, missing = no_pin },
  { "allow_replicated_parameters", "boolean", true, missing = no_pin },
  { "allow_mixed_mesh_shape", "boolean", false, missing = "axes are sharded over one by one" },
  { "allow_recompute_heavy_op", "boolean", false, missing = "products are not repeated on several ranks" },
  { "force_simple_heuristic", "string", "", no_effect = "the search stays exact" },
  { "all_reduce_threshold", "integer", nil, least = 1, sets = function(draft, bytes)
    draft:use("grad_comm", { bucket_mb = bytes / 2 ^ 20 })
  end },
  { "force_zero_stage_3_all_gather_threshold", "integer", nil, missing = "units of fsdp are the blocks: its field match" },
}

local sharding_rules = {
  { function(o) return o.force_zero_stage_3 and o.prefer_reduce_scatter end, "prefer_reduce_scatter",
    "prefer_reduce_scatter and force_zero_stage_3 exclude each other" },
}

-- A method without stages: { num_micro_batches, devices }.
local function flat(more)
  local rows = {
    { "num_micro_batches", "integer", nil, least = 1, with = "build" },
    { "devices", "list", nil, of = "integer", with = "build",
      check = function(v) if #v ~= 2 then return "is a logical mesh, { 4, 2 }: data and tensor" end end },
  }
  for _, row in ipairs(more or {}) do rows[#rows + 1] = row end
  return rows
end

local no_state = "first values are made where they lie, and checkpoints are read by any plan"

local three_d = {
  { "num_micro_batches", "integer", nil, least = 1, with = "build" },
  { "data_parallel", "integer", nil, with = "build",
    check = function(v) if v < 1 and v ~= -1 then return "is a number of ranks, or -1: those that are left" end end },
  { "operator_parallel", "integer", nil, least = 1, with = "build" },
  { "pipeline_parallel", "integer", nil, least = 1, with = "build" },
}

local init = {
  { "cluster", "string", "ray", one_of = { "ray", "local" }, with = "a rule: local is one host" },
  { "address", "string", nil, no_effect = "ranks are the launcher's, which joins them" },
  { "num_nodes", "integer", nil, least = 1, with = "build" },
  { "devices_per_node", "integer", nil, least = 1, with = "build" },
  { "num_devices_per_node", "integer", nil, least = 1, with = "build" },
}

local init_rules = {
  { function(o) return o.cluster == "local" and (o.num_nodes or 1) > 1 end, "num_nodes",
    'cluster = "local" is this host alone, but num_nodes is %s' },
  { function(o) return o.devices_per_node and o.num_devices_per_node end, "num_devices_per_node",
    "num_devices_per_node and devices_per_node are two spellings of one option: give one" },
}

local parallelize = {
  { "static_argnums", "any", "auto", no_effect = "shapes are static" },
  { "donate_argnums", "any", "auto", no_effect = "buffers are used again as soon as nothing reads them" },
  { "batch_argnums", "list", { 1 }, of = "integer", missing = "data is bound to the model's inputs by name" },
}

local marks = { { "scopes", "list", nil, of = "string", with = "build" } }

-- Which sections are methods, and which fields of theirs hold another section.
local tops = { "PipeshardParallel", "ShardParallel", "DataParallel", "Zero2Parallel", "Zero3Parallel",
  "get_3d_parallel_method" }
local holders = {
  PipeshardParallel = { layer_option = { "AutoLayerOption", "ManualLayerOption" },
    stage_option = { "ManualStageOption", "UniformStageOption", "AutoStageOption" },
    default_auto_sharding_option = { "AutoShardingOption" } },
  ShardParallel = { auto_sharding_option = { "AutoShardingOption" } },
}

-- { layer_option = AutoLayerOption { layer_num = 2 } } gives the section AutoLayerOption; in a job
-- { layer_option = { AutoLayerOption = { layer_num = 2 } } } does.
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
      end
    end
  end
end

-- Sharding within a stage ---------------------------------------------------------------------------------------

local function shard(draft, o)
  if o.force_zero_stage_3 then draft:use("fsdp") end
  if o.prefer_reduce_scatter then draft:use("zero2") end
end

-- Returns whether the ranks of a stage may be split over tensor.
local function may_split(o) return o.enable_auto_sharding and not o.force_data_parallel end

local function fix(draft, data, tensor, o)
  if tensor > 1 and not may_split(o) then
    fail("a logical mesh of %d x %d splits operators, but the sharding option forbids it", data, tensor)
  end
  draft:axis("data", data)
  if tensor > 1 then
    draft:axis("tensor", tensor)
    draft:use("tensor_parallel")
  end
end

-- Layers and stages -----------------------------------------------------------------------------------------------

local function product(shape) return shape[1] * (shape[2] or 1) end

-- Returns the starts of stages of these layers, for layers that begin at marks.
local function starts_of(ids, boundaries)
  local starts = {}
  for i = 2, #ids do starts[#starts + 1] = boundaries[ids[i][1]] end
  return starts
end

local function check_ids(ids, count)
  local next_id = 0
  for i, stage in ipairs(ids) do
    if #stage == 0 then fail("item %d of forward_stage_layer_ids is empty", i) end
    for _, id in ipairs(stage) do
      if id ~= next_id then
        fail("forward_stage_layer_ids lists the layers 0, 1, ... in order, but item %d has %s in the place of %d", i,
          dialect.show(id), next_id)
      end
      next_id = next_id + 1
    end
  end
  if count and next_id ~= count then
    fail("forward_stage_layer_ids covers all %d layers, but it lists %d", count, next_id)
  end
  return next_id
end

local function same_for_all(list, what, count)
  if not list then return nil end
  if #list ~= count then fail("%s has one item for each of the %d stages, but got %d", what, count, #list) end
  for i, item in ipairs(list) do
    if not dialect.same(item, list[1]) then
      fail("%s of several kinds are not available yet (%s): item %d is %s, item 1 is %s", what, equal_meshes, i,
        dialect.show(item), dialect.show(list[1]))
    end
  end
  return list[1]
end

local function shapes(draft, physical, logical, options)
  if logical and physical and product(logical) ~= product(physical) then
    fail("a logical shape has as many devices as the physical one, but got %s and %s", dialect.show(logical),
      dialect.show(physical))
  end
  local shape = logical or physical
  if shape then fix(draft, shape[1], shape[2] or 1, options) end
end

local function manual(draft, given, layers, boundaries)
  local o = given.ManualStageOption
  local ids = o.forward_stage_layer_ids
  check_ids(ids, layers)
  if not boundaries then
    for i, stage in ipairs(ids) do
      if #stage ~= #ids[1] then
        fail("stages of unequal numbers of automatic layers are not available yet: mark the layers "
          .. "(mark_pipeline_boundary), but item %d has %d and item 1 has %d", i, #stage, #ids[1])
      end
    end
  end
  local more = same_for_all(o.submesh_autosharding_option_dicts, "submesh_autosharding_option_dicts", #ids)
  local options = {}
  for key, value in pairs(given.AutoShardingOption) do options[key] = value end
  for key, value in pairs(more or {}) do
    if options[key] == nil and key ~= "force_batch_dim_to_mesh_dim" then
      fail("submesh_autosharding_option_dicts has no option %s", dialect.show(key))
    end
    options[key] = value
  end
  if more then shard(draft, options) end
  shapes(draft, same_for_all(o.submesh_physical_shapes, "submesh_physical_shapes", #ids),
    same_for_all(o.submesh_logical_shapes, "submesh_logical_shapes", #ids), options)
  return #ids, boundaries and starts_of(ids, boundaries)
end

local function uniform(draft, given, layers, boundaries)
  local o = given.UniformStageOption
  local count = o.num_stages or layers
  if not count then return nil end
  shapes(draft, o.submesh_physical_shape, o.submesh_logical_shape, given.AutoShardingOption)
  if not boundaries then return count end
  if layers % count ~= 0 then
    fail("num_stages divides the %d layers that the marks make, but got %d", layers, count)
  end
  local starts = {}
  for i = 1, count - 1 do starts[i] = boundaries[i * layers / count] end
  return count, starts
end

local spaces = {
  all = function() return true end,
  power_of_two = function(n) return n == 2 ^ math.floor(math.log(n) / math.log(2) + 0.5) end,
  small_power_of_two = function(n) return n == 1 or n == 2 or n == 4 end,
}

-- Returns whether a candidate's stages are submeshes that the option lets the search try.
local function in_space(o, nodes, per_node)
  return function(candidate)
    local devices, tensor = candidate.tensor * candidate.data, candidate.tensor
    local view = o.submesh_logical_shape_space
    if view == "data_parallel_only" and tensor > 1 then return false end
    if view == "model_parallel_only" and candidate.data > 1 then return false end
    if view == "single_node_model_parallel" and per_node and tensor > per_node then return false end
    if view == "same_as_physical" and tensor ~= math.min(devices, per_node or devices) then return false end
    if o.submesh_physical_shape_space ~= "manual" then
      return spaces[o.submesh_physical_shape_space](devices)
    end
    for _, shape in ipairs(o.manually_specified_submeshes) do
      if product(shape) == devices then return true end
    end
    return false
  end
end

local function within(starts, boundaries)
  if not boundaries or not starts then return true end
  local known = {}
  for _, scope in ipairs(boundaries) do known[scope] = true end
  for _, scope in ipairs(starts) do
    if not known[scope] then return false end
  end
  return true
end

-- The search, around what is given. `most_stages`: no more than layers.
local function search(draft, options, count, fits)
  draft.search = true
  if not may_split(options) then draft:pin("tensor", 1) end
  for level, name in ipairs { "zero1", "zero2", "fsdp" } do
    if draft:uses_method(name) then
      draft:pin("zero", level)
      draft:remove(name)
    end
  end
  draft.fits = function(candidate)
    return (not count or candidate.microbatches == count) and (not fits or fits(candidate))
  end
end

local function pipeshard_strategy(draft, given)
  local o = given.PipeshardParallel
  local by_marks = o.layer_option == "manual" or o.layer_option == "ManualLayerOption"
  local boundaries = by_marks and (given.marks.scopes or {}) or nil
  if by_marks and #boundaries == 0 then
    local why = "manual layers begin at mark_pipeline_boundary(SCOPE), but nothing is marked"
    if not draft.alone then fail(why) end
    draft.unfinished = "[alpa] " .. why
    return
  end
  if not by_marks and given.marks.scopes then
    draft:warn("[alpa] mark_pipeline_boundary has no effect: layer_option is not \"manual\"")
  end
  local layers = by_marks and #boundaries + 1 or given.AutoLayerOption.layer_num
  if not o.layer_option then layers = 2 end
  if layers == "auto" then layers = nil end
  shard(draft, given.AutoShardingOption)
  local again = by_marks and given.ManualLayerOption.remat_layer
    or given.AutoLayerOption.remat_mode == "coarse_grained_remat"
  local schedule = o.pipeline_schedule == "1f1b_overlap_friendly" and "eager_1f1b" or o.pipeline_schedule
  local stages, starts
  if o.stage_option == "ManualStageOption" then
    stages, starts = manual(draft, given, layers, boundaries)
  elseif o.stage_option ~= "auto" and o.stage_option ~= "AutoStageOption" then
    stages, starts = uniform(draft, given, layers, boundaries)
  end
  if stages then
    draft:axis("pipe", stages)
    if stages > 1 then draft:use("pipeline_parallel", { schedule = schedule, starts = starts }) end
    draft:use("gradient_accumulation", { microbatches = o.num_micro_batches })
    if again then draft:use("checkpoint", { "auto" }) end
    return
  end
  draft:pin("schedule", schedule)
  if again then draft:pin("checkpoint", true) end
  local per_node = given.init.devices_per_node or given.init.num_devices_per_node
  local allowed = in_space(given.AutoStageOption, given.init.num_nodes, per_node)
  search(draft, given.AutoShardingOption, o.num_micro_batches, function(candidate)
    return candidate.pipe <= (layers or candidate.pipe) and allowed(candidate)
      and within(candidates.starts_of(candidate.strategy), boundaries)
  end)
end

-- Methods without stages, and with sizes -----------------------------------------------------------------------------

local function microbatches(draft, count)
  if count then draft:use("gradient_accumulation", { microbatches = count }) end
end

local builders = {
  PipeshardParallel = pipeshard_strategy,
  ShardParallel = function(draft, given)
    local o, options = given.ShardParallel, given.AutoShardingOption
    shard(draft, options)
    if o.devices or not may_split(options) then
      microbatches(draft, o.num_micro_batches)
      local shape = o.devices or { 1, 1 }
      return fix(draft, shape[1], shape[2], options)
    end
    draft:pin("pipe", 1)
    search(draft, options, o.num_micro_batches)
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
    fix(draft, math.max(o.data_parallel or 1, 1), o.operator_parallel or 1, given.AutoShardingOption)
    if (o.pipeline_parallel or 1) > 1 then
      draft:axis("pipe", o.pipeline_parallel)
      draft:use("pipeline_parallel")
    end
  end,
}

local function build(draft, given)
  local per_node = given.init.devices_per_node or given.init.num_devices_per_node
  if draft.given.init and (given.init.num_nodes or per_node) then
    draft:job("cluster.ranks", (given.init.num_nodes or 1) * (per_node or 1))
  end
  local chosen
  for _, top in ipairs(tops) do
    if draft.given[top] then
      if chosen then fail("a step has one method, but got %s and %s", chosen, top) end
      chosen = top
    end
  end
  for _, section in ipairs { "DataParallel", "Zero2Parallel", "Zero3Parallel" } do
    if draft.given[section] and given[section].devices then
      fix(draft, given[section].devices[1], 1, given.AutoShardingOption)
    end
  end
  if not chosen and draft.alone then
    draft.unfinished = "[alpa] this is an option of a method, PipeshardParallel or another, and no strategy by itself"
    return
  end
  builders[chosen or "ShardParallel"](draft, given)
end

local function finish(draft, strategy)
  if not draft.fits or draft.unfinished then return strategy end
  local pins = { methods = candidates.methods_of(draft) }
  for name, value in pairs(draft.pins) do pins[name] = value end
  strategy.methods = function()
    local found, why = candidates.best(pins, 400, draft.fits)
    if not found then error("[alpa] " .. why, 0) end
    return found
  end
  return strategy
end

local alpa = dialect.new {
  name = "alpa",
  axes = { "tensor", "data", "pipe" },
  sections = {
    { name = "PipeshardParallel", options = pipeshard, rules = pipeshard_rules },
    { name = "AutoLayerOption", options = auto_layers },
    { name = "ManualLayerOption", options = manual_layers },
    { name = "ManualStageOption", options = manual_stages, rules = manual_stage_rules },
    { name = "UniformStageOption", options = uniform_stages },
    { name = "AutoStageOption", options = auto_stages, rules = auto_stage_rules },
    { name = "AutoShardingOption", options = sharding, rules = sharding_rules },
    { name = "ShardParallel", options = flat { { "auto_sharding_option", "table", nil, with = "build" } } },
    { name = "DataParallel", options = flat() },
    { name = "Zero2Parallel", options = flat() },
    { name = "Zero3Parallel", options = flat() },
    { name = "get_3d_parallel_method", options = three_d },
    { name = "init", options = init, rules = init_rules },
    { name = "parallelize", options = parallelize },
    { name = "marks", options = marks },
  },
  expand = expand,
  build = build,
  finish = finish,
}

-- Functions --------------------------------------------------------------------------------------------------------------

local module = { from_job = alpa.from_job, rows = alpa.rows, util = {} }
for _, name in ipairs { "AutoLayerOption", "ManualLayerOption", "ManualStageOption", "UniformStageOption", "AutoStageOption",
  "AutoShardingOption", "PipeshardParallel", "ShardParallel", "DataParallel", "Zero2Parallel", "Zero3Parallel",
  "get_3d_parallel_method" } do
  module[name] = alpa[name]
end

local cluster, boundaries

-- The ranks that there are; a second call changes nothing, as there.
module.init = dialect.at_user(function(given)
  cluster = cluster or alpa.init(type(given) == "string" and { cluster = given } or given or {})
end)

module.shutdown = dialect.at_user(function()
  if not cluster then fail("[alpa] shutdown comes after init, but there was none") end
  cluster = nil
end)

function module.util.disable_tqdm_globally() end

-- A layer begins at the scope, or one at each of a list.
module.mark_pipeline_boundary = dialect.at_user(function(scopes)
  if type(scopes) ~= "string" and type(scopes) ~= "table" then
    fail("[alpa] mark_pipeline_boundary names the scope at which a layer begins, \"blocks.2\", but got %s",
      dialect.show(scopes))
  end
  boundaries = boundaries or {}
  for _, scope in ipairs(type(scopes) == "table" and scopes or { scopes }) do boundaries[#boundaries + 1] = scope end
end)

-- The joint graph has the gradients' and the step's sections apart already.
function module.grad(f) return f end

-- Returns a plan or a strategy that was saved as the method of a step.
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
  if cluster then parts[#parts + 1] = cluster end
  if boundaries then parts[#parts + 1] = alpa.marks { scopes = boundaries } end
  if not dialect.is_empty(more) then parts[#parts + 1] = alpa.parallelize(more) end
  return alpa.strategy(parts)
end)

-- What stays with the host, and what has no use here.
local function elsewhere(name, why)
  module[name] = dialect.at_user(function() fail("[alpa] %s: %s", name, why) end)
end
for _, name in ipairs { "jax", "flax", "optax", "TrainState" } do
  elsewhere(name, "model, loss and optimizer come from the job, which names them ([model], [optimizer])")
end
elsewhere("CreateStateParallel", no_state)
elsewhere("FollowParallel", no_state)
elsewhere("LocalPipelineParallel", "perigee train --check-gradients runs all ranks in one process")
elsewhere("assert_allclose", "perigee train --check-gradients compares a step with one device's")
elsewhere("PRNGKey", "the job's seed is that of first values and dropout")

return module
