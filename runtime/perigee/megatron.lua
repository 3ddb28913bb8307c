-- Megatron-Core's names: ModelParallelConfig { ... }, and the other objects that its users configure
-- (DistributedOptimizer, LRSchedule, LossScaler). In a job: [megatron], [megatron.LossScaler], ...
-- runtime/migration/from_megatron.md compares the configurations.
local dialect = require "perigee.dialect"
local layouts = require "perigee.megatron_layout"
local functions = require "perigee.megatron_functions"

-- The collectives that overlap with whole products, and the products that are sliced to overlap with theirs.
local function sliced(draft, _, options)
  local kinds, whole, bulk = {}, {}, {}
  if options.tp_comm_bulk_wgrad then bulk[#bulk + 1] = "gathers" end
  if options.tp_comm_bulk_dgrad then bulk[#bulk + 1] = "sums" end
  if #bulk < 2 then draft:use("overlap", { bulk = bulk }) end
  if options.tp_comm_overlap_ag then kinds[#kinds + 1] = "gathers" end
  if options.tp_comm_overlap_rs then kinds[#kinds + 1] = "sums" end
  if options.tp_comm_overlap_rs_dgrad then kinds[#kinds + 1] = "gradient_sums" end
  if #kinds == 0 then return end
  draft:use("overlap", { slices = 2 })
  if #kinds < 3 then draft:use("overlap", { sliced = kinds }) end
  if options.tp_comm_overlap_disable_qkv then whole = { "**.attn.qkv", "**.attn.q", "**.attn.k", "**.attn.v" } end
  if options.tp_comm_overlap_disable_fc1 then
    whole[#whole + 1] = "**.mlp.up"
    whole[#whole + 1] = "**.mlp.gate"
  end
  if #whole > 0 then draft:use("overlap", { whole = whole }) end
end

-- The dtype of a step's weights: fp16 and bf16 keep float32 masters.
local function half(dtype)
  return function(draft) draft:use("half", { dtype = dtype }) end
end

local function params_dtype(draft, dtype, options)
  if options.fp16 or options.bf16 or dtype == "float32" then return end  -- half sets the dtype
  draft:job("model.dtype", dtype == "bf16" and "bfloat16" or dtype)
end

local function accumulate_in_float32(draft, _, options)
  half("bf16")(draft)
  draft:use("half", { gradients = "float32" })
  return options
end

local function no_stages(o)
  return o.pipeline_model_parallel_size == 1 and "pipeline_model_parallel_size is 1" or nil
end

-- The device determines what carries collectives; messages between stages may go another way.
local function backend(draft, name, options)
  if no_stages(options) then return end
  if name == "nccl" then draft:job("cluster.device", "cuda") else draft:job("cluster.messages", name) end
end

-- As in Megatron-Core, autocast_dtype falls back to pipeline_dtype; then to params_dtype.
local function autocast_dtype(o) return o.autocast_dtype or o.pipeline_dtype or o.params_dtype end

local function autocast(draft, _, options)
  draft:use("amp_native", { dtype = autocast_dtype(options) })
end

local function offload(draft, _, options)
  local use = draft:use("offload", {})
  if options.cpu_offloading_activations then
    use.layers = options.cpu_offloading_num_layers > 0 and options.cpu_offloading_num_layers or nil
    if not use.layers then use[1] = "blocks.*" end
  end
  if options.cpu_offloading_weights then
    draft:use("fsdp")  -- the host holds its parts of the weights
    use.parameters = true
  end
  if options.cpu_offloading_double_buffering then use.prefetch = 2 end
end

-- Its schedules exist for one or two parts a stage; with more parts the order is kept.
local function delay_weights(draft, _, o)
  local virtual = o.virtual_pipeline_model_parallel_size or 1
  if o.pipeline_model_parallel_size == 1 or virtual > 2 or o.microbatch_group_size_per_vp_stage then
    draft:use("overlap", { weights = true })
  else
    draft:use("pipeline_parallel", { schedule = virtual == 2 and "zbv" or "zb1p" })
  end
end

local function product(list)
  local result = 1
  for _, factor in ipairs(list) do result = result * factor end
  return result
end

local model_parallel = {
  { "tensor_model_parallel_size", "integer", 1, least = 1, with = "build" },
  { "pipeline_model_parallel_size", "integer", 1, least = 1, sets = "axis.pipe" },
  { "pipeline_model_parallel_comm_backend", "string", nil, one_of = { "nccl", "gloo", "ucc" }, idle = no_stages,
    sets = backend, but = { ucc = { refused = "backends are nccl and gloo" } } },
  { "virtual_pipeline_model_parallel_size", "integer", nil, least = 1, sets = function(draft, chunks)
    if chunks > 1 then draft:use("pipeline_parallel", { schedule = "interleaved", chunks = chunks }) end
  end },
  { "sequence_parallel", "boolean", false, sets = "tensor_parallel.sequence" },
  { "context_parallel_size", "integer", 1, least = 1, with = "build" },
  { "hierarchical_context_parallel_sizes", "list", nil, of = "integer", with = "build",
    check = function(sizes)
      for _, size in ipairs(sizes) do
        if size < 1 then return "lists ranks of levels, from the inside out, each at least 1" end
      end
      if #sizes == 0 then return "has at least one level, an all-to-all; the following ones are a ring" end
    end },
  { "expert_model_parallel_size", "integer", 1, least = 1, with = "build" },
  { "expert_tensor_parallel_size", "integer", nil, least = 1, with = "build" },
  { "moe_extended_tp", "boolean", false, no_effect = "expert_tensor_parallel_size takes its place" },
  { "perform_initialization", "boolean", true, sets = "job.train.initialise" },
  { "use_cpu_initialization", "boolean", false,
    no_effect = "weights begin with the same numbers on any device and in any sharding" },
  { "fp16", "boolean", false, sets = half "fp16" },
  { "bf16", "boolean", false, sets = accumulate_in_float32 },
  { "params_dtype", "dtype", "float32", sets = params_dtype },
  { "timers", "function", nil, with = "build" },
  { "finalize_model_grads_func", "function", nil, with = "build" },
  { "grad_scale_func", "function", nil, with = "build" },
  { "no_sync_func", "function", nil, with = "build" },
  { "grad_sync_func", "function", nil, with = "build" },
  { "param_sync_func", "function", nil, with = "build" },
  { "deterministic_mode", "boolean", false, sets = "job.cluster.deterministic" },
  { "enable_autocast", "boolean", false, sets = autocast },
  { "autocast_dtype", "dtype", nil, with = "enable_autocast" },
  { "num_microbatches_with_partial_activation_checkpoints", "integer", nil, least = 0,
    sets = function(draft, value) draft:use("checkpoint", { "auto", kept_microbatches = value }) end },
  { "gradient_accumulation_fusion", "boolean", false, sets = "overlap.accumulate" },
  { "async_tensor_model_parallel_allreduce", "boolean", false, no_effect = "overlap is always planned" },
  { "use_te_rng_tracker", "boolean", false, no_effect = "random ops carry seeds of their own" },
  { "tp_comm_overlap", "boolean", false, sets = sliced },
  { "tp_comm_bulk_wgrad", "boolean", true, with = "tp_comm_overlap" },
  { "tp_comm_bulk_dgrad", "boolean", true, with = "tp_comm_overlap" },
  { "tp_comm_overlap_ag", "boolean", true, with = "tp_comm_overlap" },
  { "tp_comm_overlap_rs", "boolean", true, with = "tp_comm_overlap" },
  { "tp_comm_overlap_rs_dgrad", "boolean", false, with = "tp_comm_overlap" },
  { "tp_comm_split_ag", "boolean", true, no_effect = "see tp_comm_overlap_ag" },
  { "tp_comm_atomic_ag", "boolean", false, no_effect = "see tp_comm_overlap_ag" },
  { "tp_comm_split_rs", "boolean", true, no_effect = "see tp_comm_overlap_rs" },
  { "tp_comm_atomic_rs", "boolean", false, no_effect = "see tp_comm_overlap_rs" },
  { "cross_entropy_loss_fusion", "boolean", false, no_effect = "a loss is one op with and without it" },
  { "cross_entropy_fusion_impl", "string", "native", one_of = { "native", "te" },
    no_effect = "the native fusion is used" },
  { "tp_comm_overlap_disable_qkv", "boolean", false, with = "tp_comm_overlap" },
  { "tp_comm_overlap_disable_fc1", "boolean", false, with = "tp_comm_overlap" },
  { "tp_comm_bootstrap_backend", "string", "nccl", one_of = { "nccl", "mpi", "gloo" },
    no_effect = "ranks meet in one rendezvous" },
  { "overlap_moe_expert_parallel_comm", "boolean", false, sets = "overlap.experts" },
  { "delay_wgrad_compute", "boolean", false, sets = delay_weights },
  { "pipeline_dtype", "dtype", nil, with = "build", idle = function(o)
    local falls_back = o.enable_autocast and not o.autocast_dtype
    return o.pipeline_model_parallel_size == 1 and not falls_back and "pipeline_model_parallel_size is 1" or nil
  end },
  { "variable_seq_lengths", "boolean", false,
    refused = "a program has one length: train a job for each length that you declare (data.sequence), each "
      .. "of which begins with the previous one's weights (train.weights), or pad to the longest" },
  { "overlap_p2p_comm", "boolean", false, sets = "overlap.receives" },
  { "batch_p2p_comm", "boolean", true, with = "a rule: not beside overlap_p2p_comm", idle = function(o)
    return not o.overlap_p2p_comm and "each message is a transfer of its own in either case" or nil
  end },
  { "batch_p2p_sync", "boolean", true, no_effect = "events order the streams" },
  { "use_ring_exchange_p2p", "boolean", false, refused = "it needs a patched library: leave it out" },
  { "deallocate_pipeline_outputs", "boolean", false, no_effect = "sent values are always freed at their last use" },
  { "defer_embedding_wgrad_compute", "boolean", false, sets = function(draft, _, options)
    local limit = options.wgrad_deferral_limit
    draft:use("overlap", { deferred_head = limit == 0 or limit })
  end },
  { "wgrad_deferral_limit", "integer", 0, least = 0, with = "defer_embedding_wgrad_compute" },
  { "overlap_p2p_comm_warmup_flush", "boolean", false, with = "a rule: it needs overlap_p2p_comm",
    idle = function() return "overlap_p2p_comm overlaps in the warm-up and the flush, too" end },
  { "microbatch_group_size_per_vp_stage", "integer", nil, least = 1, sets = "pipeline_parallel.group" },
  { "cpu_offloading", "boolean", false, sets = offload },
  { "cpu_offloading_num_layers", "integer", 0, least = 0, with = "cpu_offloading" },
  { "_cpu_offloading_context", "any", nil, refused = "it is internal: use cpu_offloading" },
  { "cpu_offloading_activations", "boolean", true, with = "cpu_offloading" },
  { "cpu_offloading_weights", "boolean", false, with = "cpu_offloading" },
  { "cpu_offloading_double_buffering", "boolean", false, with = "cpu_offloading" },
  { "barrier_with_L1_time", "boolean", true,
    no_effect = "the times of a training's sections have no barrier, those of perigee profile have" },
}

-- The dtype in which stages compute, and send unless pipeline_dtype is another.
local function computed_dtype(o)
  if o.fp16 then return "fp16" end
  if o.bf16 then return "bf16" end
  return o.params_dtype
end

local rules = {
  { function(o) return o.fp16 and o.bf16 end, "bf16", "fp16 and bf16 exclude each other, but both are true" },
  { function(o) return o.fp16 and o.grad_scale_func end, "grad_scale_func",
    "grad_scale_func scales the loss, and so does the LossScaler of fp16 = true: leave one of them out" },
  { function(o) return (o.fp16 or o.bf16) and o.enable_autocast end, "enable_autocast",
    "fp16 or bf16 and enable_autocast exclude each other, but both are true: give one of them" },
  { function(o) return o.fp16 and o.params_dtype == "bf16" or o.bf16 and o.params_dtype == "fp16" end, "params_dtype",
    "params_dtype must be that of fp16 or bf16, or float32, but got %s" },
  { function(o) return o.params_dtype == "fp16" and not o.fp16 end, "params_dtype",
    "params_dtype = %s needs fp16 = true, which scales the loss" },
  { function(o) return o.sequence_parallel and o.tensor_model_parallel_size == 1 end, "sequence_parallel",
    "sequence_parallel needs tensor_model_parallel_size above 1, but that is 1" },
  { function(o) return o.pipeline_model_parallel_size > 1 and not o.pipeline_dtype end, "pipeline_model_parallel_size",
    "pipeline_model_parallel_size = %s needs pipeline_dtype, the dtype of values between stages (as params_dtype), "
      .. "but it is not given" },
  { function(o) return (o.virtual_pipeline_model_parallel_size or 1) > 1 and o.pipeline_model_parallel_size == 1 end,
    "virtual_pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size = %s cuts stages, but pipeline_model_parallel_size is 1" },
  { function(o) return o.microbatch_group_size_per_vp_stage and not o.virtual_pipeline_model_parallel_size end,
    "microbatch_group_size_per_vp_stage",
    "microbatch_group_size_per_vp_stage = %s needs virtual_pipeline_model_parallel_size, but it is not given" },
  { function(o) return o.microbatch_group_size_per_vp_stage
      and o.microbatch_group_size_per_vp_stage < o.pipeline_model_parallel_size end,
    "microbatch_group_size_per_vp_stage",
    "microbatch_group_size_per_vp_stage must be at least pipeline_model_parallel_size, but got %s" },
  { function(o) return o.overlap_p2p_comm and o.batch_p2p_comm end, "overlap_p2p_comm",
    "overlap_p2p_comm and batch_p2p_comm exclude each other, but both are true: set batch_p2p_comm = false" },
  { function(o) return o.overlap_p2p_comm and o.pipeline_model_parallel_size == 1 end, "overlap_p2p_comm",
    "overlap_p2p_comm overlaps the messages between stages, but pipeline_model_parallel_size is 1" },
  { function(o) return o.overlap_p2p_comm_warmup_flush and (not o.overlap_p2p_comm or o.batch_p2p_comm) end,
    "overlap_p2p_comm_warmup_flush",
    "overlap_p2p_comm_warmup_flush needs overlap_p2p_comm = true and batch_p2p_comm = false" },
  { function(o) return o.overlap_moe_expert_parallel_comm and o.expert_model_parallel_size == 1 end,
    "overlap_moe_expert_parallel_comm",
    "overlap_moe_expert_parallel_comm needs expert_model_parallel_size above 1, but that is 1" },
  { function(o) return o.tp_comm_overlap and o.tensor_model_parallel_size == 1 end, "tp_comm_overlap",
    "tp_comm_overlap needs tensor_model_parallel_size above 1, but that is 1" },
  { function(o) return o.expert_model_parallel_size > 1 and o.tensor_model_parallel_size > 1
      and not o.sequence_parallel end, "expert_model_parallel_size",
    "expert_model_parallel_size = %s with tensor_model_parallel_size above 1 needs sequence_parallel" },
  { function(o) return o.defer_embedding_wgrad_compute and o.pipeline_model_parallel_size == 1 end,
    "defer_embedding_wgrad_compute",
    "defer_embedding_wgrad_compute leaves products to the end of a pipeline's step, "
      .. "but pipeline_model_parallel_size is 1" },
  { function(o) return o.defer_embedding_wgrad_compute and not o.gradient_accumulation_fusion end,
    "defer_embedding_wgrad_compute",
    "defer_embedding_wgrad_compute needs gradient_accumulation_fusion, but that is false" },
  { function(o) return o.defer_embedding_wgrad_compute and o.delay_wgrad_compute end, "defer_embedding_wgrad_compute",
    "defer_embedding_wgrad_compute and delay_wgrad_compute exclude each other, but both are true: the second delays "
      .. "the head's gradient, too" },
  { function(o) return (o.num_microbatches_with_partial_activation_checkpoints or 0) > 0
      and o.pipeline_model_parallel_size == 1 end,
    "num_microbatches_with_partial_activation_checkpoints",
    "num_microbatches_with_partial_activation_checkpoints is of those in flight on a stage: "
      .. "pipeline_model_parallel_size must be above 1, but got %s microbatches of one stage" },
  { function(o) return o.hierarchical_context_parallel_sizes
      and product(o.hierarchical_context_parallel_sizes) ~= o.context_parallel_size end,
    "hierarchical_context_parallel_sizes",
    "hierarchical_context_parallel_sizes must multiply to context_parallel_size, but got %s" },
  { function(o) return o.autocast_dtype and o.autocast_dtype ~= "fp16" and o.autocast_dtype ~= "bf16" end,
    "autocast_dtype", "autocast_dtype must be fp16 or bf16, but got %s" },
  { function(o) return o.enable_autocast and autocast_dtype(o) ~= "fp16" and autocast_dtype(o) ~= "bf16" end,
    "enable_autocast", "enable_autocast needs autocast_dtype (fp16 or bf16) where neither pipeline_dtype nor "
      .. "params_dtype is one of these" },
  { function(o) return o.cpu_offloading and not (o.cpu_offloading_activations or o.cpu_offloading_weights) end,
    "cpu_offloading", "cpu_offloading moves activations or weights, but both are false" },
  { function(o, all) return o.cpu_offloading_weights and all.given.DistributedOptimizer end, "cpu_offloading_weights",
    "cpu_offloading_weights keeps weights in parts over the data ranks, the optimizer's state too: leave "
      .. "DistributedOptimizer out" },
}

local optimizer = {
  { "overlap_grad_reduce", "boolean", false, always = true, sets = "grad_comm.overlap" },
  { "overlap_param_gather", "boolean", false, with = "a rule: it needs overlap_grad_reduce",
    idle = function() return "weights are gathered as soon as their bucket is stepped in any case" end },
  { "bucket_size", "integer", nil, least = 1, sets = function(draft, parameters)
    draft:use("grad_comm", { bucket_mb = parameters * 4 / 1048576 })
  end },
  { "num_distributed_optimizer_instances", "integer", 1, least = 1, with = "build" },
  { "grad_reduce_in_fp32", "boolean", false, with = "build", across = true, idle = function(_, all)
    local o = all.ModelParallelConfig
    if o.bf16 then return "bf16 sums gradients in float32 already" end
    return not o.fp16 and "gradients are of 16 bits only with fp16 or bf16, which are false" or nil
  end },
  { "average_in_collective", "boolean", false, no_effect = "a sum divided by the ranks has the same value" },
}

local optimizer_rules = {
  { function(o) return o.overlap_param_gather and not o.overlap_grad_reduce end, "overlap_param_gather",
    "overlap_param_gather needs overlap_grad_reduce, but that is false" },
}

local function constant_rate(o)
  return o.lr_decay_style == "constant" and 'lr_decay_style is "constant"' or nil
end

local function other_than_wsd(o)
  return o.lr_decay_style ~= "wsd" and string.format('lr_decay_style is "%s", not "wsd"', o.lr_decay_style) or nil
end

local function final_rate(draft, rate, o)
  if o.lr_decay_style ~= "constant" then draft:job("lr_schedule.min_lr", rate) end
end

local function last_shape(draft, shape, o)
  if o.lr_decay_style == "wsd" then draft:job("lr_schedule.shape", shape) end
end

local schedule = {
  { "lr_decay_style", "string", "linear", one_of = { "constant", "linear", "cosine", "inverse_sqrt", "wsd" },
    always = true, sets = "job.lr_schedule.kind" },
  { "max_lr", "number", nil, least = 0, sets = "job.optimizer.lr" },
  { "min_lr", "number", 0, least = 0, always = true, sets = final_rate, idle = constant_rate },
  { "init_lr", "number", 0, least = 0, sets = "job.lr_schedule.init_lr" },
  { "lr_warmup_steps", "integer", 0, least = 0, always = true, sets = "job.lr_schedule.warmup" },
  { "lr_decay_steps", "integer", nil, least = 1, sets = "job.lr_schedule.steps", idle = constant_rate },
  { "wsd_decay_steps", "integer", nil, least = 1, sets = "job.lr_schedule.decay", idle = other_than_wsd },
  { "lr_wsd_decay_style", "string", "exponential", one_of = { "linear", "cosine", "exponential", "minus_sqrt" },
    always = true, sets = last_shape, idle = other_than_wsd },
  { "start_wd", "number", nil, least = 0, sets = "job.weight_decay_schedule.start" },
  { "end_wd", "number", nil, least = 0, sets = "job.optimizer.weight_decay" },
  { "wd_incr_steps", "integer", nil, least = 1, sets = "job.weight_decay_schedule.steps" },
  { "wd_incr_style", "string", "linear", one_of = { "constant", "linear", "cosine" }, sets = function(draft, style)
    if style ~= "constant" then draft:job("weight_decay_schedule.shape", style) end
  end },
}

local schedule_rules = {
  { function(o) return o.wd_incr_style == "constant" and o.start_wd ~= o.end_wd end, "wd_incr_style",
    "wd_incr_style = %s keeps the weight decay, but start_wd and end_wd differ" },
  { function(o) return o.wd_incr_steps and not o.start_wd end, "wd_incr_steps",
    "wd_incr_steps = %s needs start_wd, from which the weight decay rises" },
}

local scaler = {
  { "initial_scale", "number", 2 ^ 32, always = true, sets = "half.init_scale" },
  { "min_scale", "number", 1, least = 0, always = true, sets = "half.min_scale" },
  { "growth_factor", "number", 2, always = true, sets = "half.growth_factor" },
  { "backoff_factor", "number", 0.5, always = true, sets = "half.backoff_factor" },
  { "growth_interval", "integer", 1000, least = 1, always = true, sets = "half.growth_interval" },
  { "hysteresis", "integer", 2, least = 1, always = true, sets = "half.hysteresis" },
}

local scaler_rules = {
  { function(_, all) return not all.ModelParallelConfig.fp16 end, "initial_scale",
    "LossScaler scales the loss of fp16 = true, but that is false: join it with that ModelParallelConfig",
    across = true },
  { function(o) return o.min_scale > o.initial_scale end, "min_scale",
    "min_scale = %s is above initial_scale, from which the scale falls" },
}

-- The ranks of a stage, and the axes over them. tensor_parallel shards experts with the same axes as other layers.
local function place_layers(draft, o, layout)
  local order = {}
  for i, axis in ipairs(layout.axes) do
    draft:axis(axis[1], axis[2], axis[3])
    order[i] = axis[1]
  end
  for _, name in ipairs { "zero", "data", "pipe" } do order[#order + 1] = name end
  draft.order = order
  if o.tensor_model_parallel_size > 1 then draft:use("tensor_parallel", {}, "tensor_model_parallel_size") end
  if o.expert_model_parallel_size == 1 and layout.same_axes then return end
  local use = draft:use("expert_parallel", {}, { "expert_model_parallel_size", "expert_tensor_parallel_size" })
  if #layout.shared ~= 1 or layout.shared[1] ~= "expert" then use.axis = layout.shared end
  if layout.same_axes then return end
  if #layout.split > 0 then use.tensor = layout.split end
  if o.tensor_model_parallel_size > 1 then draft:use("tensor_parallel", { experts = false }) end
end

-- A ring, in which each rank has two slices. With levels neighbours exchange heads, and the outer levels are one ring:
-- the ranks of an inner level are adjacent, so that the ring crosses outer levels as rarely as nested rings would.
local function place_context(draft, o, heads)
  local ring = o.context_parallel_size / heads
  local option = o.hierarchical_context_parallel_sizes and "hierarchical_context_parallel_sizes"
  if heads > 1 then draft:use("sequence_parallel", {}, option) end
  if ring > 1 then
    draft:use("context_parallel", { attention = "ring", load_balance = true }, option or "context_parallel_size")
  end
end

-- The ranks that train the same weights shard the optimizer's state: those of data and context, unless experts are
-- over these. With instances, the adjacent data ranks of one instance do.
local function place_optimizer(draft, layout, instances)
  local axes, option = {}, "DistributedOptimizer."
  for _, axis in ipairs(layout.axes) do
    local shared
    for _, name in ipairs(layout.shared) do shared = shared or name == axis[1] end
    if (axis[1] == "sequence" or axis[1] == "context") and not shared then axes[#axes + 1] = axis[1] end
  end
  axes[#axes + 1] = instances > 1 and "zero" or "data"
  if instances > 1 then
    draft:axis("data", instances)
    draft.rest = "zero"
    option = "DistributedOptimizer.num_distributed_optimizer_instances"
  end
  draft:use("zero1", #axes + instances > 2 and { axis = table.concat(axes, ",") } or {}, option)
end

local function build(draft, given)
  local o = given.ModelParallelConfig
  functions.observe(draft, o)
  functions.edit(draft, o)
  functions.scale_loss(draft, o)
  local heads = (o.hierarchical_context_parallel_sizes or { 1 })[1]
  local layout = layouts.of(o, heads)
  place_layers(draft, o, layout)
  place_context(draft, o, heads)
  if o.pipeline_model_parallel_size > 1 then
    local dtype = o.pipeline_dtype ~= computed_dtype(o) and o.pipeline_dtype or nil
    draft:use("pipeline_parallel", { dtype = dtype }, "pipeline_model_parallel_size")
  end
  if o.fp16 and not draft.given.LossScaler then
    draft:use("half", { init_scale = 2 ^ 32, growth_interval = 1000, min_scale = 1, hysteresis = 2 }, "fp16")
  end
  if draft.given.DistributedOptimizer then
    place_optimizer(draft, layout, given.DistributedOptimizer.num_distributed_optimizer_instances)
    if given.DistributedOptimizer.grad_reduce_in_fp32 and draft:uses_method("half") then
      draft:use("half", { gradients = "float32" })
    end
  end
end

local module = dialect.new {
  name = "megatron",
  axes = { "tensor", "sequence", "context", "expert", "zero", "data", "pipe" },
  sections = {
    { name = "ModelParallelConfig", options = model_parallel, rules = rules, always = true },
    { name = "DistributedOptimizer", options = optimizer, rules = optimizer_rules },
    { name = "LRSchedule", options = schedule, rules = schedule_rules },
    { name = "LossScaler", options = scaler, rules = scaler_rules },
  },
  build = build,
}
module.Timers = functions.Timers
return module
