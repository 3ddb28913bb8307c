---@meta
-- Editor types of Perigee's Lua API, made by `perigee lua --types`. Do not edit.

---Optimisation methods. Each call returns {name, config}; a strategy is a list of them.
---@class perigee.methods
local methods = {}

---The device mesh: a list of {axis, size}, the first varies fastest over ranks. Without axes all ranks are on `data`. The data axis adjusts to a world that was given. Or submeshes, one for each stage of a pipeline, where stages have different numbers or axes of ranks. A method may be over several axes of a kind, told apart by a number: `tensor` and `tensor2`.
---@param config? table config: {axis, size}, ...; submeshes (list): instead of axes: the axes of each stage of the pipeline (axis `pipe`), as in `{{{"data", 2}}, {{"tensor", 1}}}`; an axis that a stage leaves out has one rank there; order (list): the ranks to use, in mesh order; default 0, 1, 2, ...; exact (boolean): whether another number of ranks than the sizes multiply to is an error, and not made up for by the data axis; rest (string): the axis that adjusts to a world that was given; default `data`; instances (boolean): where the world is larger than the mesh, it holds several of them, one behind the other, and each trains the same (axis `instance`): nothing adjusts; device_mesh (boolean): a mesh as PyTorch's DeviceMesh: axes of one rank are left out, and ranks have no order; forbid (list): what the plan may not come to: `all_gather`, `all_to_all` (of values that ops read), `replicated_parameters` (on several ranks), `nd_shardings` (tensors split over several axes), `replicated_products` (which all ranks compute).
---@return table
function methods.parallel_mode(config) end

---Splits linear layers, experts and embeddings over the ranks of axes of the mesh. Without column, row and vocab the layers of the built-in models gpt, llama, moe and mlp are split; of other models, or with planned, what the exact solver finds.
---@param config? table config: axis (any): the axis, or a list of axes over all of which a dim is split; default all of the kind `tensor`. With planned weights, samples and all else are split over all of them together, so that all of it costs least; column (list): weights or scopes (`blocks.*.attn.qkv`) split by their outputs; row (list): those split by their inputs: what follows a column; vocab (list): embeddings split by their rows; planned (boolean): the exact solver says which weights are split and along which dims, so that moving and computing cost least; default: for models whose layers are not known; experts (boolean): of known layers: whether experts are split, too; default true, but for those that expert_parallel has over one of these axes, or splits; smallest (integer): weights of fewer bytes are not split; default 0; sequence (boolean): shard activations on their sequence between the layers: less memory for as many bytes sent; default false.
---@return table
function methods.tensor_parallel(config) end

---Shards activations on their sequence over axes of the mesh; before attention an all-to-all gives each rank the whole sequence of some heads (Ulysses). Heads must divide over the axes.
---@param config? table config: axis (any): the axis, or a list of axes over all of which it is sharded; default all of the kind `sequence`.
---@return table
function methods.sequence_parallel(config) end

---Shards activations on their sequence over an axis of the mesh, through attention: its keys and values are gathered, go round the ranks, or are exchanged for heads. Under a causal mask all ranks get the same work.
---@param config? table config: axis (string): the axis; default `context`; attention (string): all_gather (default): every rank sees all keys and values; ring: they go round, a part at a time; all_to_all: all of some heads; hierarchical: all_to_all within `inner`, a ring over `axis`; inner (string): the axis of hierarchical's all_to_all; default `sequence`; load_balance (boolean): of all_gather and ring: each rank has a piece from the front of the sequence and one from its end; default where attention is causal and the sequence divides so.
---@return table
function methods.context_parallel(config) end

---Shares the experts of a mixture out over the ranks of axes. Where the batch is sharded over them too, tokens are sent to the ranks of their experts and back, as many as there are; where tokens are whole, each rank serves its experts and the results are summed.
---@param config? table config: axis (any): an axis, or a list of them, {} for none; default all of the kind `expert`, over which the batch is then sharded too; tensor (any): an axis, or a list of them, over which each expert is split inside, in place of tensor_parallel's; over one of the kind `expert` the batch is sharded too, and its ranks gather each other's tokens; default none.
---@return table
function methods.expert_parallel(config) end

---Spreads the layers over the stages of an axis of the mesh; microbatches run through them as a schedule says. Without starts the parts are cut between blocks so that the slowest has as little work as can be, or with tolerance so that little is sent.
---@param config? table config: axis (string): the axis; default `pipe`; schedule (string): gpipe, 1f1b (default), eager_1f1b, interleaved, looped_bfs, zb1p, zb2p, zbv, v_half, v_min or dualpipe_v; chunks (integer): parts of a stage; default 2 for interleaved, looped_bfs, zbv, v_half, v_min and dualpipe_v, else 1; starts (list): the scopes at which the parts behind the first begin (`blocks.4`), one less than parts; holds (list): with starts: of each part scopes or module types that begin in it; anything else is an error; blocks (any): scopes or module types between which parts may be cut; default the longest row of numbered modules (`blocks.*`), or all modules where none are numbered; balance (string): what parts have alike: work (default), or count, as EPL's automatic pipeline: blocks, where there are four or more that divide over the parts, else ops; tolerance (number): parts may have so much more than their share of the work (0.5: half as much again) where fewer bytes are then sent between them; group (integer): interleaved: microbatches that run together; default one a stage; extra (integer): 1f1b: forwards in flight above what 1f1b has; default 0; dtype (string): what stages send is cast to it, and back where it comes: fp16, bf16, float32 or float64; default as it is, which alone is what one device computes; costs (list): {forward, input gradient, weight gradient, message}: the times of a stage and of what it sends, for schedules that are found by a search; default {1, 1, 1, 0}.
---@return table
function methods.pipeline_parallel(config) end

