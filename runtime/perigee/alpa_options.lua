-- The tables of options of perigee.alpa: a row gives the effect of an option (perigee.dialect documents its fields).

local function check_ranks(value)
  for _, rank in ipairs(value) do
    if type(rank) ~= "number" or rank < 0 or rank ~= math.floor(rank) then return "is a list of ranks" end
  end
end

-- Arguments of the train step: 0 is its state, the following ones are the model's inputs.
local function check_arguments(value)
  local seen = {}
  if #value == 0 then return "names one argument at least" end
  for _, argument in ipairs(value) do
    if type(argument) ~= "number" or argument ~= math.floor(argument) or seen[argument] then
      return "is a list of different arguments"
    end
    if argument < 1 then return "lists arguments after the state, which is argument 0" end
    seen[argument] = true
  end
end

-- { ["head.weight"] = { tensor = "S0" } }
local function check_places(value)
  for pattern, axes in pairs(value) do
    if type(pattern) ~= "string" or type(axes) ~= "table" then
      return 'places parameters on axes, { ["head.weight"] = { tensor = "S0" } }'
    end
  end
end

-- { {}, { data = "S0", tensor = "S1" } }
local function check_inputs(value)
  for i, axes in ipairs(value) do
    if type(axes) ~= "table" then
      return 'has a table for each stage, of the placements of its inputs, { {}, { data = "S0" } }'
    end
    for axis, placement in pairs(axes) do
      if i == 1 then return "says nothing of the first stage, {}: its inputs are the batch" end
      if type(axis) ~= "string" or type(placement) ~= "string" then
        return 'has a table for each stage, of the placements of its inputs, { {}, { data = "S0" } }'
      end
    end
  end
end

-- Alpa's saved files are Python's; a profile is a file of Perigee's.
local function check_profile(file)
  if not file:find("%.sqlite$") then
    return 'names a file of "perigee profile", NAME.sqlite (pickled and .npy tables are Python\'s: profile anew)'
  end
end

-- The table of stages is saved as JSON.
local function check_table(file)
  if not file:find("%.json$") then
    return 'names a table of stages, NAME.json, which is written where it does not exist (pickled and .npy tables are '
      .. "Python's)"
  end
end

local pipeshard = {
  { "num_micro_batches", "integer", 1, least = 1, with = "build" },
  { "layer_option", "string|table", nil, one_of = { "manual" }, with = "build" },
  { "stage_option", "string|table", nil, one_of = { "auto", "uniform" }, with = "build" },
  { "devices", "list", nil, check = check_ranks, with = "build" },
  { "pipeline_schedule", "string", "1f1b", with = "build",
    one_of = { "1f1b", "gpipe", "inference", "1f1b_overlap_friendly" } },
  { "default_auto_sharding_option", "table", nil, with = "build" },
  { "stage_input_shardings", "list", nil, check = check_inputs, with = "build" },
  { "manual_sharding_option", "table", nil, check = check_places, with = "build" },
}

local pipeshard_rules = {
  { function(o) return o.stage_input_shardings and o.manual_sharding_option end, "manual_sharding_option",
    "stage_input_shardings and manual_sharding_option exclude each other" },
}

local auto_layers = {
  { "layer_num", "integer|string", "auto", least = 1, one_of = { "auto" }, with = "build" },
  { "remat_mode", "string", "none", one_of = { "none", "coarse_grained_remat", "fine_grained_remat" }, with = "build" },
  { "fine_grained_remat_layer_num", "integer", nil, least = 1, with = "remat_mode" },
  { "eps", "number", 0.5, least = 0, with = "build" },
}

local auto_layer_rules = {
  { function(o) return o.fine_grained_remat_layer_num and o.remat_mode ~= "fine_grained_remat" end,
    "fine_grained_remat_layer_num", 'fine_grained_remat_layer_num = %s needs remat_mode = "fine_grained_remat"' },
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
  { "manually_specified_submeshes", "list", nil, check = check_lists, with = "build", idle = function(o)
    return o.submesh_physical_shape_space ~= "manual" and 'submesh_physical_shape_space is not "manual"' or nil
  end },
  { "submesh_logical_shape_space", "string", "single_node_model_parallel", with = "build",
    one_of = { "same_as_physical", "data_parallel_only", "model_parallel_only", "single_node_model_parallel", "all" } },
  { "layer_profile_mode", "string", "composition", one_of = { "composition", "individual" }, with = "build" },
  { "use_hlo_cost_model", "boolean", false, with = "build" },
  { "stage_imbalance_tolerance", "number", nil, least = 0, with = "build" },
  { "profiling_database_filename", "string", nil, check = check_profile, sets = "job.cluster.profile" },
  { "cached_profile_result", "string", nil, check = check_table, with = "build" },
}

