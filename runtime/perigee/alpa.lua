-- Alpa's names: parallelize { method = PipeshardParallel { ... } }, ShardParallel, DataParallel, Zero2Parallel,
-- Zero3Parallel, layer, stage and sharding options, mark_pipeline_boundary. In a job: [alpa] num_micro_batches = 4 for
-- PipeshardParallel, [alpa.AutoLayerOption], [alpa.Zero2Parallel], ... runtime/from_alpa.md compares.
local candidates = require "perigee.candidates"
local dialect = require "perigee.dialect"
local host = require "perigee.host"
local methods = require "perigee.methods"
local rows = require "perigee.alpa_options"
local saved = require "perigee.strategy"

local fail = dialect.fail

local equal_meshes = "all stages have as many devices"

-- Which sections are methods, and which fields of theirs hold another section.
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

-- Options that a stage has of its own: an AutoShardingOption, or its table. Returns all, these before the others.
local function sharding_of(own, options)
  local all = {}
  for key, value in pairs(options) do all[key] = value end
  local given = own.origin and own.origin.options.AutoShardingOption or own
  local names = {}
  for i, row in ipairs(rows.sharding) do names[i] = row[1] end
  for key, value in pairs(given) do
    local row
    for _, known in ipairs(rows.sharding) do
      if known[1] == key then row = known end
    end
    if not row then
      fail("AutoShardingOption has no option %s%s", dialect.show(key), host.suggest(tostring(key), names))
    end
    if not row.with then fail("the option %s of one stage is not available yet: give it for all stages", key) end
    all[key] = value
  end
  return all
end

-- Sharding within a stage ---------------------------------------------------------------------------------------