---Tensor, pipeline and data parallel together, by the mesh: tensor_parallel where it has an axis tensor, pipeline_parallel where it has an axis pipe.
---@param config? table config: tensor (table): fields of tensor_parallel; default none; pipeline (table): fields of pipeline_parallel; default none.
---@return table
function methods.mixed_parallel(config) end

---Tensor, pipeline and data parallel on a mesh of exactly these axes, with the precision and batch of a DeepSpeed config.
---@param config? table config: tensor (table): fields of tensor_parallel; default none; pipeline (table): fields of pipeline_parallel; default none; ds_config (table): train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps, fp16 and bf16 as in DeepSpeed; fp16 and bf16 are the method half.
---@return table
function methods.ds_3d_parallel(config) end

---Splits the global batch into microbatches whose gradients add up before the optimizer step.
---@param config? table config: microbatches (integer, required): microbatches per optimizer step.
---@return table
function methods.gradient_accumulation(config) end

---How gradients are reduced: in which buckets and on how many streams, in which precision, as a mean or a sum, and on which side of clipping.
---@param config? table config: bucket_mb (number): smallest size of a bucket in MiB; default 25; buckets (integer): at most so many buckets of gradients that are reduced alike, which then grow above bucket_mb; default any number; overlap (boolean): start a bucket as soon as its last gradient is there; default true; communicators (integer): streams over the data axis that buckets take turns on; default 1; dtype (string): `fp16` or `bf16`: gradients are rounded to it and reduced in it; default as they are; scale (number): gradients are multiplied by it before they are rounded, and divided after the reduction; default 128 with fp16, 1 with bf16; reduce (string): `mean`, or `sum` over data ranks and microbatches: as many times larger, for a mean loss; default mean; clip (string): `after` the reduction, or `before`: each data rank clips the gradient of its own samples, which is not what one device does; default after; sparse (string): gradients of embeddings: `dense` ones are all-reduced, `gathered` ones made from all ranks' indices and rows, which are gathered in every microbatch; `any`: gathered where the model has such gradients; default dense.
---@return table
function methods.grad_comm(config) end

---Computes the matched scopes again in the backward pass instead of keeping their results: less memory for more work. Dropout draws the same numbers again.
---@param config? table config: scope or module type, ..., or `auto`: all rows of numbered modules of one type, or where no modules repeat, but for the last of them, runs of them, as many as the root of their number; wrap_class (any): the same as the list: scopes (`blocks.*`) or module types (`Block`); kept (list): scopes whose results are kept, of the longest row of numbered modules or of all: those between run again, but for those behind the last; instead of scopes; most (integer): only the first so many of the matched scopes; default all; every (integer): only each n-th of the matched scopes; default 1; group (integer): so many matched scopes in a row keep one input among them; default 1; ops (list): only these ops run again (`attention`; behind module_replace also `swiglu`); default all; keep (list): all but these ops run again (`mm`, `attention`); where ranks add up or exchange such a result at once, what comes of it is kept; full (list): beside keep: scopes of which all runs again; of what runs again together, one stands for all; full_every (integer): beside keep: all of each n-th of what runs again does; kept_microbatches (integer): with pipeline_parallel: of the microbatches in flight on a stage so many keep their results, and the others run the scopes again; without offloaded activations and overlap's experts; default 0; memory (any): bytes that a rank may need (`40GB`, 512MiB), or `device`, what its device has: only those of the scopes run again that it takes, the least arithmetic; default all.
---@return table
function methods.checkpoint(config) end

---ZeRO level 1: each rank keeps and updates its part of the optimizer's state (and of half's masters); gradients are reduce-scattered once a step, new weights gathered.
---@param config? table config: axis (string): the axis that parts are cut over; default zero where the mesh has it, else data; match (any): scopes that make a unit each: a pattern or a list of them (blocks.*); atorch_wrap_cls (any): module classes that make a unit each; atorch_size_based_min_num_params (integer): units grow in the order of use to so many parameters; not with match or classes; trainable_outmost (boolean): parameters that are trained make one unit, frozen ones the others; default false; ignored (any): parameters that stay whole: a pattern or a list of them; atorch_ignored_cls (any): module classes whose parameters stay whole; use_ds_zero (boolean): no effect: there is one implementation; not_use_fsdp (boolean): no effect: there is one implementation.
---@return table
function methods.zero1(config) end

