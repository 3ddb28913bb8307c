-- Sharding, layers and stages of perigee.alpa: the effects of its options on a draft and on found plans.
local automatic = require "perigee.alpa_auto"
local candidates = require "perigee.candidates"
local dialect = require "perigee.dialect"
local methods = require "perigee.methods"
local rows = require "perigee.alpa_options"
local sizes = require "perigee.sizes"

local fail = dialect.fail

-- Options of a single stage: an AutoShardingOption, or its table. Returns all options, the stage's own first.
local function sharding_of(draft, own, options)
  local all = {}
  for key, value in pairs(options) do all[key] = value end
  for key, value in pairs(own.origin and own.origin.options.AutoShardingOption or own) do
    local row = dialect.check(draft, "AutoShardingOption", rows.sharding, key, value)
    if row.sets then row.sets(draft, value) end
    all[key] = value
  end
  dialect.check_rules(rows.sharding_rules, all)
  return all
end

-- Sharding within a stage ---------------------------------------------------------------------------------------

-- The properties that a plan must not have if an option is false (parallel_mode's forbid).
local forbidden = {
  allow_all_gather = "all_gather", allow_all_to_all = "all_to_all", allow_mixed_mesh_shape = "nd_shardings",
  allow_recompute_heavy_op = "replicated_products", allow_replicated_parameters = "replicated_parameters",
}

-- `staged`: a pipeline's gradients of several microbatches.
local function shard(draft, o, staged)
  local threshold = o.force_zero_stage_3_all_gather_threshold
  for option, name in pairs(forbidden) do
    if o[option] == false then
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

-- Returns whether the ranks of a stage may be an axis tensor.
local function may_split(o) return o.enable_auto_sharding and not o.force_data_parallel end

-- Returns the ranks over the batch and over tensor of a logical mesh of these sizes; the batch is over the first dim,
-- or over the dim of the option.
local function axes_of(first, second, o)
  local data, tensor = first, second
  if o.force_batch_dim_to_mesh_dim == 1 then data, tensor = second, first end
  if tensor > 1 and not may_split(o) then
    fail("a logical mesh of %d x %d splits operators, but the sharding option forbids it", data, tensor)
  end
  return data, tensor
end

-- Lets the exact solver shard each op on the submesh of its stage; storage and recomputation are other methods'.
local function solve(draft) draft:use("auto_sharding", { choose = {} }) end

-- `staged`: the exact solver shards each op within its stage.
local function fix(draft, first, second, o, staged)
  local data, tensor = axes_of(first, second, o)
  if o.force_batch_dim_to_mesh_dim == 1 then
    draft.order = { "data", "tensor", "pipe" }  -- in Alpa the last one varies fastest
  end
  draft.exact = true
  draft:axis("data", data)
  if tensor > 1 then
    draft:axis("tensor", tensor)
    if staged then solve(draft) else draft:use("tensor_parallel") end
  end
end

-- Layers and stages -----------------------------------------------------------------------------------------------

local schedules = { ["1f1b_overlap_friendly"] = "eager_1f1b", inference = "gpipe" }

local function trains(given) return given.PipeshardParallel.pipeline_schedule ~= "inference" end

local function product(shape) return shape[1] * (shape[2] or 1) end

-- Returns the starts of the stages that consist of these layers, for layers that begin at marks.
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

-- Returns whether a list of one item for each stage has different items.
local function varies(list, what, count)
  if not list then return false end
  if #list ~= count then fail("%s has one item for each of the %d stages, but got %d", what, count, #list) end
  for _, item in ipairs(list) do
    if not dialect.same(item, list[1]) then return true end
  end
  return false
end

local function shape_of(physical, logical)
  if logical and physical and product(logical) ~= product(physical) then
    fail("a logical shape has as many devices as the physical one, but got %s and %s", dialect.show(logical),
      dialect.show(physical))
  end
  return logical or physical
end

local function shapes(draft, physical, logical, options)
  local shape = shape_of(physical, logical)
  if shape then return fix(draft, shape[1], shape[2] or 1, options, true) end
  draft.open = may_split(options)  -- the axes follow from the ranks of the run
  draft.swapped = options.force_batch_dim_to_mesh_dim == 1
end

-- The options that a single stage may set: the logical view of its submesh.
local of_a_stage = { force_batch_dim_to_mesh_dim = true, force_data_parallel = true, enable_auto_sharding = true }

-- Returns the sharding options of the stages; those of the first hold for all.
local function options_of_stages(draft, dicts, given, count)
  local all = {}
  for i = 1, count do
    all[i] = sharding_of(draft, dicts and dicts[i] or {}, given.AutoShardingOption)
    for key, value in pairs(all[i]) do
      if not of_a_stage[key] and not dialect.same(value, all[1][key]) then
        fail("%s holds for the whole plan, but submesh_autosharding_option_dicts has %s for stage %d and %s for stage "
          .. "0: give all stages the same", key, dialect.show(value), i - 1, dialect.show(all[1][key]))
      end
    end
  end
  return all
end

-- Stages on submeshes of their own.
local function submeshes(draft, o, options, count)
  local splits, list = false, {}
  for i = 1, count do
    local shape = shape_of((o.submesh_physical_shapes or {})[i], (o.submesh_logical_shapes or {})[i])
    if not shape then
      fail("submesh_autosharding_option_dicts that differ require submesh_physical_shapes, but there are none")
    end
    local data, tensor = axes_of(shape[1], shape[2] or 1, options[i])
    local axes = { { "tensor", tensor }, { "data", data } }
    if options[1].force_batch_dim_to_mesh_dim == 1 then axes = { axes[2], axes[1] } end
    splits = splits or tensor > 1
    list[i] = axes
  end
  draft.submeshes = list
  if splits then solve(draft) end
end

local function manual(draft, given, layers, boundaries)
  local o = given.ManualStageOption
  local ids = o.forward_stage_layer_ids
  local count = check_ids(ids, layers)
  local apart = false
  for _, name in ipairs { "autosharding_option_dicts", "physical_shapes", "logical_shapes" } do
    apart = varies(o["submesh_" .. name], "submesh_" .. name, #ids) or apart
  end
  local options = options_of_stages(draft, o.submesh_autosharding_option_dicts, given, apart and #ids or 1)
  shard(draft, options[1], trains(given))
  if apart then
    submeshes(draft, o, options, #ids)
  else
    shapes(draft, (o.submesh_physical_shapes or {})[1], (o.submesh_logical_shapes or {})[1], options[1])
  end
  if boundaries then return #ids, { starts = starts_of(ids, boundaries) } end
  local parts = {}
  for i, stage in ipairs(ids) do parts[i] = #stage end
  draft.layers = count
  return #ids, { layers = count, part_layers = parts }
end

-- Returns the number of stages, and where they begin as fields of pipeline_parallel. Nothing: to be found.
local function uniform(draft, given, layers, boundaries)
  local o = given.UniformStageOption
  local count = o.num_stages or layers
  if not count then return nil end
  layers = layers or count
  local options = sharding_of(draft, o.submesh_autosharding_option or {}, given.AutoShardingOption)
  shard(draft, options, trains(given))
  shapes(draft, o.submesh_physical_shape, o.submesh_logical_shape, options)
  if layers % count ~= 0 then
    fail("num_stages divides the %d layers%s, but got %d", layers, boundaries and " that the marks make" or "", count)
  end
  if not boundaries then
    draft.layers = layers
    return count, { layers = layers }
  end
  local starts = {}
  for i = 1, count - 1 do starts[i] = boundaries[i * layers / count] end
  return count, { starts = starts }
end

-- The search under the given options for methods without stages: `count` microbatches.
local function search(draft, options, count)
  draft.search = true
  draft:pin("checkpoint", false)  -- only the layers that remat_mode or remat_layer names are recomputed
  draft.microbatches = count
  draft.swapped = options.force_batch_dim_to_mesh_dim == 1
  if not may_split(options) then draft:pin("tensor", 1) end
  if draft.forbid then draft:pin("forbid", draft.forbid) end
  draft:pin_zero()
  draft.fits = function(candidate)
    if count and candidate.microbatches ~= count then return false, "num_micro_batches" end
    return true
  end
end

-- Returns the number of layers of blocks that keep only their input and are recomputed, "blocks" (each block is a
-- layer), or nil.
local function remat(given, by_marks, layers)
  if by_marks then return given.ManualLayerOption.remat_layer and "blocks" or nil end
  local o = given.AutoLayerOption
  if o.remat_mode == "none" then return nil end
  return o.remat_mode == "coarse_grained_remat" and layers or o.fine_grained_remat_layer_num or "blocks"
end

local function checkpoint(layers, graph)
  local row, count = candidates.row_of(graph)
  if not row then
    dialect.fail_of("layer_option", "layers run again by blocks, but the model has no row of numbered modules")
  end
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
  doc = "Places the values that stages of a pipeline receive from earlier ones.",
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

-- Returns the config of the method, nil if the list of tables is empty.
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
  if not draft.alone then dialect.fail_of("layer_option", why) end
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
  if not o.layer_option and not given.UniformStageOption.num_stages then layers = 2 end
  if layers == "auto" then layers = nil end
  draft.ranks = o.devices
  if o.manual_sharding_option then
    draft:use("alpa_places", { places = o.manual_sharding_option }, "manual_sharding_option")
  end
  local schedule = schedules[o.pipeline_schedule] or o.pipeline_schedule
  draft.remat = remat(given, by_marks, layers)
  if not trains(given) then
    if draft.remat then
      fail('layers are recomputed in the backward pass, but pipeline_schedule = "inference" has none')
    end
    draft:job("train.forward_only", true)
  end
  local stages, cut
  if o.stage_option == "ManualStageOption" then
    stages, cut = manual(draft, given, layers, boundaries)
  elseif o.stage_option ~= "auto" and o.stage_option ~= "AutoStageOption" then
    stages, cut = uniform(draft, given, layers, boundaries)
  end
  if not stages then
    shard(draft, given.AutoShardingOption, trains(given))
    return automatic.plan(draft, given, { layers = boundaries or layers, schedule = schedule,
      data_only = not may_split(given.AutoShardingOption) })
  end
  local inputs = o.stage_input_shardings
  draft:axis("pipe", stages)
  if inputs and #inputs ~= stages then
    fail("stage_input_shardings has a table for each of the %d stages, but got %d", stages, #inputs)
  end
  if stages > 1 then
    local options = { "stage_option", "UniformStageOption.num_stages", "AutoLayerOption.layer_num", "layer_option" }
    cut.schedule = schedule
    if cut.layers then cut.tolerance = given.AutoLayerOption.eps end
    draft:use("pipeline_parallel", cut, options)
  end
  if draft.open and not inputs then automatic.open(draft, given, stages, cut, schedule) end
  local placed = stage_inputs(inputs)
  if placed then draft:use(placed[1], placed[2], "stage_input_shardings") end
  draft:use("gradient_accumulation", { microbatches = o.num_micro_batches }, "num_micro_batches")
end

-- The strategy --------------------------------------------------------------------------------------------------------

local heavy = { ["aten::mm"] = true, ["aten::bmm"] = true, ["aten::addmm"] = true, ["aten::baddbmm"] = true,
  ["aten::convolution"] = true, ["perigee::attention"] = true, ["perigee::grouped_mm"] = true }

-- A layer has a product or convolution of its own.
local function check_layers(count, graph)
  local most = 0
  for _, op in ipairs(graph.ops) do
    if heavy[op.op] and not op.backward then most = most + 1 end
  end
  if count > most then
    local text = "layer_num is at most the model's %d products and convolutions, but got %d"
    dialect.fail_of("AutoLayerOption.layer_num", text, most, count)
  end
end

-- Returns a plan's methods, including those that depend on the model, without those of `left_out`.
local function completed(draft, uses, graph, left_out)
  if draft.layers then check_layers(draft.layers, graph) end
  local list = {}
  for _, use in ipairs(uses) do
    if not (left_out and left_out[use[1]]) then list[#list + 1] = use end
  end
  if draft.remat then list[#list + 1] = checkpoint(draft.remat, graph) end
  return list
end

local of_the_table = { pipeline_parallel = true, gradient_accumulation = true }

local function finish(draft, strategy)
  if draft.unfinished then return strategy end
  if draft.stages then
    strategy.methods = function(_, graph)
      return automatic.found(draft, completed(draft, candidates.methods_of(draft), graph))
    end
  elseif draft.fits then
    strategy.methods = function(job, graph)
      local pins = { methods = candidates.methods_of(draft) }
      for name, value in pairs(draft.pins) do pins[name] = value end
      local found, why = candidates.best({ pins }, 400, draft.fits)
      if not found and draft.microbatches then
        local sized = sizes.of_microbatches(pins, draft.microbatches, job, graph)
        if #sized > 0 then found = candidates.best(sized, 400, draft.fits) end
      end
      if not found then error("[alpa] " .. why, 0) end
      if draft.swapped then automatic.data_first(candidates.fields_of(found, "parallel_mode")) end
      return found
    end
  elseif draft.remat or draft.layers or draft.given_stages then
    local fixed = strategy.methods
    strategy.methods = function(job, graph)
      if not automatic.opens(draft, (job.cluster or {}).ranks) then return completed(draft, fixed, graph) end
      local list = completed(draft, candidates.methods_of(draft), graph, of_the_table)
      return automatic.found(draft, list, draft.given_stages)
    end
  end
  return strategy
end

return {
  shard = shard,
  fix = fix,
  may_split = may_split,
  product = product,
  search = search,
  manual_layers = manual_layers,
  pipeshard = pipeshard_strategy,
  finish = finish,
}