local function shard(draft, o, staged)
  local threshold = o.force_zero_stage_3_all_gather_threshold
  for _, name in ipairs { "all_gather", "all_to_all", "replicated_parameters" } do
    if not o["allow_" .. name] then
      draft.forbid = draft.forbid or {}
      table.insert(draft.forbid, name)
    end
  end
  if o.force_zero_stage_3 or not o.allow_replicated_parameters then
    draft:use("fsdp", { atorch_size_based_min_num_params = threshold and math.max(1, math.floor(threshold / 4)) })
  elseif o.prefer_reduce_scatter or (o.prefer_reduce_scatter == nil and staged) then
    draft:use("zero2")
  end
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
  local own = same_for_all(o.submesh_autosharding_option_dicts, "submesh_autosharding_option_dicts", #ids)
  local options = sharding_of(own or {}, given.AutoShardingOption)
  shard(draft, options, true)
  shapes(draft, same_for_all(o.submesh_physical_shapes, "submesh_physical_shapes", #ids),
    same_for_all(o.submesh_logical_shapes, "submesh_logical_shapes", #ids), options)
  return #ids, boundaries and starts_of(ids, boundaries)
end

local function uniform(draft, given, layers, boundaries)
  local o = given.UniformStageOption
  local count = o.num_stages or layers
  if not count then return nil end
  local options = sharding_of(o.submesh_autosharding_option or {}, given.AutoShardingOption)
  shard(draft, options, true)
  shapes(draft, o.submesh_physical_shape, o.submesh_logical_shape, options)
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
local function in_space(o, per_node)
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

-- Returns whether no stage has a larger share of the work, over its share of the devices, than the tolerance allows.
local function balanced(candidate, graph, tolerance)
  local shares = candidates.shares(candidate, graph)
  for _, share in ipairs(tolerance and shares or {}) do
    if share * candidate.pipe > 1 + tolerance then return false end
  end
  return true
end

-- The search, around what is given: `count` microbatches, and fits(candidate, graph).
local function search(draft, options, count, fits)
  draft.search = true
  if not may_split(options) then draft:pin("tensor", 1) end
  if draft.forbid then draft:pin("forbid", draft.forbid) end
  for level, name in ipairs { "zero1", "zero2", "fsdp" } do
    if draft:uses_method(name) then
      draft:pin("zero", level)
      draft:remove(name)
    end
  end
  draft.fits = function(candidate, graph)
    return (not count or candidate.microbatches == count) and (not fits or fits(candidate, graph))
  end
end

-- Returns into how many layers the blocks are shared out of which each keeps its input alone and runs again: a number,
-- "blocks" (each is one), or nil.
local function remat(given, by_marks, layers)
  if by_marks then return given.ManualLayerOption.remat_layer and "blocks" or nil end
  local o = given.AutoLayerOption
  if o.remat_mode == "none" then return nil end
  return o.remat_mode == "coarse_grained_remat" and layers or o.fine_grained_remat_layer_num or "blocks"
end

local function checkpoint(layers, graph)
  local row, count = candidates.row_of(graph)
  if not row then fail("[alpa] layers run again by blocks, but the model has no row of numbered modules") end
  local group = layers == "blocks" and 1 or math.max(1, math.ceil(count / layers))
  return { "checkpoint", { row .. ".*", group = group } }
end

methods.define {
  name = "alpa_places",
  doc = "Places parameters on axes of the mesh.",
  fields = { places = { type = "table", required = true } },
  apply = function(plan, given)
    for pattern, axes in pairs(given.places) do
      for axis, placement in pairs(axes) do
        local count = plan:place(pattern, axis, placement)
        plan:note(string.format("%d parameters of %s lie as %s on %s", count, pattern, placement, axis))
      end
    end
  end,
}

methods.define {
  name = "alpa_stage_inputs",
  doc = "Places what stages of a pipeline get from those before them.",
  fields = { stages = { type = "table", required = true } },
  apply = function(plan, given)
    for stage, axes in pairs(given.stages) do
      for axis, placement in pairs(axes) do
        local count = plan:place_sent(tonumber(stage), axis, placement)
        plan:note(string.format("%d inputs of stage %s lie as %s on %s", count, stage, placement, axis))
      end
    end
  end,
}

-- Returns the use of that method, nil where the list of tables says nothing.
local function stage_inputs(list)
  local stages = {}
  for i, axes in ipairs(list or {}) do
    if not dialect.is_empty(axes) then stages[tostring(i - 1)] = axes end
  end
  return not dialect.is_empty(stages) and { "alpa_stage_inputs", { stages = stages } } or nil
end

local function manual_layers(draft, given)
  local boundaries = given.marks.scopes or {}
  if #boundaries > 0 then return boundaries end
  local why = "manual layers begin at mark_pipeline_boundary(SCOPE), but nothing is marked"
  if not draft.alone then fail(why) end
  draft.unfinished = "[alpa] " .. why
end

local function pipeshard_strategy(draft, given)
  local o = given.PipeshardParallel
  local by_marks = o.layer_option == "manual" or o.layer_option == "ManualLayerOption"
  local boundaries = nil
  if by_marks then
    boundaries = manual_layers(draft, given)
    if not boundaries then return end
  end
  if not by_marks and given.marks.scopes then
    draft:warn("[alpa] mark_pipeline_boundary has no effect: layer_option is not \"manual\"")
  end
  local layers = by_marks and #boundaries + 1 or given.AutoLayerOption.layer_num
  if not o.layer_option then layers = 2 end
  if layers == "auto" then layers = nil end
  draft.ranks = o.devices
  if o.manual_sharding_option then draft:use("alpa_places", { places = o.manual_sharding_option }) end
  local schedule = o.pipeline_schedule == "1f1b_overlap_friendly" and "eager_1f1b" or o.pipeline_schedule
  local stages, starts
  if o.stage_option == "ManualStageOption" then
    stages, starts = manual(draft, given, layers, boundaries)
  elseif o.stage_option ~= "auto" and o.stage_option ~= "AutoStageOption" then
    stages, starts = uniform(draft, given, layers, boundaries)
  end
  local inputs, eps = o.stage_input_shardings, draft.given.AutoLayerOption and draft.given.AutoLayerOption.eps
  if stages then
    draft:axis("pipe", stages)
    if inputs and #inputs ~= stages then
      fail("stage_input_shardings has a table for each of the %d stages, but got %d", stages, #inputs)
    end
    if stages > 1 then
      draft:use("pipeline_parallel", { schedule = schedule, starts = starts, tolerance = not starts and eps or nil })
    end
    local placed = stage_inputs(inputs)
    if placed then draft:use(placed[1], placed[2]) end
    draft:use("gradient_accumulation", { microbatches = o.num_micro_batches })
    draft.remat = remat(given, by_marks, layers)
    return
  end
  shard(draft, given.AutoShardingOption, true)
  draft:pin("schedule", schedule)
  if given.AutoStageOption.use_hlo_cost_model then draft:pin("estimated", true) end
  draft.remat = remat(given, by_marks, layers)
  if draft.remat then draft:pin("checkpoint", false) end
  local per_node = given.init.devices_per_node or given.init.num_devices_per_node
  local allowed = in_space(given.AutoStageOption, per_node)
  draft.more = { stage_inputs(inputs) }
  search(draft, given.AutoShardingOption, o.num_micro_batches, function(candidate, graph)
    return candidate.pipe <= (layers or candidate.pipe) and allowed(candidate)
      and within(candidates.starts_of(candidate.strategy), boundaries)
      and balanced(candidate, graph, given.AutoStageOption.stage_imbalance_tolerance)
      and balanced(candidate, graph, eps) and (not inputs or candidate.pipe == #inputs)
  end)
end

-- Methods without stages, and with sizes -----------------------------------------------------------------------------

local function microbatches(draft, count)
  if count then draft:use("gradient_accumulation", { microbatches = count }) end
end

local builders = {
  PipeshardParallel = pipeshard_strategy,
  LocalPipelineParallel = function(draft, given)
    local boundaries = manual_layers(draft, given)
    if not boundaries then return end
    draft:axis("pipe", #boundaries + 1)
    draft:use("pipeline_parallel", { starts = boundaries })
    draft:job("cluster.in_process", true)
    draft:job("cluster.devices", "0")
  end,
  ShardParallel = function(draft, given)
    local o, options = given.ShardParallel, given.AutoShardingOption
    shard(draft, options, false)
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

-- Returns which methods take each section: by name, and the first as [1].
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
  chosen = chosen or "ShardParallel"
  for section, owners in pairs(owners_of()) do
    if draft.given[section] and not owners[chosen] then
      fail("%s is an option of %s, but the method is %s", section, owners[1], chosen)
    end
  end
  builders[chosen](draft, given)
end

local function finish(draft, strategy)
  if draft.unfinished then return strategy end
  if draft.fits then
    strategy.methods = function(_, graph)
      local pins = { methods = candidates.methods_of(draft) }
      for name, value in pairs(draft.pins) do pins[name] = value end
      if draft.remat then pins.methods[#pins.methods + 1] = checkpoint(draft.remat, graph) end
      local found, why = candidates.best(pins, 400, function(candidate) return draft.fits(candidate, graph) end)
      if not found then error("[alpa] " .. why, 0) end
      candidates.fields_of(found, "parallel_mode").order = draft.ranks
      for _, use in ipairs(draft.more or {}) do found[#found + 1] = use end
      return found
    end
  elseif draft.remat then
    local fixed = strategy.methods
    strategy.methods = function(_, graph)
      local list = {}
      for i, use in ipairs(fixed) do list[i] = use end
      list[#list + 1] = checkpoint(draft.remat, graph)
      return list
    end
  end
  return strategy
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
  finish = finish,
}

-- Functions ------------------------------------------------------------------------------------------------------

local module = { from_job = alpa.from_job, rows = alpa.rows, util = {}, ray = {}, random = {} }

-- Functions stand in the table of options, too.
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
  "grad", "random.PRNGKey", "assert_allclose", "CreateStateParallel", "FollowParallel", "plan_to_method" } do
  row(name, "works")
end
row("ray.init", "no effect", "ranks are the launcher's, which joins them")

local cluster, boundaries, seed, joined, made
local more_keys = {}  -- of the job, by functions that belong to no section

-- Sets a key of the job, also of the strategy that was made last.
local function set_key(key, value)
  more_keys[key] = value
  if made then
    made.set = made.set or {}
    made.set[key] = value
  end
end

-- The ranks that there are; a second call changes nothing, as there.
module.init = dialect.at_user(function(given)
  cluster = cluster or alpa.init(type(given) == "string" and { cluster = given } or given or {})
end)

module.shutdown = dialect.at_user(function()
  if not cluster then fail("[alpa] shutdown comes after init, but there was none") end
  cluster = nil
end)

-- Ranks are the launcher's; parallelize says so once.
module.ray.init = dialect.at_user(function(given)
  joined = alpa.init { address = type(given) == "table" and (given.address or given[1]) or given or "auto" }
end)

function module.util.disable_tqdm_globally() set_key("train.progress", false) end

-- The first step is compared with one device's before training begins; what is to be equal needs no name.
function module.assert_allclose() set_key("train.check_gradients", true) end

-- The job's seed, of first values and dropout.
module.random.PRNGKey = dialect.at_user(function(number)
  seed = alpa.random { PRNGKey = number }
  return number
end)

-- A layer begins at the scope, or one at each of a list.
module.mark_pipeline_boundary = dialect.at_user(function(scopes)
  if type(scopes) ~= "string" and type(scopes) ~= "table" then
    fail("[alpa] mark_pipeline_boundary names the scope at which a layer begins, \"blocks.2\", but got %s",
      dialect.show(scopes))
  end
  boundaries = boundaries or {}
  for _, scope in ipairs(type(scopes) == "table" and scopes or { scopes }) do boundaries[#boundaries + 1] = scope end
end)

-- First values are made where they lie, and an evaluation takes the plan of the training step: theirs is that of the
-- step that is given.
local function same_step(name)
  module[name] = dialect.at_user(function(step)
    if type(step) ~= "table" or not (step.origin or step.methods) then
      fail("[alpa] %s takes what parallelize returned for the train step, but got %s", name, dialect.show(step))
    end
    return step
  end)
end
same_step "CreateStateParallel"
same_step "FollowParallel"

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
  for _, part in ipairs { cluster or joined or {}, seed or {} } do
    if part.origin then parts[#parts + 1] = part end
  end
  if boundaries then parts[#parts + 1] = alpa.marks { scopes = boundaries } end
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

-- What stays with the host, and what is not here.
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