---ZeRO level 2: each rank keeps its part of the optimizer's state (and of half's masters) and of the gradients, which are reduce-scattered in every microbatch; new weights are gathered.
---@param config? table config: axis (string): the axis that parts are cut over; default zero where the mesh has it, else data; match (any): scopes that make a unit each: a pattern or a list of them (blocks.*); atorch_wrap_cls (any): module classes that make a unit each; atorch_size_based_min_num_params (integer): units grow in the order of use to so many parameters; not with match or classes; trainable_outmost (boolean): parameters that are trained make one unit, frozen ones the others; default false; ignored (any): parameters that stay whole: a pattern or a list of them; atorch_ignored_cls (any): module classes whose parameters stay whole; use_ds_zero (boolean): no effect: there is one implementation; not_use_fsdp (boolean): no effect: there is one implementation.
---@return table
function methods.zero2(config) end

---Fully sharded data parallel (ZeRO level 3): each rank keeps its part of parameters, gradients and optimizer state; a unit's parameters are gathered where they are used.
---@param config? table config: axis (string): the axis that parts are cut over; default zero where the mesh has it, else data; match (any): scopes that make a unit each: a pattern or a list of them (blocks.*); atorch_wrap_cls (any): module classes that make a unit each; atorch_size_based_min_num_params (integer): units grow in the order of use to so many parameters; not with match or classes; trainable_outmost (boolean): parameters that are trained make one unit, frozen ones the others; default false; ignored (any): parameters that stay whole: a pattern or a list of them; atorch_ignored_cls (any): module classes whose parameters stay whole; reshard_after_forward (boolean): gather a unit again for the backward pass instead of keeping it; default true; sharding_strategy (string): FULL_SHARD (default), SHARD_GRAD_OP (not resharded after forward), HYBRID_SHARD or _HYBRID_SHARD_ZERO2 (the same on an axis zero beside data); forward_prefetch (boolean): gather the next unit while one is at work; default true; backward_prefetch (string): BACKWARD_PRE (default): the same in the backward pass; BACKWARD_POST, none: when it is needed; limit_all_gathers (boolean): false: gather two units ahead instead of one; prefetch_mb (number): what is gathered ahead takes at most so many MiB; default any size; wrap_trainable_outmost (boolean): no effect: parameters that require no gradient have units of their own; fsdp_wrap_params_outmost (boolean): no effect, as wrap_trainable_outmost; sync_module_states (boolean): no effect: ranks begin with the same weights; use_orig_params (boolean): no effect: parameters keep their names and shapes; cpu_offload (boolean): each rank's parts of parameters and optimizer state lie in the host's memory; default false.
---@return table
function methods.fsdp(config) end

---Mixed precision as LibTorch's autocast has it: matrix products, convolutions and attention compute in fp16 or bf16, softmax, norms and losses in float32 (its lists of CUDA, on every device), all else in the widest of its operands. Parameters, their gradients and the optimizer's state stay as they are; float64 is left alone.
---@param config? table config: dtype; dtype (string): `fp16` or `bf16`; default fp16; match (any): scopes (`blocks.*`) or module types, outside of which all stays float32; allow (list): these ops compute in dtype, too (`add`); deny (list): these in float32 (`mm`); promote (list): these in the widest of their operands; log (boolean): tell in the plan how each kind of op computes, and why; loss_scale (any): "dynamic", "none", "given" (each step's is what the strategy's event loss_scale returns), or a number that stays; default dynamic for fp16, none for bf16; init_scale (number): of a dynamic scale; default 65536; growth_factor (number): after growth_interval steps that are finite; default 2; backoff_factor (number): after a step that is not; default 0.5; growth_interval (integer): steps; default 2000; min_scale (number): a dynamic scale does not fall below; default 0; hysteresis (integer): a dynamic scale falls from so many steps on that were not finite since it grew; default 1; skip_if_nonfinite (boolean): a step with a gradient that is not finite, on any rank, changes nothing; default true where the loss is scaled, else false.
---@return table
function methods.amp_native(config) end

---The model in fp16 or bf16: ops read parameters and floating inputs in it and compute in it, but for norms and losses, and gradients come out in it. The optimizer keeps float32 masters, which checkpoints hold; or, with masters = false, bf16 parameters are all there is, and new values are rounded up or down at random, right on average.
---@param config? table config: dtype; dtype (string): `fp16` or `bf16`; default fp16; masters (boolean): false: bf16 alone, rounded at random; default true; gradients (string): what gradients are summed and reduced in, dtype or `float32`; default dtype with one microbatch, float32 with several; loss_scale (any): "dynamic", "none", "given" (each step's is what the strategy's event loss_scale returns), or a number that stays; default dynamic for fp16, none for bf16; init_scale (number): of a dynamic scale; default 65536; growth_factor (number): after growth_interval steps that are finite; default 2; backoff_factor (number): after a step that is not; default 0.5; growth_interval (integer): steps; default 2000; min_scale (number): a dynamic scale does not fall below; default 0; hysteresis (integer): a dynamic scale falls from so many steps on that were not finite since it grew; default 1; skip_if_nonfinite (boolean): a step with a gradient that is not finite, on any rank, changes nothing; default true where the loss is scaled, else false.
---@return table
function methods.half(config) end

