-- The table of options of perigee.epl's Config: a row gives the effect of an option (perigee.dialect documents its
-- fields).

local schedules = {
  preferbackward = { schedule = "1f1b" },
  preferforward = { schedule = "gpipe" },
  preferbackwardoptimizer = { schedule = "1f1b", extra = 1 },
}

local function stages(draft, count, options)
  if options["auto.auto_parallel"] then
    draft:pin("pipe", count)
  else
    draft:warn("[epl] pipeline.num_stages has no effect: without auto.auto_parallel the scopes make the stages")
  end
end

local levels = { v0 = "zero1", v1 = "zero2", v2 = "fsdp" }

local function amp(draft, _, options)
  local use = draft:use("amp_native", { dtype = "fp16", log = options["amp.debug_log"] or nil })
  if options["amp.loss_scale"] == "dynamic" then
    use.init_scale, use.growth_interval, use.min_scale = 2 ^ 15, 2000, 1
  else
    use.loss_scale = options["amp.loss_scale"]
  end
end

local function devices(text)
  local seen = {}
  for device in text:gmatch("[^,%s]+") do
    if seen[device] then return "names each device once" end
    if not device:find("^%d+$") then return 'lists devices of the host by their numbers, "0,1"' end
    seen[device] = true
  end
end

-- Whether some ranks have one file more than others if their number does not divide the files.
local function left_over(files)
  return function(draft, _, options)
    if files == "drop" and options["io.unbalanced_io_slicing"] then return end
    draft:job("data.left_over", files)
  end
end

-- Returns the taskgraphs except the default, in order.
local function listed(options)
  local graphs = {}
  for _, graph in ipairs((options.scopes or {}).taskgraphs or {}) do
    if not graph.default then graphs[#graphs + 1] = graph end
  end
  return graphs
end

-- Whether taskgraphs share their devices: with splits they may be colocated.
local function shared(graphs, o)
  local splits = 0
  for _, graph in ipairs(graphs) do splits = splits + (graph.kind == "split" and 1 or 0) end
  return splits > 0 and o["cluster.colocate_split_and_replicate"], splits
end

local function without_stages(o, all)
  local graphs = listed(all)
  if o["auto.auto_parallel"] or #graphs > 1 and not shared(graphs, o) then return nil end
  return "there are no stages (several scopes, or auto.auto_parallel)"
end

local function not_colocated(_, all)
  local graphs = listed(all)
  local _, splits = shared(graphs, {})
  if splits > 0 and #graphs > 1 then return nil end
  return "it has a split and other scopes share devices, but there is no split beside another scope"
end

local config = {
  { "pipeline.num_micro_batch", "integer", 1, least = 1, sets = "gradient_accumulation.microbatches" },
  { "pipeline.num_stages", "integer", -1, sets = stages,
    check = function(n) if n ~= -1 and n < 1 then return "must be at least 1" end end },
  { "pipeline.strategy", "string", "PreferBackward", lower = true, with = "build", idle = without_stages,
    one_of = { "preferbackward", "preferforward", "preferbackwardoptimizer" } },
  { "gradient_checkpoint.type", "string", "", lower = true, one_of = { "", "auto", "collection" }, with = "build" },
  { "gradient_checkpoint.end_taskgraph", "integer", -1, least = -1, with = "build", idle = function(o)
    return o["gradient_checkpoint.type"] ~= "auto" and 'it ends gradient_checkpoint.type = "auto", which is not given'
      or nil
  end },
  { "gradient_checkpoint.check_gradients", "boolean", false, sets = "job.train.check_gradients" },
  { "zero.level", "string", "", lower = true, one_of = { "", "v0", "v1", "v2" },
    sets = function(draft, level) draft:use(levels[level]) end },
  { "offload.level", "string", "", lower = true, one_of = { "", "v0" },
    sets = function(draft) draft:use("fsdp", { cpu_offload = true }) end },
  { "amp.level", "string", "", lower = true, one_of = { "", "o1" }, sets = amp },
  { "amp.debug_log", "boolean", false, with = "amp.level" },
  { "amp.loss_scale", "number|string", "dynamic", lower = true, least = 1, one_of = { "dynamic" }, with = "amp.level" },
  { "optimizer.num_apply_group", "integer", 1, least = 1,
    with = "build" },
  { "cluster.device_place_prefer_intra_node", "boolean", true,
    sets = function(draft) draft.order = { "data", "tensor", "expert", "pipe" } end },
  { "cluster.run_visible_devices", "string", "", check = devices, sets = "job.cluster.devices" },
  { "cluster.colocate_split_and_replicate", "boolean", false, with = "build", idle = not_colocated },
  { "communication.num_communicators", "integer", 2, least = 1, always = true, sets = "grad_comm.communicators" },
  { "communication.max_splits", "integer", 5, least = 1, always = true, sets = "grad_comm.buckets" },
  { "communication.sparse_as_dense", "boolean", false, with = "build" },
  { "communication.fp16", "boolean", false, sets = function(draft, _, options)
    draft:use("grad_comm", { dtype = "fp16", scale = options["communication.fp16_scale"] })
  end },
  { "communication.fp16_scale", "integer", 128, least = 1, with = "communication.fp16" },
  { "communication.clip_after_allreduce", "boolean", false, with = "build" },
  { "communication.gradients_reduce_method", "string", "mean", lower = true, one_of = { "mean", "sum" },
    sets = "grad_comm.reduce" },
  { "io.slicing", "boolean", false, sets = "job.data.slice_files" },
  { "io.unbalanced_io_slicing", "boolean", false, sets = left_over "deal" },
  { "io.drop_last_files", "boolean", false, sets = left_over "drop", idle = function(o)
    return o["io.unbalanced_io_slicing"] and "io.unbalanced_io_slicing deals the files that it would drop" or nil
  end },
  { "auto.auto_parallel", "boolean", false, sets = function(draft) draft.search = true end },
}

local rules = {
  { function(o) return o["io.unbalanced_io_slicing"] and not o["io.slicing"] end, "io.unbalanced_io_slicing",
    "io.unbalanced_io_slicing deals the files that are left over, but io.slicing is false" },
  { function(o) return o["io.drop_last_files"] and not o["io.slicing"] end, "io.drop_last_files",
    "io.drop_last_files leaves out the files that are left over, but io.slicing is false" },
  { function(o) return o["offload.level"] == "v0" and (o["zero.level"] == "v0" or o["zero.level"] == "v1") end,
    "offload.level",
    'offload.level = %s keeps all weights on the host, in parts: zero.level must be "v2" or "" with it' },
  { function(o, all) return (all.given.Config or {})["communication.max_splits"]
      and o["optimizer.num_apply_group"] > o["communication.max_splits"] end, "optimizer.num_apply_group",
    "optimizer.num_apply_group = %s is above communication.max_splits: the step goes by groups of gradients that are "
      .. "reduced together, so raise that, too" },
}

return { config = config, rules = rules, schedules = schedules, levels = levels, listed = listed, shared = shared }