local auto_stage_rules = {
  { function(o) return o.submesh_physical_shape_space == "manual" and not o.manually_specified_submeshes end,
    "submesh_physical_shape_space",
    'submesh_physical_shape_space = "manual" takes manually_specified_submeshes, but they are not given' },
}

local sharding = {
  { "enable_auto_sharding", "boolean", true, with = "build" },
  { "force_data_parallel", "boolean", false, with = "build" },
  { "force_batch_dim_to_mesh_dim", "integer", nil, with = "build",
    check = function(v) if v ~= 0 and v ~= 1 then return "is 0 or 1, a dim of the logical mesh" end end },
  { "force_zero_stage_3", "boolean", false, with = "build" },
  { "prefer_reduce_scatter", "boolean", nil, with = "build: the default is true with stages, else false" },
  { "allow_all_gather", "boolean", true, with = "build" },
  { "allow_all_to_all", "boolean", true, with = "build" },
  { "allow_replicated_parameters", "boolean", true, with = "build" },
  { "allow_mixed_mesh_shape", "boolean", nil, with = "build" },
  { "allow_recompute_heavy_op", "boolean", nil, with = "build" },
  { "force_simple_heuristic", "string", "", no_effect = "the search stays exact" },
  { "all_reduce_threshold", "integer", nil, least = 1, sets = function(draft, bytes)
    draft:use("grad_comm", { bucket_mb = bytes / 2 ^ 20 })
  end },
  { "force_zero_stage_3_all_gather_threshold", "integer", nil, least = 1, with = "force_zero_stage_3" },
}

local sharding_rules = {
  { function(o) return o.prefer_reduce_scatter and not o.allow_replicated_parameters end, "prefer_reduce_scatter",
    "prefer_reduce_scatter keeps parameters whole on every rank, but allow_replicated_parameters is false" },
  { function(o) return o.force_zero_stage_3 and o.prefer_reduce_scatter end, "prefer_reduce_scatter",
    "prefer_reduce_scatter and force_zero_stage_3 exclude each other" },
  { function(o) return o.force_zero_stage_3_all_gather_threshold and not o.force_zero_stage_3 end,
    "force_zero_stage_3_all_gather_threshold",
    "force_zero_stage_3_all_gather_threshold = %s needs force_zero_stage_3 = true" },
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
  { function(o) return (o.num_nodes or 1) > 1 and not (o.devices_per_node or o.num_devices_per_node) end, "num_nodes",
    "num_nodes = %s needs num_devices_per_node, which says how many ranks they have" },
  { function(o) return o.devices_per_node and o.num_devices_per_node end, "num_devices_per_node",
    "num_devices_per_node and devices_per_node are two spellings of one option: give one" },
}

local parallelize = {
  { "static_argnums", "any", "auto", no_effect = "shapes are static" },
  { "donate_argnums", "any", "auto", no_effect = "buffers are used again as soon as nothing reads them" },
  { "batch_argnums", "list", { 1 }, check = check_arguments, sets = function(draft, arguments)
    local places = {}
    for i, argument in ipairs(arguments) do places[i] = tostring(argument - 1) end
    draft:job("data.batched", places)
  end },
}

local marks = { { "scopes", "list", nil, of = "string", with = "build" } }

local random = { { "PRNGKey", "integer", nil, least = 0, sets = "job.seed" } }

return {
  pipeshard = pipeshard,
  pipeshard_rules = pipeshard_rules,
  auto_layers = auto_layers,
  auto_layer_rules = auto_layer_rules,
  manual_layers = manual_layers,
  manual_stages = manual_stages,
  manual_stage_rules = manual_stage_rules,
  uniform_stages = uniform_stages,
  auto_stages = auto_stages,
  auto_stage_rules = auto_stage_rules,
  sharding = sharding,
  sharding_rules = sharding_rules,
  flat = flat,
  three_d = three_d,
  init = init,
  init_rules = init_rules,
  parallelize = parallelize,
  marks = marks,
  random = random,
}