---Keeps activations of the matched scopes, parameters or optimizer state in the host's memory while the device does not need them. Copies run beside the ops.
---@param config? table config: scope or module type, ...; layers (integer): only the first so many of the matched scopes (default `blocks.*`): the last ones are needed at once; optimizer (boolean): optimizer state; default false; parameters (boolean): with fsdp: each rank's parts of the parameters; default false; prefetch (integer): copy back so many scopes, or buckets, before they are needed; default 1.
---@return table
function methods.offload(config) end

---What a step does at the same time, or in one pass, beside what it does so anyway (grad_comm overlaps the reduction of gradients, fsdp the gathering of units, offload its copies; the schedules zb1p, zb2p and zbv of pipeline_parallel delay weight gradients in an order of their own).
---@param config? table config: accumulate (boolean): matrix products add to the gradient that they are a part of, with several microbatches; default false; step (boolean): the optimizer steps a bucket of gradients as soon as it is reduced; without clip_norm and loss scale; default false; receives (boolean): a pipeline's stage receives what its next section needs while one runs, into memory of its own; default false; slices (integer): a matrix product whose sums are reduced over ranks, or whose rows are gathered (tensor_parallel, with and without sequence), is cut into so many pieces of rows, one of which moves while another is computed; default 1; sliced (list): which of them: gathers, sums (of the forward pass), gradient_sums; default all; whole (list): scopes (`blocks.*.attn.qkv`) or module types, some of which the model has, whose products are not cut; default none; bulk (list): which collectives of tensor_parallel's backward pass go beside products that do not need them, as a whole: gathers (beside the product of the input's gradient), sums (beside that of the weight's); the others are waited for at once; default both; deferred_head (any): the weight gradient of the vocabulary head, with pipeline_parallel: true has it computed behind all else of the last stage, a number that of so many microbatches at most, whose activations and gradients stay until then; default false; head (string): deferred_head: the head's weight; default that of the largest product behind which there is only the loss; weights (boolean): the gradients of weights are computed behind those of the inputs of a microbatch, and with pipeline_parallel where a stage would wait else, by any schedule that does not do so itself; default false; experts (boolean): a microbatch's backward pass and the next one's forward pass run in turns: while one's rows go to their experts or back (expert_parallel), the other computes; with several microbatches, in a pipeline where its schedule has the two side by side (of 1f1b, extra = the stages behind, or eager_1f1b, keep stages from waiting for each other); default false.
---@return table
function methods.overlap(config) end

---Layers that the model writes out in primitive ops become one op forward and one backward, which keep less for the backward pass and read memory once: attention, cross_entropy, layer_norm, rms_norm, rotary, swiglu, and pairs of your own. Where something else reads a value inside such a layer it stays as it is.
---@param config? table config: names of built-in pairs (default: all) and pairs of your own, {name, pattern, replacement}: graphs in text form (runtime/README.md section 7).
---@return table
function methods.module_replace(config) end

---Linear layers multiply eight-bit floats (E4M3, or E5M2 for gradients) and sum in the type that they had: their inputs, weights and gradients are scaled, rounded to nearest even and saturated, exactly as such a device would. A device that multiplies such numbers does; elsewhere products are emulated. Parameters and the optimizer's state stay as they are. Names and defaults are Megatron's.
---@param config? table config: fp8 (string): `e4m3` or `hybrid` (E5M2 for gradients); default e4m3; match (any): scopes (`blocks.*`) or module types of the layers; default all; fp8_recipe (string): `delayed` (a tensor's scale is that of earlier microbatches), `tensorwise` (its own) or `blockwise` (one for each fp8_block numbers that are summed over); default delayed; fp8_margin (integer): room above the largest magnitude, in powers of two; default 0; fp8_amax_history_len (integer): delayed: microbatches looked back on; default 1; fp8_amax_compute_algo (string): delayed: `most_recent` or `max` of these; default most_recent; fp8_interval (integer): delayed: microbatches that a scale serves; default 1; fp8_reduce_amax (boolean): false: each rank scales its part of a tensor by that part's own magnitudes, and nothing is sent (delayed, tensorwise); not what one device does. Default true; fp8_emulate (boolean): false: on devices that have no eight-bit products the method is left out, with a warning; default true; fp8_block (integer): blockwise: default 128; fp8_wgrad (boolean): false: weights' gradients are products of what was not rounded; default true; product (string): `native` (the device multiplies eight-bit floats itself), `emulated` (they are widened first) or `auto`: native where the device can and the recipe is not blockwise; default auto.
---@return table
function methods.fp8(config) end

---Says which dims of ops may be split over an axis, and which ops may run whole on all its ranks. An op that would run otherwise is pinned to what is allowed: whole where it may be, else split along the first dim of the list that can be.
---@param config? table config: constraints: {name = op (`aten::mm`), parent_module = the end of a module's path, or of the types along it (numbers are left out), allowed_partition_dims = {"INPUT,DIM", ...}, replica_allowed = boolean}; of several for an op the one with the longest parent_module counts; axis (string): the axis; default `tensor`.
---@return table
function methods.partition_constraints(config) end

---Has the exact solver choose, all together, how each op is sharded over axes of the mesh, and by block whether parameters are stored in parts, the forward pass runs again and activations lie on the host, and if asked to the precision, so that a step costs least and no rank needs more memory than it may. Stands behind all other methods.
---@param config? table config: axis (any): the axis, or a list of axes, over which ops are sharded; default all of the kind `tensor`; memory (any): what a rank may use: bytes, a text as "40GB", or "device" (default): what the devices have; the compiled programs need no more; choose (any): what may be chosen beside shardings, of storage (parameters, gradients and optimizer state in parts over zero or data, as zero1, zero2 and fsdp have them), recompute and offload (of activations); default all of them that no other method of the strategy says; precision (list): what may be chosen of `none`, `amp_native` and `half`, in bf16, which change numbers; default what the strategy has; smallest (integer): parameters of fewer bytes are not split; default 0.
---@return table
function methods.auto_sharding(config) end

---Makes a method of your own; the result is used as the built-in ones are. `apply` edits the plan: plan:place(match, axis, placement), plan:place_sent(part, axis, placement) (what a part of the pipeline reads of others), plan:scale_loss(number or "given"), plan:microbatches(n), plan:note(sentence); plan:copies(axes) has the ranks of these axes train copies of the model, each on its own samples, and plan:average(match, axes, every, states) averages the parameters that match (and the optimizer's states of them) over such axes behind every so many steps. `cost`, where there is one, tells perigee.profiler's costs what the method costs: `with` and `without` have the seconds and bytes of plans with and without it (nil where there is none without it); it returns a table of seconds and bytes, where what is left out is their difference.
---@param method table name (string), fields (name = type, or {type, doc, required, default}), check(config, request), apply(plan, config, request), cost(config, request, with, without), doc
---@return function
function methods.define(method) end

---Device meshes: named axes over ranks, the first listed varies fastest.
---@class perigee.mesh
local mesh = {}

---Checks a mesh and returns it as {axes, order, size, submeshes}.
---@param axes table a list of {name, size}, {axes = ..., order = ...}, or {submeshes = {AXES, ...}, order = ...}: one for each position of an axis `pipe`
---@return table
function mesh.new(axes) end

---Returns the groups of ranks over the axes.
---@param mesh table what `new` returned
---@param axes string one axis, or several with commas
---@return integer[][]
function mesh.groups(mesh, axes) end

---Sharding rules: how an op's dims relate, so that it can run on parts.
---@class perigee.shard
local shard = {}

---Adds or replaces an op's rule in the plans of this script, which calls it before it returns its strategy. An op without a rule runs on whole tensors.
---@param op string the op's name, such as my::op
---@param text string operands -> results, one list of dims each: "b* k+, n k -> b* n". `k` may be sharded and results have it too; `k+` is summed over; `k^` stays whole; `b*` stands for any number of dims; `1` for one that stays whole. After `;`: attributes that do not matter (eps), must have a value (sparse=false) or name whole dims (dim^), and linear(0), the operands that may be partial sums
function shard.rule(op, text) end

---The exact solvers, and the search for a plan. Indices of `choice` count from 1.
---@class perigee.solver
local solver = {}

---Chooses one option per op. Ops in `follows`, `edges` and `moments` count from 0, as in a file; `false` in an edge's `time` forbids a pair. Returns status, time, lower_bound, memory, choice; without a solution status and reason.
---@param problem table ops, edges, memory_limit, ...: as in `perigee solve`
---@param options? table solver (`auto`, `labels` or `ilp`) and time_limit in seconds
---@return table
function solver.assign(problem, options) end

---Cuts layers into pipeline stages. Layers and `submesh` count from 0, as in a file. Returns status, time, lower_bound, choice; without a solution status and reason.
---@param problem table layers, devices, microbatches, submeshes, candidates
---@param options? table solver (`auto`, `labels` or `ilp`) and time_limit in seconds
---@return table
function solver.stages(problem, options) end

---Searches the job's best plan, as the strategy `auto` does. Returns the strategy, a list of methods to add to or to return, and what is known of it: seconds (of a step, by the search's model), lower_bound (by which no plan takes less) and stopped (by time_limit); or nil and why no plan fits.
---@param pins? table what is fixed, the rest is searched: tensor, expert, context, data, pipe (sizes of axes), submeshes (false: all stages are alike; `all`, `power_of_two` or `small_power_of_two`: how many ranks a stage may have; or a list with the axes of each stage, as parallel_mode takes it), starts (the blocks at which the parts of a pipeline behind the first begin; where stages have several, the first block and the module behind the last, too), attention (of context ranks: `all_gather`, `ring` or `all_to_all`), micro (samples of a microbatch), schedule, chunks, sequence, offload (booleans; offload: the optimizer's state lies on the host), checkpoint (a boolean, or `full`: all of a block runs again, or `selective`: all but its products with weights and attention), every (of so many blocks one runs again, and the others not or, `selective`, in part), zero (0 to 3), memory (bytes of a rank, where its device has more), reserve (so many times its two largest buffers stay free), optimizer_resident and optimizer_transient (bytes that the optimizer keeps, and takes while it steps, for each byte of weights, in the place of what it does), smallest (weights of fewer bytes are not split over tensor), solver (`labels` or `ilp`: it chooses which blocks of a stage run again, and where stages begin), time_limit (seconds of the whole search: then the best so far), estimated (true: nothing that was measured counts), forbid (parallel_mode's), precision (a list of what may be chosen of `none`, `amp_native` and `half`, in bf16; default none), methods (a list that every plan has; the fields of tensor_parallel, expert_parallel, context_parallel and pipeline_parallel hold where their axis has several ranks: `column` and `row` pin weights, `starts` pins cuts, which are timed as they are once a plan is simulated)
---@return table?, table|string
function solver.plan(pins) end

---Returns the best combinations by the model, best first, each with strategy, seconds, bytes, text and its numbers; or nil and why no plan fits.
---@param pins? table what is fixed, the rest is searched: tensor, expert, context, data, pipe (sizes of axes), submeshes (false: all stages are alike; `all`, `power_of_two` or `small_power_of_two`: how many ranks a stage may have; or a list with the axes of each stage, as parallel_mode takes it), starts (the blocks at which the parts of a pipeline behind the first begin; where stages have several, the first block and the module behind the last, too), attention (of context ranks: `all_gather`, `ring` or `all_to_all`), micro (samples of a microbatch), schedule, chunks, sequence, offload (booleans; offload: the optimizer's state lies on the host), checkpoint (a boolean, or `full`: all of a block runs again, or `selective`: all but its products with weights and attention), every (of so many blocks one runs again, and the others not or, `selective`, in part), zero (0 to 3), memory (bytes of a rank, where its device has more), reserve (so many times its two largest buffers stay free), optimizer_resident and optimizer_transient (bytes that the optimizer keeps, and takes while it steps, for each byte of weights, in the place of what it does), smallest (weights of fewer bytes are not split over tensor), solver (`labels` or `ilp`: it chooses which blocks of a stage run again, and where stages begin), time_limit (seconds of the whole search: then the best so far), estimated (true: nothing that was measured counts), forbid (parallel_mode's), precision (a list of what may be chosen of `none`, `amp_native` and `half`, in bf16; default none), methods (a list that every plan has; the fields of tensor_parallel, expert_parallel, context_parallel and pipeline_parallel hold where their axis has several ranks: `column` and `row` pin weights, `starts` pins cuts, which are timed as they are once a plan is simulated)
---@param most? integer how many; default 10
---@return table?, string?
function solver.candidates(pins, most) end

---Searches by trials: for each combination the best plan under its pins is made and judged. Returns strategy, seconds, bytes, ended (`all`, `trials`, `patience`, `time`), combinations and trials; or nil and why no plan fits. Options count from 1.
---@param pins? table what is fixed, the rest is searched: tensor, expert, context, data, pipe (sizes of axes), submeshes (false: all stages are alike; `all`, `power_of_two` or `small_power_of_two`: how many ranks a stage may have; or a list with the axes of each stage, as parallel_mode takes it), starts (the blocks at which the parts of a pipeline behind the first begin; where stages have several, the first block and the module behind the last, too), attention (of context ranks: `all_gather`, `ring` or `all_to_all`), micro (samples of a microbatch), schedule, chunks, sequence, offload (booleans; offload: the optimizer's state lies on the host), checkpoint (a boolean, or `full`: all of a block runs again, or `selective`: all but its products with weights and attention), every (of so many blocks one runs again, and the others not or, `selective`, in part), zero (0 to 3), memory (bytes of a rank, where its device has more), reserve (so many times its two largest buffers stay free), optimizer_resident and optimizer_transient (bytes that the optimizer keeps, and takes while it steps, for each byte of weights, in the place of what it does), smallest (weights of fewer bytes are not split over tensor), solver (`labels` or `ilp`: it chooses which blocks of a stage run again, and where stages begin), time_limit (seconds of the whole search: then the best so far), estimated (true: nothing that was measured counts), forbid (parallel_mode's), precision (a list of what may be chosen of `none`, `amp_native` and `half`, in bf16; default none), methods (a list that every plan has; the fields of tensor_parallel, expert_parallel, context_parallel and pipeline_parallel hold where their axis has several ranks: `column` and `row` pin weights, `starts` pins cuts, which are timed as they are once a plan is simulated)
---@param options table variables (a list; each a list of options, tables of pins, of which a combination has one), algorithm (`bo`: Bayesian optimisation, `combination`: all of them, `random`), trials (at most; default 30), patience (`bo` ends where the best is older than so many trials; default 8), time_limit and measure in seconds (how long each plan's ops may be measured; default 0: simulated by what is known), seed
---@return table?, string?
function solver.search(pins, options) end

---What a plan takes: measured where this machine was, estimated elsewhere, and always said which.
---@class perigee.profiler
local profiler = {}

---Returns seconds (of a step), bubble_ratio, measured_share (0: all is an estimate) and peak_bytes (of the rank that takes the most), by the simulator. Times nothing.
---@param strategy table a list of methods
---@param pins? table as perigee.solver.plan has them: reserve, optimizer_resident and optimizer_transient change peak_bytes, others nothing
---@return table
function profiler.estimate(strategy, pins) end

---Returns the plan that the strategy comes to, as plan.json has it.
---@param strategy table a list of methods
---@return table
function profiler.plan(strategy) end

---Returns what the strategy's methods cost, a list of {method, seconds, bytes}: how much more a step takes with it than without it, and the rank that takes the most memory (below 0: it saves so much), by the simulator and the compiled programs, both ways. Where there is no plan without it, `refused` says why. `own` is true where a method of yours has said so itself.
---@param strategy table a list of methods
---@param method? string the cost of this one alone; default all
---@return table
function profiler.costs(strategy, method) end

---Measures the ops of the strategy's plan on this machine, keeps them in the profile, and returns what estimate does, with ops and measured (how many of them).
---@param strategy table a list of methods
---@param seconds? number budget of the measurements; default 30
---@return table
function profiler.measure(strategy, seconds) end

---Strategies as files: plain data, readable and the same everywhere.
---@class perigee.strategy
local strategy = {}

---Writes the strategy.
---@param file string a .json file below the script's folder
---@param strategy table the strategy
function strategy.save(file, strategy) end

---Returns a saved strategy, or a plan as a table, or nil and why there is none.
---@param file string a .json file below the script's folder
---@return table?, string?
function strategy.load(file) end

---Returns the list of a file of constraints, for the method partition_constraints, or nil and why there is none.
---@param file string a .yaml or .json file below the script's folder
---@return table?, string?
function strategy.constraints(file) end

---Returns true when both are the same, else false and where they differ.
---@param a table a strategy
---@param b table a strategy
---@return boolean, string?
function strategy.compare(a, b) end

---What the dialects of other systems ask of the host.
---@class perigee.host
local host = {}

---Returns ", did you mean X?" for the nearest name, or "" where none is near.
---@param name string what a user wrote
---@param names table the names that exist
---@return string
function host.suggest(name, names) end

---Returns the environment's variables of a system, by name.
---@param prefix string what their names begin with, such as `EPL_`
---@return table
function host.environment(prefix) end

---Returns "FILE:LINE: ", where the user's script calls into a module of Perigee's.
---@return string
function host.place() end

---Returns the orders of samples that there are (data.sampler).
---@return table
function host.samplers() end

---Returns what is wrong with a key of a job and its value, nil where nothing is. Keys of `model` are checked when the job is read.
---@param key string of a job, `optimizer.lr`
---@param value any what it is set to
---@return string?
function host.check_key(key, value) end

---Returns the text's value; null is nil.
---@param text string JSON
---@return any
function host.parse_json(text) end

---A tensor of the model: it has a shape and a dtype, and no value while the model is captured. x:op(...) is
---torch.op(x, ...); x[i] is x:select(0, i); dims and indices count from 0.
---@class perigee.Tensor
---@field shape integer[]
---@field dtype string
---@field size fun(self: perigee.Tensor, dim: integer?): integer|integer[]
---@field dim fun(self: perigee.Tensor): integer
---@field numel fun(self: perigee.Tensor): number
---@field [string] fun(self: perigee.Tensor, ...): any
---@operator add(perigee.Tensor|number): perigee.Tensor
---@operator sub(perigee.Tensor|number): perigee.Tensor
---@operator mul(perigee.Tensor|number): perigee.Tensor
---@operator div(perigee.Tensor|number): perigee.Tensor
---@operator pow(perigee.Tensor|number): perigee.Tensor
---@operator mod(perigee.Tensor|number): perigee.Tensor
---@operator unm: perigee.Tensor

---A module: its fields that are modules, parameters and buffers have the names of torch.nn.
---@class perigee.Module
---@field training boolean
---@field named_parameters fun(self: perigee.Module): fun(): string, perigee.Tensor
---@field named_buffers fun(self: perigee.Module): fun(): string, perigee.Tensor
---@field [string] any
---@operator call: any

---For scripts of models: every op of LibTorch by its schema's name, torch.softmax(x, -1), torch.gelu(x, { approximate = "tanh" }). Arguments by position, a table of named ones last; lists are tables, dtypes strings, and nil what is left out.
---@class perigee.torch
local torch = {}

---Returns a constant.
---@param values any a number, or lists of lists of numbers
---@param options? table dtype, such as "float32"; default: int64 for whole numbers, else that of the model
---@return perigee.Tensor
function torch.tensor(values, options) end

---Calls a function whose ops belong to a scope of that name.
---@param name string the scope below the one around it
---@param run function is called with the other arguments
---@return any
function torch.scope(name, run) end

---Calls a function without recording gradients.
---@param run function is called with the other arguments
---@return any
function torch.no_grad(run) end

---An error at the user's line where the condition is false or nil.
---@param condition any what must hold
---@param message string what must hold, but got what
function torch.check(condition, message) end

---First values, in place, as torch.nn.init.
---@class perigee.nn.init
---@field normal_ fun(x: perigee.Tensor, mean: number?, std: number?): perigee.Tensor
---@field uniform_ fun(x: perigee.Tensor, from: number?, to: number?): perigee.Tensor
---@field constant_ fun(x: perigee.Tensor, value: number): perigee.Tensor
---@field zeros_ fun(x: perigee.Tensor): perigee.Tensor
---@field ones_ fun(x: perigee.Tensor): perigee.Tensor
---@field kaiming_normal_ fun(x: perigee.Tensor, options: table?): perigee.Tensor
---@field kaiming_uniform_ fun(x: perigee.Tensor, options: table?): perigee.Tensor
---@field xavier_normal_ fun(x: perigee.Tensor, gain: number?): perigee.Tensor
---@field xavier_uniform_ fun(x: perigee.Tensor, gain: number?): perigee.Tensor

---For scripts of models: layers with the shapes, defaults and first values of torch.nn, written in Lua (runtime/perigee/nn.lua). Options are a table, last.
---@class perigee.nn
local nn = {}

---Returns a class: its functions init(self, ...) and forward(self, ...) make and run it; fields that init sets are its children, parameters and buffers, in that order.
---@param name string type of its scopes
---@param base? table a class
---@return any
function nn.Module(name, base) end

---Marks a tensor as a parameter of the module that gets it as a field.
---@param tensor any its values
---@param trained? boolean default true
---@return perigee.Tensor
function nn.Parameter(tensor, trained) end

---Marks a tensor as a buffer: kept from step to step, not trained.
---@param tensor any its values
---@return perigee.Tensor
function nn.Buffer(tensor) end

---torch.scope.
---@param name string the scope
---@param run function the function
---@return any
function nn.scope(name, run) end

---torch.no_grad.
---@param run function the function
---@return any
function nn.no_grad(run) end

---x times a weight [outputs, inputs] and a bias.
---@param inputs integer features or channels of the input
---@param outputs integer features or channels of the output
---@param options? table bias (true)
---@return perigee.Module
function nn.Linear(inputs, outputs, options) end

---Rows of a weight by index.
---@param count integer rows
---@param width integer size of a row
---@return perigee.Module
function nn.Embedding(count, width) end

---Normalises the last dims.
---@param shape any size of the last dim, or a list of the last ones
---@param options? table eps (1e-5), bias (true)
---@return perigee.Module
function nn.LayerNorm(shape, options) end

---Divides by the root of the mean square of the last dims.
---@param shape any size of the last dim, or a list of the last ones
---@param options? table eps (1e-6)
---@return perigee.Module
function nn.RMSNorm(shape, options) end

---Normalises groups of channels.
---@param groups integer they divide channels
---@param channels integer size of dim 1
---@param options? table eps (1e-5)
---@return perigee.Module
function nn.GroupNorm(groups, channels, options) end

---A convolution over one dim.
---@param inputs integer features or channels of the input
---@param outputs integer features or channels of the output
---@param kernel any size, or a list of one for each dim
---@param options? table stride, padding, dilation, groups (default 1, 0, 1, 1), bias (true)
---@return perigee.Module
function nn.Conv1d(inputs, outputs, kernel, options) end

---A convolution over two dims.
---@param inputs integer features or channels of the input
---@param outputs integer features or channels of the output
---@param kernel any size, or a list of one for each dim
---@param options? table stride, padding, dilation, groups (default 1, 0, 1, 1), bias (true)
---@return perigee.Module
function nn.Conv2d(inputs, outputs, kernel, options) end

---Normalises over the batch.
---@param channels integer size of dim 1
---@param options? table eps (1e-5), momentum (0.1)
---@return perigee.Module
function nn.BatchNorm1d(channels, options) end

---Normalises over the batch and two more dims.
---@param channels integer size of dim 1
---@param options? table eps (1e-5), momentum (0.1)
---@return perigee.Module
function nn.BatchNorm2d(channels, options) end

---Zeroes elements while training.
---@param p? number probability, default 0.5
---@return perigee.Module
function nn.Dropout(p) end

---Returns what it gets.
---@return perigee.Module
function nn.Identity() end

---torch.relu.
---@return perigee.Module
function nn.ReLU() end

---torch.gelu.
---@return perigee.Module
function nn.GELU() end

---torch.silu.
---@return perigee.Module
function nn.SiLU() end

---torch.tanh.
---@return perigee.Module
function nn.Tanh() end

---Modules 0, 1, ...: list:append(m), list:get(i), `for _, m in list:each() do`.
---@param modules? table a list of modules
---@return perigee.Module
function nn.ModuleList(modules) end

---A list in which each module gets what the one before it gave.
---@param modules table a list of modules
---@return perigee.Module
function nn.Sequential(modules) end
