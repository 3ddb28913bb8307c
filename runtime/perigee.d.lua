---@meta
-- Editor types of Perigee's Lua API, made by `perigee lua --types`. Do not edit.

---Optimisation methods. Each call returns {name, config}; a strategy is a list of them.
---@class perigee.methods
local methods = {}

---The device mesh: a list of {axis, size}, the first varies fastest over ranks. Without axes all ranks are on `data`. The data axis adjusts to a world that was given. Submeshes, one for each stage of a pipeline, give stages different numbers or axes of ranks. A method may use several axes of a kind, distinguished by a number: `tensor` and `tensor2`.
---@param config? table config: {axis, size}, ...; submeshes (list, default none): instead of axes: the axes of each stage of the pipeline (axis `pipe`), as in `{{{"data", 2}}, {{"tensor", 1}}}`; an axis that a stage omits has one rank there; order (list of integers, default 0, 1, 2, ...): the ranks to use, in mesh order; exact (boolean, default false): a number of ranks other than the product of the sizes is an error; no axis adjusts; rest (string, default `data`): the axis that adjusts to a world that was given; instances (boolean, default false): a larger world holds several instances of the mesh, on consecutive ranks (axis `instance`), which train the same; no axis adjusts; device_mesh (boolean, default false): a mesh as PyTorch's DeviceMesh: axes of one rank are dropped, and order is not allowed; forbid (list of strings, `all_gather`, `all_to_all`, `nd_shardings`, `replicated_parameters`, `replicated_products`, default none): properties that the plan must not have: all_gather or all_to_all of values that ops read; parameters replicated on several ranks; tensors split over several axes; products that all ranks compute.
---@return table
function methods.parallel_mode(config) end

---Splits linear layers, experts and embeddings over the ranks of axes of the mesh. Without column, row and vocab the layers of the built-in models gpt, llama, moe, mlp and hf are split; of other models, or with planned, what the exact solver finds.
---@param config? table config: axis (string or list, default all of the kind `tensor`): the axis, or a list of axes over all of which a dim is split; with planned weights the solver plans weights, samples and values over all of them together; column (string or list, default none): weights or scopes (`blocks.*.attn.qkv`) split by their outputs; row (string or list, default none): weights or scopes split by their inputs: the layer after one of `column`; vocab (string or list, default none): embeddings split by their rows; planned (boolean, default true for models whose layers are not known): the exact solver finds which weights are split, and along which dims, at the least cost of communication and compute; experts (boolean, default true, except for experts that expert_parallel has placed on one of these axes, or splits): of known layers: split the experts, too; smallest (integer, at least 0, default 0): weights of fewer bytes are not split; sequence (boolean, default false): shard activations on their sequence between the layers: less memory for the same bytes of communication.
---@return table
function methods.tensor_parallel(config) end

---Shards activations on their sequence over axes of the mesh; before attention an all-to-all gives each rank the whole sequence of some heads (Ulysses). The number of heads must be a multiple of the ranks.
---@param config? table config: axis (string or list, default all of the kind `sequence`): the axis, or a list of axes, over all of which the sequence is sharded.
---@return table
function methods.sequence_parallel(config) end

---Shards activations on their sequence over an axis of the mesh, through attention: its keys and values are all-gathered, sent around a ring, or exchanged for heads. Under a causal mask all ranks get the same work.
---@param config? table config: axis (string, default `context`): the axis; attention (string, `all_gather`, `ring`, `all_to_all`, `hierarchical`, default `all_gather`): all_gather: every rank reads all keys and values; ring: they go around the ranks in shards; all_to_all: each rank has all keys of some heads; hierarchical: all_to_all over `inner`, a ring over `axis`; inner (string, default `sequence`): hierarchical: the axis of the all_to_all; load_balance (boolean, default true where attention is causal and the sequence divides into 2 x ranks chunks): all_gather and ring: zigzag, each rank has one chunk from the start of the sequence and one from its end.
---@return table
function methods.context_parallel(config) end

---Shards the experts of a mixture over the ranks of axes. Where the batch is sharded over them too, tokens are sent to the ranks of their experts and back, without padding; where tokens are replicated, each rank computes its experts and the results are summed.
---@param config? table config: axis (string or list, default all of the kind `expert`, over which the batch is then sharded too): the axis, or a list of axes, of the experts; {} for none; tensor (string or list, default none): the axis, or a list of axes, over which each expert is split, in place of tensor_parallel's; over one of the kind `expert` the batch is sharded too, and its ranks gather each other's tokens.
---@return table
function methods.expert_parallel(config) end

---Spreads the layers over the stages of an axis of the mesh; microbatches run through them in the order of a schedule. Without starts the parts are cut between blocks so that the slowest part has the least work, or with tolerance so that parts receive fewer bytes.
---@param config? table config: axis (string, default `pipe`): the axis of the stages; schedule (string, `gpipe`, `1f1b`, `interleaved`, `eager_1f1b`, `zb1p`, `zb2p`, `zbv`, `v_half`, `v_min`, `dualpipe_v`, `looped_bfs`, default `1f1b`): order of forward and backward passes on each stage; chunks (integer, at least 1, default 2 for interleaved, zbv, v_half, v_min, dualpipe_v and looped_bfs, else 1): parts of a stage; starts (list of strings, default chosen by balance and tolerance): the scopes (`blocks.4`) at which the parts after the first begin: one fewer than parts; holds (list, default none): with starts: for each part, scopes or module types that must begin in it; blocks (string or list, default the longest row of numbered modules (`blocks.*`), or all modules where none are numbered): scopes or module types between which parts may be cut; balance (string, `work`, `count`, default `work`): quantity that is equal in all parts; count, as in EPL's automatic pipeline: blocks, where four or more divide over the parts, else ops; tolerance (number, at least 0, default none): a part may exceed its share of the work by this fraction (0.5: up to 1.5 times its share) where parts then receive fewer bytes; with layers, a layer of its share, 0.5 where it is not given; layers (integer, at least 1, default parts are cut between blocks): parts consist of whole layers: so many clusters of ops, each of which begins where a module does, with the fewest bytes between them (Alpa's layer construction); part_layers (list of integers, default equal): with layers: the number of layers of each part; group (integer, at least 0, default one a stage): interleaved: microbatches that run through a chunk together; extra (integer, at least 0, default 0): 1f1b: further microbatches in flight on each stage; dtype (string, `fp16`, `bf16`, `float16`, `bfloat16`, `float32`, `float64`, default the values' own types, as on one device): type to which messages between stages are cast; costs (list of numbers, default 1, 1, 1, 0): {forward, input gradient, weight gradient, message}: times of a stage and of its messages, for schedules that are found by a search.
---@return table
function methods.pipeline_parallel(config) end

---Tensor, pipeline and data parallel together, by the mesh: tensor_parallel where it has an axis tensor, pipeline_parallel where it has an axis pipe.
---@param config? table config: tensor (table, default none): fields of tensor_parallel; pipeline (table, default none): fields of pipeline_parallel.
---@return table
function methods.mixed_parallel(config) end

---Tensor, pipeline and data parallel on a mesh of exactly these axes, with the precision and batch of a DeepSpeed config.
---@param config? table config: tensor (table, default none): fields of tensor_parallel; pipeline (table, default none): fields of pipeline_parallel; ds_config (table, default none): train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps, fp16 and bf16 as in DeepSpeed; fp16 and bf16 are the method half.
---@return table
function methods.ds_3d_parallel(config) end

---Splits the global batch into microbatches whose gradients add up before the optimizer step.
---@param config? table config: microbatches (integer, required, at least 1): microbatches per optimizer step.
---@return table
function methods.gradient_accumulation(config) end

---How gradients are reduced: in which buckets and on how many streams, in which precision, as a mean or a sum, and before or after clipping.
---@param config? table config: bucket_mb (number, above 0 and below 1000000, default 25): smallest size of a bucket in MiB; buckets (integer, from 1 to 1000000, default any number): the most buckets of gradients with the same type and axes, which then grow above bucket_mb; overlap (boolean, default true): start a bucket as soon as its last gradient is complete; communicators (integer, from 1 to 64, default 1): streams over the data axis, among which buckets alternate; dtype (string, `fp16`, `bf16`, `float16`, `half`, `bfloat16`, default the gradients' own type): gradients are rounded to this type and reduced in it; scale (number, above 0 and below 1e+30, default 128 with fp16, 1 with bf16): with dtype: gradients are multiplied by it before they are rounded, and divided by it after the reduction; reduce (string, `mean`, `sum`, default `mean`): gradients are averaged or summed over data ranks and microbatches; clip (string, `after`, `before`, default `after`): after the reduction, or before: each data rank clips the gradient of its own samples, which is not the result of one device; sparse (string, `dense`, `gathered`, `any`, default `dense`): gradients of embeddings: dense ones are all-reduced; gathered ones are computed from the indices and rows of all ranks, gathered in every microbatch; any: gathered where the model has such gradients.
---@return table
function methods.grad_comm(config) end

---Activation checkpointing: recomputes the matched scopes in the backward pass instead of saving their results, which takes less memory and more compute. Dropout draws the same numbers.
---@param config? table config: scope or module type, ..., or `auto`: all rows of numbered modules of one type; in a model of n modules without such rows, sqrt(n) runs of modules, the last modules excepted; wrap_class (string or list, default none): further scopes (`blocks.*`) or module types (`Block`), as in the list; kept (list of strings, default none): instead of a list: scopes whose results are saved, of the longest row of numbered modules or of all modules; the scopes up to each are recomputed together, those after the last are not recomputed; most (integer, at least 1, default all): only this number of the matched scopes, from the first on; every (integer, at least 1, default 1): only each n-th of the matched scopes; group (integer, at least 1, default 1): number of consecutive matched scopes recomputed together, from one saved input; ops (list of strings, default all): recompute only these ops (`attention`; with module_replace also `swiglu`); keep (list of strings, default none): recompute all ops but these (`mm`, `attention`); where ranks reduce or exchange such a result, the reduced result is saved; full (list of strings, default none): with keep: scopes all of whose ops are recomputed; one scope of a group stands for the group; full_every (integer, at least 2, default none): with keep: recompute all ops of each n-th group; kept_microbatches (integer, at least 0, default 0): with pipeline_parallel: number of a stage's in-flight microbatches that save all results; excludes offloaded activations and overlap's experts; memory (any, default no limit: all are recomputed): bytes that a rank may need (`40GB`, `512MiB`), or `device`: the memory of its device; only as many scopes are recomputed as it takes, with the least arithmetic.
---@return table
function methods.checkpoint(config) end

---ZeRO level 1: each rank stores and updates its part of the optimizer state (and of half's masters); gradients are reduce-scattered once a step, new weights are all-gathered.
---@param config? table config: axis (string or list, default `zero` where the mesh has it, else `data`): the axes over which parameters are stored in parts: of the kinds data, zero, context and sequence; match (string or list, default none): patterns of scopes (`blocks.*`) that make a unit each; atorch_wrap_cls (string or list, default none): module classes that make a unit each; atorch_size_based_min_num_params (integer, at least 1, default none): units are filled in the order of use up to this number of parameters; excludes match and atorch_wrap_cls; trainable_outmost (boolean, default false): all trained parameters make one unit, frozen ones the other units; ignored (string or list, default none): patterns of parameters that stay replicated; atorch_ignored_cls (string or list, default none): module classes whose parameters stay replicated; one_copy (boolean, default true where the ranks of `axis` compute on the CPU of one host): the ranks of `axis`, which are on one host, hold one copy of the weights in memory that all of them map: each writes its part of the new weights, and nothing is gathered; use_ds_zero (boolean): no effect: there is one implementation; not_use_fsdp (boolean): no effect: there is one implementation.
---@return table
function methods.zero1(config) end

---ZeRO level 2: each rank stores its part of the optimizer state (and of half's masters) and of the gradients, which are reduce-scattered in every microbatch; new weights are all-gathered.
---@param config? table config: axis (string or list, default `zero` where the mesh has it, else `data`): the axes over which parameters are stored in parts: of the kinds data, zero, context and sequence; match (string or list, default none): patterns of scopes (`blocks.*`) that make a unit each; atorch_wrap_cls (string or list, default none): module classes that make a unit each; atorch_size_based_min_num_params (integer, at least 1, default none): units are filled in the order of use up to this number of parameters; excludes match and atorch_wrap_cls; trainable_outmost (boolean, default false): all trained parameters make one unit, frozen ones the other units; ignored (string or list, default none): patterns of parameters that stay replicated; atorch_ignored_cls (string or list, default none): module classes whose parameters stay replicated; one_copy (boolean, default true where the ranks of `axis` compute on the CPU of one host): the ranks of `axis`, which are on one host, hold one copy of the weights in memory that all of them map: each writes its part of the new weights, and nothing is gathered; use_ds_zero (boolean): no effect: there is one implementation; not_use_fsdp (boolean): no effect: there is one implementation.
---@return table
function methods.zero2(config) end

---Fully sharded data parallel (ZeRO level 3): each rank stores its part of parameters, gradients and optimizer state; a unit's parameters are all-gathered before their use.
---@param config? table config: axis (string or list, default `zero` where the mesh has it, else `data`): the axes over which parameters are stored in parts: of the kinds data, zero, context and sequence; match (string or list, default none): patterns of scopes (`blocks.*`) that make a unit each; atorch_wrap_cls (string or list, default none): module classes that make a unit each; atorch_size_based_min_num_params (integer, at least 1, default none): units are filled in the order of use up to this number of parameters; excludes match and atorch_wrap_cls; trainable_outmost (boolean, default false): all trained parameters make one unit, frozen ones the other units; ignored (string or list, default none): patterns of parameters that stay replicated; atorch_ignored_cls (string or list, default none): module classes whose parameters stay replicated; reshard_after_forward (boolean, default true with FULL_SHARD and HYBRID_SHARD): re-gather a unit for the backward pass instead of keeping it; sharding_strategy (string, `FULL_SHARD`, `SHARD_GRAD_OP`, `HYBRID_SHARD`, `_HYBRID_SHARD_ZERO2`, default `FULL_SHARD`): PyTorch's names: SHARD_GRAD_OP and _HYBRID_SHARD_ZERO2 do not reshard after the forward pass; the hybrid ones shard over an axis zero and replicate over data; forward_prefetch (boolean, default true): prefetch the next unit while one computes; backward_prefetch (string, `BACKWARD_PRE`, `BACKWARD_POST`, `none`, default `BACKWARD_PRE`): BACKWARD_PRE: prefetch in the backward pass, too; the others: gather a unit when it is needed; limit_all_gathers (boolean, default true): prefetch one unit; false: two; prefetch_mb (number, above 0 and below 1000000000, default any size): upper bound on the size of prefetched units in MiB; wrap_trainable_outmost (boolean, default false): ATorch's name of trainable_outmost; fsdp_wrap_params_outmost (boolean, default false): ATorch's older name of it; sync_module_states (boolean): no effect: ranks begin with the same weights; use_orig_params (boolean): no effect: parameters keep their names and shapes; cpu_offload (boolean, default false): store each rank's parts of parameters and optimizer state in host memory.
---@return table
function methods.fsdp(config) end

---Mixed precision as in LibTorch's autocast: matrix products, convolutions and attention compute in fp16 or bf16, softmax, norms and losses in float32 (its lists for CUDA, on every device), all other ops in the widest type of their operands. Parameters, their gradients and the optimizer state keep their types; float64 is not changed.
---@param config? table config: dtype; dtype (string, `fp16`, `bf16`, `float16`, `half`, `bfloat16`, default `fp16`): the low precision; match (string or list, default all): scopes (`blocks.*`) or module types; ops outside of them compute in float32; allow (list of strings, default none): further ops that compute in dtype (`add`); deny (list of strings, default none): ops that compute in float32 (`mm`); promote (list of strings, default none): ops that compute in the widest type of their operands; keep_weights (boolean, default false): keep weights in dtype beside the float32 ones; the optimizer writes both, and no microbatch casts them; log (boolean, default false): note in the plan how each kind of op computes, and why; loss_scale (any, default `dynamic` for fp16, `none` for bf16): `dynamic`, `none`, `given` (the strategy's event loss_scale returns the scale of each step), or a number: a constant scale; init_scale (number, above 0, default 65536): first value of a dynamic scale; growth_factor (number, above 1, default 2): a dynamic scale is multiplied by it after growth_interval finite steps in a row; backoff_factor (number, above 0 and below 1, default 0.5): a dynamic scale is multiplied by it after a non-finite step; growth_interval (integer, at least 1, default 2000): finite steps before a dynamic scale grows; min_scale (number, at least 0, default 0): lower bound of a dynamic scale; hysteresis (integer, at least 1, default 1): non-finite steps since the last growth before a dynamic scale falls; skip_if_nonfinite (boolean, default true where the loss is scaled, else false): skip the optimizer step where a gradient on any rank is not finite.
---@return table
function methods.amp_native(config) end

---The model in fp16 or bf16: ops other than norms and losses read parameters and floating-point inputs in this type, compute in it and return gradients in it. The optimizer keeps float32 masters, which checkpoints hold; with masters = false there are only bf16 parameters, and new values are rounded stochastically.
---@param config? table config: dtype; dtype (string, `fp16`, `bf16`, `float16`, `half`, `bfloat16`, default `fp16`): the low precision; masters (boolean, default true): keep float32 masters; false: bf16 alone, with stochastic rounding; keep_weights (boolean, default false): keep weights in dtype beside the float32 ones; the optimizer writes both, and no microbatch casts them; gradients (string, `fp16`, `bf16`, `float16`, `half`, `bfloat16`, `float32`, `fp32`, default dtype with one microbatch, float32 with several): type in which gradients are summed and reduced: dtype or float32; loss_scale (any, default `dynamic` for fp16, `none` for bf16): `dynamic`, `none`, `given` (the strategy's event loss_scale returns the scale of each step), or a number: a constant scale; init_scale (number, above 0, default 65536): first value of a dynamic scale; growth_factor (number, above 1, default 2): a dynamic scale is multiplied by it after growth_interval finite steps in a row; backoff_factor (number, above 0 and below 1, default 0.5): a dynamic scale is multiplied by it after a non-finite step; growth_interval (integer, at least 1, default 2000): finite steps before a dynamic scale grows; min_scale (number, at least 0, default 0): lower bound of a dynamic scale; hysteresis (integer, at least 1, default 1): non-finite steps since the last growth before a dynamic scale falls; skip_if_nonfinite (boolean, default true where the loss is scaled, else false): skip the optimizer step where a gradient on any rank is not finite.
---@return table
function methods.half(config) end

---Computes logits, cross entropy and the gradients of both in chunks of rows, so that no more than a chunk of the logits exists at a time. For models with a large vocabulary.
---@param config? table config: chunks (integer, at least 2, default 8): chunks of a rank's rows of a microbatch (tokens).
---@return table
function methods.chunked_loss(config) end

---Keeps activations of the matched scopes, parameters or optimizer state in host memory while the device does not need them. Copies overlap the ops.
---@param config? table config: scope or module type, ...; layers (integer, at least 1, default all): only this number of the matched scopes, from the first on (without a list: of `blocks.*`), since the backward pass needs the last ones at once; optimizer (boolean, default false): offload optimizer state; parameters (boolean, default false): with fsdp: offload each rank's parts of the parameters; prefetch (integer, at least 0, default 1): scopes, or buckets, before their use at which the copy back starts.
---@return table
function methods.offload(config) end

---Overlaps further communication with compute, or merges passes over memory. (grad_comm overlaps the reduction of gradients, fsdp the gathering of units, offload its copies; schedules of pipeline_parallel with split backward passes delay weight gradients themselves.)
---@param config? table config: accumulate (boolean, default false): with several microbatches, matrix products add to their gradients in place; those of 16 bits write and add to float32 gradients without rounding; activations (boolean, default false): matrix products of 16 bits (amp_native, half) compute the tanh form of GELU of their results, and its gradient with the sum of its rows: on a GPU by cuBLASLt, which saves passes over memory; step (boolean, default false): the optimizer steps a bucket of gradients as soon as it is reduced; excludes clip_norm and a loss scale; receives (boolean, default false): a pipeline stage prefetches the messages of its next section into buffers of their own; slices (integer, at least 1, default 1): a matrix product whose rows are gathered or whose sums are reduced over ranks (tensor_parallel, with and without sequence) is cut into this number of slices of rows; one slice is sent while another is computed; sliced (list of strings, `gathers`, `sums`, `gradient_sums`, default `gathers`, `sums`, `gradient_sums`): which products are cut: those with gathered rows, with sums of the forward pass, with sums of gradients; whole (list of strings, default none): scopes (`blocks.*.attn.qkv`) or module types whose products are not cut; the model must have one of them; bulk (list of strings, `gathers`, `sums`, default `gathers`, `sums`): which collectives of tensor_parallel's backward pass overlap a whole product that does not need them: gathers (the product of the input gradient), sums (that of the weight gradient); the others are exposed; deferred_head (any, default false): with pipeline_parallel: true defers the weight gradient of the vocabulary head to the end of the last stage's schedule; a number limits the deferred microbatches, whose activations and gradients are kept until then; head (string, default the weight of the largest product that only the loss follows): deferred_head: the head's weight; weights (boolean, default false): compute weight gradients after the input gradients of a microbatch, and with pipeline_parallel where a stage would idle; for schedules without split backward passes; experts (boolean, default false): interleave a microbatch's backward pass with the next one's forward pass: one computes while the other's rows are exchanged for expert_parallel; requires several microbatches, and in a pipeline a schedule that has the two side by side (of 1f1b, extra = the later stages, or eager_1f1b, keep stages from waiting for each other).
---@return table
function methods.overlap(config) end

---Layers that the model writes out in primitive ops become one op forward and one backward, which save less for the backward pass and read memory once: attention, cross_entropy, layer_norm, rms_norm, rotary, swiglu, and pairs of your own. A layer with an inner value that other ops read stays as it is. A strategy without this method replaces all of these layers.
---@param config? table config: names of built-in pairs (default: all) and pairs of your own, {name, pattern, replacement}: graphs in text form (runtime/methods/module_replace.md). A pair with `within`, a list of scopes or module types, is replaced there only; one with `dtypes` only where the model computes in one of them; enabled (boolean, default true): false: all layers stay as the model writes them.
---@return table
function methods.module_replace(config) end

---Linear layers multiply eight-bit floats (E4M3, or E5M2 for gradients) and sum in the type that they had: their inputs, weights and gradients are scaled, rounded to nearest even and saturated. Devices with eight-bit products compute them; elsewhere they are emulated, with the same roundings. Parameters and the optimizer state keep their types. Names and defaults are Megatron's.
---@param config? table config: fp8 (string, `e4m3`, `hybrid`, default `e4m3`): format; hybrid: E5M2 for gradients; match (string or list, default all): scopes (`blocks.*`) or module types of the layers; fp8_recipe (string, `delayed`, `tensorwise`, `rowwise`, `blockwise`, default `delayed`): source of a scale: delayed: the tensor in earlier microbatches; tensorwise: the tensor itself; rowwise: all elements along the summed dim, each row its own; blockwise: each block of fp8_block elements along the summed dim; fp8_margin (integer, from 0 to 64, default 0): headroom above the largest magnitude, in powers of two; fp8_amax_history_len (integer, from 1 to 65536, default 1): delayed: microbatches of the history; fp8_amax_compute_algo (string, `most_recent`, `max`, default `most_recent`): delayed: which magnitude of the history decides; fp8_interval (integer, from 1 to 65536, default 1): delayed: microbatches that use one scale; fp8_reduce_amax (boolean, default true): one scale for the whole tensor; false (delayed, tensorwise): each rank scales its shard by the shard's own magnitudes, without communication: not the result of one device; fp8_emulate (boolean, default true): false: leave the method out, with a warning, on devices without eight-bit products; fp8_block (integer, at least 1, default 128): blockwise: elements of a block; fp8_wgrad (boolean, default true): false: weight gradients are products of unrounded factors; product (string, `auto`, `emulated`, `native`, default `auto`): native: the device multiplies eight-bit floats; emulated: they are widened first; auto: native where the device supports it and the recipe is not blockwise.
---@return table
function methods.fp8(config) end

---Trains low-rank adapters (LoRA) beside linear layers: y = x W' + scale dropout(x) A' B', with A [rank, in] random and B [out, rank] zero at first. W and all other parameters keep their values and have no gradients and no optimizer state.
---@param config? table config: match (string or list, required): the linear layers: patterns of paths (`blocks.*.attn.q`), or ends of paths (`q`, `attn.q`); a pattern of several modules takes their linear layers; rank (integer, at least 1, default 8): rows of A, columns of B; alpha (number, above 0, default the rank): scale = alpha / rank; dropout (number, at least 0 and below 1, default 0): of the adapters' inputs; rslora (boolean, default false): scale = alpha / sqrt(rank) (Kalajdzievski 2023); trained (string or list, default none): patterns of parameters of the model that are trained, too (`head.**`); PEFT's modules_to_save.
---@return table
function methods.lora(config) end

---Restricts the dims of ops that may be split over an axis, and the ops that all its ranks may compute whole. An op whose sharding is not allowed is pinned: replicated where that is allowed, else split along the first dim of the list that can be.
---@param config? table config: constraints: {name = op (`aten::mm`), parent_module = the end of a module's path, or of the types along it (numbers are left out), allowed_partition_dims = {"INPUT,DIM", ...}, replica_allowed = boolean}; of several for an op the one with the longest parent_module counts; axis (string, default `tensor`): the axis of the constraints.
---@return table
function methods.partition_constraints(config) end

---The exact solver chooses together how each op is sharded over axes of the mesh, for each block whether its parameters are stored in parts, its forward pass is recomputed and its activations are offloaded to the host, and where asked the precision, so that a step costs least and no rank exceeds its memory. Applied last.
---@param config? table config: axis (string or list, default all of the kind `tensor`): the axis, or a list of axes, over which ops are sharded; memory (any, default `device`): upper bound on a rank's peak by the compiled programs: bytes, a text as "40GB", or `device`: the memory of the devices; choose (string or list, `storage`, `recompute`, `offload`, default those that no other method of the strategy sets): choices of the solver besides shardings: storage (parameters, gradients and optimizer state in parts over zero or data, as in zero1, zero2 and fsdp), recompute, and offload of activations; precision (list of strings, `none`, `amp_native`, `half`, default the strategy's): precisions to choose from, in bf16; they change numbers; smallest (integer, at least 0, default 0): parameters of fewer bytes are not split.
---@return table
function methods.auto_sharding(config) end

---Defines a method. Returns a function of a config that uses the method in a strategy. `apply` edits a perigee.Plan; `check` may refuse the config first. `cost`, if given, returns the method's own cost for perigee.profiler's costs: `with` and `without` have the seconds and bytes of the plans with and without the method (nil where no plan works without it); it returns a table of seconds and bytes, and a missing field is their difference.
---@param method table name (string), doc (string), fields (name = type, or {type, doc, required, default}), check(config, request), apply(plan, config, request), cost(config, request, with, without). Types of fields: boolean, integer, number, string, list, list of integers, list of numbers, list of strings, string or list, table, any
---@return function
function methods.define(method) end

---The plan that `apply` of a defined method edits. Its functions check their arguments as the built-in methods do; an error names the line of the call.
---@class perigee.Plan
local Plan = {}

---Places the matching parameters and inputs, and returns their number.
---@param match string a pattern of their names
---@param axis string an axis of the mesh
---@param placement string R, or S0, S1, ...: sharded on that dim
---@return integer
function Plan:place(match, axis, placement) end

---Pins activations and other values that ops compute. Other axes are left to propagation.
---@param values any a name of graph.ops, or a list of them
---@param axis string an axis of the mesh
---@param placement string R, or S0, S1, ...: sharded on that dim
function Plan:pin(values, axis, placement) end

---Pins the activations that a part of the pipeline reads from earlier parts, and returns their number.
---@param part integer of the pipeline, from 0
---@param axis string an axis of the mesh
---@param placement string R, or S0, S1, ...: sharded on that dim
---@return integer
function Plan:place_sent(part, axis, placement) end

---Sets activation checkpointing, plan:recompute { "blocks.*" }, and returns the number of regions. Fields that are left out keep their values, here and in the other parts.
---@param recompute perigee.Recompute the fields that change
---@return integer
function Plan:recompute(recompute) end

---Sets which tensors are in host memory.
---@param offload perigee.Offload the fields that change
function Plan:offload(offload) end

---Sets the overlap of compute and communication.
---@param overlap perigee.Overlap the fields that change
function Plan:overlap(overlap) end

---Sets the buckets of gradients and the prefetch of units.
---@param communication perigee.Communication the fields that change
function Plan:communication(communication) end

---Cuts the model into stages and returns their number; with one the plan has no pipeline.
---@param pipeline perigee.Pipeline the fields that change
---@return integer
function Plan:pipeline(pipeline) end

---Sets mixed precision.
---@param precision perigee.Precision the fields that change
function Plan:precision(precision) end

---Appends units of parameters, and returns the number of all units.
---@param units perigee.Unit[] a list
---@return integer
function Plan:units(units) end

---Sets the microbatches of an optimizer step.
---@param count integer at least 1
function Plan:microbatches(count) end

---Shards the samples over these axes instead of `data`.
---@param axes string of the mesh, such as `data,zero`
function Plan:batch_axes(axes) end

---The ranks of these axes train copies of the model, each on its own samples. Returns the number of copies.
---@param axes string of the mesh
---@return integer
function Plan:copies(axes) end

---Averages the matching parameters of the copies at a fixed interval of steps, and returns the number of parameters.
---@param match string a pattern of parameters
---@param axes string of copies
---@param every integer steps
---@param states? boolean whether their optimizer state is averaged, too
---@return integer
function Plan:average(match, axes, every, states) end

---Multiplies the loss in the backward pass, and skips non-finite steps.
---@param scale any a number, or `given`: by events.loss_scale
function Plan:scale_loss(scale) end

---Applies another method, plan:use("fsdp", {}), with its checks and decisions.
---@param name string a built-in method, a shipped one, or one of the script
---@param config? any as in a strategy
function Plan:use(name, config) end

---Returns a copy of the plan as it is, with the fields of plan.json (formats/plan.md); those that have their default may be missing.
---@return table
function Plan:get() end

---Records a decision of the method.
---@param sentence string for `--explain`
function Plan:note(sentence) end

---Activation checkpointing: forward ops that are recomputed in the backward pass.
---@class perigee.Recompute
---@field [integer] string a scope (`blocks.*`) or module type, of which each match is a region; excludes regions
---@field regions? any[] a list of lists of scopes; the scopes of each are recomputed together; default none
---@field only? string[] ops that are recomputed (`attention`, `aten::mm`); default all
---@field keep? string[] ops whose results are kept; default none
---@field keep_in? table by the first scope of a region: the list that replaces keep there; an empty list: the whole region is recomputed; default none
---@field kept_microbatches? integer with a pipeline: microbatches in flight on a stage that keep all their results; at least 0; default 0
---@field budget_bytes? integer memory limit of a rank, with which only as many regions are recomputed as needed; 0: none; at least 0; default 0

---Tensors in host memory.
---@class perigee.Offload
---@field [integer] string a scope or module type, as in activations
---@field activations? string[] scopes or module types whose activations are in host memory until their backward pass; default none
---@field parameters? boolean offload the rank's parts of units of level 3; default false
---@field optimizer? boolean offload optimizer state; default false
---@field prefetch? integer scopes, or ops that read offloaded memory, before their use at which the copy back starts; at least 0; default 1

---Overlap of compute and communication.
---@class perigee.Overlap
---@field accumulate? boolean matrix products accumulate into their gradient's buffer; default false
---@field activations? boolean products of 16 bits compute the tanh form of GELU after them, and its gradient; default false
---@field step? boolean a bucket's optimizer step starts when the bucket is reduced; default false
---@field receives? boolean a pipeline's messages are received while the preceding section runs; default false
---@field slices? integer slices of a matrix product that overlap the collectives of its rows; at least 1; default 1
---@field sliced? string[] products that are sliced: those whose input rows are all-gathered, whose results are reduced in the forward pass, and in the backward pass; `gathers`, `sums`, `gradient_sums`; default `gathers`, `sums`, `gradient_sums`
---@field whole? string[] scopes whose products are not sliced; default none
---@field bulk? string[] collectives over tensor axes in the backward pass that overlap independent products, unsliced; `gathers`, `sums`; default `gathers`, `sums`
---@field experts? boolean interleaved microbatches: the expert all-to-all overlaps another's compute; default false
---@field weights? boolean weight gradients are computed in the stage's bubble; default false
---@field deferred? string[] parameters whose gradients on the last stage are deferred to the end of its schedule; default none
---@field deferred_limit? integer number of microbatches, from the first, for which it applies; 0: all; at least 0; default 0

---How gradients are reduced and units gathered.
---@class perigee.Communication
---@field bucket_bytes? integer smallest size of a bucket of gradients; at least 1; default 26214400
---@field overlap? boolean start a bucket as soon as its last gradient is complete; default true
---@field buckets? integer the most buckets with the same type and axes; 0: no limit; at least 0; default 0
---@field communicators? integer streams among which the buckets of an axis group alternate; from 1 to 64; default 1
---@field reduce_dtype? string gradients are reduced in this type; `fp16`, `bf16`, `float16`, `half`, `bfloat16`; default the gradients' own type
---@field reduce_scale? number with reduce_dtype: factor of the gradients while they are reduced; above 0 and below 1e+30; default 1
---@field sum? boolean gradients of a mean loss are summed instead of averaged; default false
---@field clip_first? boolean each data rank clips its own gradient before the reduction; default false
---@field prefetch_forward? integer units of level 3 that are gathered ahead in the forward pass; at least 0; default 1
---@field prefetch_backward? integer units of level 3 that are gathered ahead in the backward pass; at least 0; default 1
---@field prefetch_bytes? integer most bytes of prefetched units; 0: no limit; at least 0; default 0

---Pipeline stages.
---@class perigee.Pipeline
---@field axis? string the axis of the mesh whose positions are the stages; default none
---@field starts? string[] the scopes at which the parts after the first begin, in forward order: one fewer than parts; default none
---@field chunks? integer parts of a stage; at least 1; default the schedule's: 2 for V schedules, else 1
---@field schedule? string order of forward and backward passes on each stage; `gpipe`, `1f1b`, `interleaved`, `eager_1f1b`, `zb1p`, `zb2p`, `zbv`, `v_half`, `v_min`, `dualpipe_v`, `looped_bfs`; default `1f1b`
---@field group? integer interleaved: microbatches that a chunk runs in a row; 0: as many as stages; at least 0; default 0
---@field extra? integer 1f1b: additional microbatches in flight; at least 0; default 0
---@field dtype? string type to which messages between stages are cast; `fp16`, `bf16`, `float16`, `half`, `bfloat16`, `float32`, `fp32`, `float64`; default the values' own types
---@field forward? number time of a forward pass of a stage, for schedules that are found by a search; above 0; default 1
---@field backward? number time of a pass of input gradients, in the same unit; above 0; default 1
---@field weights? number time of a pass of weight gradients, in the same unit; above 0; default 1
---@field transfer? number time of a message to the next stage, in the same unit; at least 0; default 0

---Mixed precision.
---@class perigee.Precision
---@field dtype? string the low precision; `fp16`, `bf16`, `float16`, `half`, `bfloat16`; default none: ops compute as captured
---@field parameters? string how parameters are stored: as captured, in float32 and read in dtype, or in dtype; `as_captured`, `masters`, `low`; default `as_captured`
---@field gradients? string type of gradient buffers where parameters are not as captured; `fp16`, `bf16`, `float16`, `half`, `bfloat16`, `float32`, `fp32`, `float64`; default dtype with one microbatch, float32 with several
---@field allow? string[] further ops that compute in dtype; default none
---@field deny? string[] further ops that compute in float32; default none
---@field promote? string[] further ops that compute in the widest type of their operands; default none
---@field scopes? string[] scopes or module types; ops outside of them compute as captured; default all
---@field keep_weights? boolean keep weights in dtype beside float32 weights from step to step; default false
---@field skip_nonfinite? boolean skip the update of a step with a non-finite gradient; default false
---@field loss_scale? table a perigee.LossScale: factor of the loss in the backward pass; default none

---The scale of the loss, with the names of torch.amp.GradScaler.
---@class perigee.LossScale
---@field kind? string `fixed`: init_scale; `dynamic`: changes with non-finite steps; `given`: by events.loss_scale; `none`, `fixed`, `dynamic`, `given`; default `none`
---@field init_scale? number initial scale; above 0; default 65536
---@field growth_factor? number factor after growth_interval finite steps; above 1; default 2
---@field backoff_factor? number factor after a non-finite step; above 0 and below 1; default 0.5
---@field growth_interval? integer consecutive finite steps after which the scale grows; at least 1; default 2000
---@field min_scale? number lower limit; at least 0; default 0
---@field hysteresis? integer non-finite steps from which on each reduces the scale; at least 1; default 1

---Parameters that are stored together in parts (ZeRO, FSDP).
---@class perigee.Unit
---@field name string for messages and reports
---@field parameters string[] names or patterns (`blocks.0.**`) of parameters, each in one unit, in this order
---@field axes string|string[] the axes over which the unit is cut into parts: `data`, or a list
---@field level? integer sharded are 1: optimizer state, 2: and gradients, 3: and parameters; from 1 to 3; default 3
---@field reshard_after_forward? boolean level 3: free after the forward pass and re-gather for the backward pass; default true
---@field one_copy? boolean levels 1 and 2: the ranks of the axes, on one host, hold one copy of the parameters in memory that all of them map; default false

---The job, as the functions of a defined method see it.
---@class perigee.Request
---@field global_batch integer samples of an optimizer step
---@field micro_batch integer samples of a microbatch on a data rank; 0: open
---@field world integer number of ranks
---@field mesh any[] the mesh's axes, a list of {name, size}
---@field frozen string[] patterns of parameters that the job does not train
---@field graph perigee.Graph the captured model; described when it is first read
---@field job? perigee.Job the resolved job, by section; absent for plans that are made without a job

---The captured step of one global microbatch, as strategy functions and request.graph have it.
---@class perigee.Graph
---@field scopes perigee.Scope[] the modules, outer ones first
---@field parameters perigee.Parameter[] in the model's order
---@field inputs perigee.Input[] the tensors of a batch, buffers and constants
---@field ops perigee.Op[] forward and backward pass, in an order of data flow
---@field outputs perigee.Output[] loss, gradients, new buffers, results

---A module of the model.
---@class perigee.Scope
---@field path string `blocks.0.attn`
---@field type string `Attention`

---A parameter.
---@class perigee.Parameter
---@field name string `blocks.0.attn.qkv.weight`
---@field trainable boolean whether it has a gradient
---@field shape integer[] of the global microbatch
---@field dtype string `float32`, ...
---@field bytes integer of the whole tensor

---An input other than a parameter.
---@class perigee.Input
---@field name string its own name
---@field kind string `data`, `buffer` or `constant`
---@field shape integer[] of the global microbatch
---@field dtype string `float32`, ...
---@field bytes integer of the whole tensor

---An op. Its type is that of its first result.
---@class perigee.Op
---@field name string of its first result; plan:pin takes it
---@field op string `aten::mm`
---@field scope string the module that it belongs to
---@field backward boolean whether it is in the backward pass
---@field flops number a multiplication and an addition count as two
---@field inputs string[] names of the values that it reads, in the order of its operands: results of ops, parameters and inputs
---@field outputs string[] names of its results
---@field shape integer[] of the global microbatch
---@field dtype string `float32`, ...
---@field bytes integer of the whole tensor

---All runs of an op of one scope and pass in a step.
---@class perigee.OpTime
---@field scope string the module, as in perigee.Op
---@field backward boolean whether it is in the backward pass
---@field op string `aten::mm`, `comm::all_reduce`, `load`
---@field stream? string of collectives: the axes and the communicator
---@field runs integer in all microbatches
---@field seconds number of all runs, without contention
---@field flops number of all runs
---@field bytes number read and written, or sent
---@field measured_share number share of seconds that was measured; 0: estimated

---A value that the step returns.
---@class perigee.Output
---@field kind string `loss`, `gradient`, `buffer` or `result`
---@field name string of a gradient: its parameter
---@field value string the value's name

---A strategy as a function: returns a list of methods, a table with methods, or a plan.
---@alias perigee.StrategyFunction fun(job: perigee.Job, graph: perigee.Graph): table

---The resolved job, as strategy functions and request.job have it: keys with their defaults filled in. A key that is not given, and whose default is not a constant, may be absent. A dialect's table has the dialect's name.
---@class perigee.Job
---@field name? string Name of the run. Default: the file's name without its ending.
---@field seed integer Seed of initial weights, dropout and the order of samples. At least 0.
---@field strategy string How the work is spread over devices: "auto", a strategy script, or the bare name of a shipped one.
---@field model perigee.JobModel `[model]`
---@field data perigee.JobData `[data]`
---@field batch perigee.JobBatch `[batch]`
---@field optimizer perigee.JobOptimizer `[optimizer]`
---@field lr_schedule perigee.JobLrSchedule `[lr_schedule]`
---@field weight_decay_schedule perigee.JobWeightDecaySchedule `[weight_decay_schedule]`
---@field train perigee.JobTrain `[train]`
---@field cluster perigee.JobCluster `[cluster]`
---@field profile perigee.JobProfile `[profile]`

---The job's `[model]`.
---@class perigee.JobModel
---@field kind? string Which model is trained. Each kind has keys of its own, below. One of gpt, llama, moe, mlp, resnet, hf, exported, torchscript, plugin, lua. Default: none: required.
---@field dtype string Element type of the parameters, unless the model's file or application gives them; then of synthetic data, and of constants that `model.around` makes. One of float64, float32, bfloat16.
---@field frozen string[] Patterns of parameters that are not trained: `*` is one component of a dotted name, `**` any number.
---@field around? string Script (.lua) of functions that are captured with the model: `prepare(batch)` before it, `loss(batch, output)` after it. Default: none.
---@field unpack string How the fields of a batch reach the model: `dict`, by their names; `sequence`, by their order (runtime/lua_models.md). One of dict, sequence.
---@field layers? integer gpt, llama, moe: Number of blocks; their scopes are `blocks.N`. At least 1. mlp: Linear layers. At least 1.
---@field width? integer gpt, llama, moe: Size of a token's vector. At least 1. mlp: Size of the hidden layers. At least 1. resnet: Channels of the first stage. At least 1.
---@field heads? integer gpt, llama, moe: Attention heads; they divide `width`. At least 1.
---@field kv_heads? integer llama: Heads of keys and values; they divide `heads` (grouped queries). At least 1. Default: `heads`.
---@field hidden? integer gpt, moe: Size of the hidden layer of a block's (or an expert's) MLP. At least 1. Default: 4 `width`. llama: Size of the hidden layer of a block's MLP (SwiGLU). At least 1. Default: 8/3 `width`, rounded up to a multiple of 32.
---@field experts? integer moe: Experts of a block. At least 1.
---@field top_k? integer moe: Experts that each token is sent to. At least 1.
---@field capacity? number moe: Capacity factor: slots of an expert, relative to an even share of the tokens; 0: slots for all tokens. At least 0.
---@field capacity_per? string moe: Tokens that share an expert's places and over which the load is balanced: those of a microbatch on all ranks, or those of each sample. One of microbatch, sample.
---@field dropless? boolean moe: Whether a token that finds no place at its expert ends the run; otherwise it skips the expert.
---@field balance? number moe: Weight of the loss that balances the experts. At least 0.
---@field vocab? integer gpt, llama, moe: Number of token ids. At least 1. Default: the tokenizer's, 256 for bytes. hf: Number of token ids; no other than that of config.json. At least 1. Default: `vocab_size` of config.json.
---@field folder? string hf: Folder of Hugging Face: config.json of a Llama, Mistral, Qwen2, Qwen3, Gemma, GPT-2 or Mixtral, and safetensors files with its weights (runtime/hugging_face.md). Default: none: required.
---@field positions? integer gpt, moe: Largest number of tokens of a sample: rows of the position embedding. At least 1. Default: `data.sequence`.
---@field theta? number llama: Base of the rotary position embedding. More than 0.
---@field dropout? number gpt, moe, mlp: Probability that an activation is dropped in training. At least 0 and less than 1.
---@field bias? boolean gpt, mlp: Whether linear layers have a bias.
---@field tied? boolean gpt, moe: Whether the output layer shares the token embedding's weight. llama: Whether the output layer shares the token embedding's weight.
---@field eps? number gpt, llama, moe: Added to the variance in norms. More than 0.
---@field inputs? integer mlp: Features of a sample. At least 1.
---@field outputs? integer mlp: Number of classes (cross_entropy) or of predicted values (mse). At least 1.
---@field activation? string mlp: Activation function between the layers. One of relu, gelu, silu, tanh.
---@field loss? string mlp: Loss function. One of cross_entropy, mse. exported, torchscript, plugin, lua: How the loss depends on the samples of a batch. `proven`: as its ops show. A loss whose proof ends is declared a `mean` or a `sum` over samples, or a mean that is divided by sums of weights of the data (`weighted`); the first step checks it (runtime/jobs.md). One of proven, mean, sum, weighted.
---@field depth? integer resnet: Number of layers of the ResNet. One of 18, 34, 50, 101, 152.
---@field classes? integer resnet: Number of classes. At least 1.
---@field channels? integer resnet: Channels of an image. At least 1.
---@field image? integer resnet: Height and width of an image. At least 1.
---@field file? string exported, torchscript, plugin, lua: The archive of torch.export (.pt2), the TorchScript file, the plugin (.so), or the script (.lua). A plugin and a script get the keys of `[model.options]`. Default: none: required.
---@field options? table `[model.options]`, for the model's script or plugin.

---The job's `[data]`.
---@class perigee.JobData
---@field text string[] Text files (patterns), concatenated.
---@field tokens string[] Files of raw little-endian token ids (patterns).
---@field jsonl string[] Files of JSON lines (patterns), also compressed (.gz, .zst): each line is an object, which `template` makes a document.
---@field conversations string[] Files of JSON lines (patterns), also compressed: each line is an object with `messages`, a document by the chat template. Only the model's answers are learned.
---@field tensors string[] safetensors files (patterns) whose tensors, one row a sample, are bound to the model's inputs by name.
---@field synthetic? boolean Random samples in place of files. Default: true without files.
---@field token_type string Type of the ids in `tokens`. One of uint16, uint32.
---@field tokenizer string "bytes", or the file of a tokenizer: a tokenizer.json or a SentencePiece model. With `kind = "hf"` and without this key, the tokenizer.json of the model's folder, if there is one.
---@field template string The document of a line of `jsonl`: `{name}` is the line's field of that name, a string or a number; `{{` and `}}` are braces.
---@field chat_template? string File of the chat template of `conversations` (chat_templates.md). Default: that of the tokenizer's folder.
---@field end_of_text? string The token that ends each document. Files of `text` have none in a stream, unless it is given. Default: the tokenizer's own; of "bytes", the byte 0.
---@field broken_lines string Whether a line that gives no document (no JSON, a field is missing, a conversation without an answer) is an error, or is left out and counted. One of error, skip.
---@field pack string How documents become samples. stream: one after the other, cut every `sequence` tokens; documents: whole documents side by side, whose tokens do not attend to each other (the model has the inputs `documents` and `positions`); none: each in a sample of its own. A longer document is cut, the rest of a sample is not learned. One of stream, documents, none.
---@field sequence integer Tokens of a sample. At least 1.
---@field sampler string Order of the training samples of files: "shuffle" (a permutation in each epoch), "sequential", "random" (drawn with replacement), or a library (.so) that exports `int64_t perigee_sampler(int64_t sample, int64_t count, uint64_t seed)`, which returns the index in [0, count) of the run's sample number `sample`.
---@field shuffle_buffer integer `sampler = "shuffle"`: samples that are shuffled with each other: so many consecutive ones, so that files are read almost in order; 0: all. At least 0.
---@field objective string The labels. causal: the next token; masked: the tokens themselves at 15 % of the places, which are hidden as for BERT; classification: the field `label` of a line of `jsonl`, a number from 0. One of causal, masked, classification.
---@field validation number Share of the data that is held out for validation. At least 0 and less than 1.
---@field batched? string[] The model's inputs whose dim 0 is the samples, by name, or by index in the order of their names ("0"). The others are the same for all samples and are replicated over ranks and microbatches. Default: all.
---@field slice_files boolean Whether each data rank draws its samples only from files of its own: file i belongs to rank i modulo the number of data ranks. The samples of a step then depend on the number of ranks. With fewer files than data ranks, no file is sliced, with a warning.
---@field left_over string slice_files: how files beyond a multiple of the data ranks are used. share: no file is sliced, and all ranks draw from all samples; deal: some ranks have one file more; drop: they are not read. One of share, deal, drop.
---@field sources? perigee.JobDataSources[] `[[data.sources]]`

---An entry of the job's `[[data.sources]]`.
---@class perigee.JobDataSources
---@field name? string Name in logs. Default: `source 1`, ....
---@field weight number The source's share of the samples is its weight by the sum of all weights. More than 0.
---@field text string[] Text files (patterns).
---@field tokens string[] Files of token ids (patterns).
---@field jsonl string[] Files of JSON lines (patterns).
---@field conversations string[] Files of conversations (patterns).
---@field template? string The document of a line of `jsonl`. Default: `data.template`.

---The job's `[batch]`.
---@class perigee.JobBatch
---@field global integer Samples per optimizer step, over all ranks. At least 1.
---@field micro? integer Samples per microbatch on one data rank; it divides `global`. At least 1. Default: chosen by the planner.
---@field round boolean Whether a step uses fewer samples than `global` where that is not a multiple of microbatches times data ranks: the largest such multiple (at least one sample on each rank), with a warning. Otherwise that is an error.

---The job's `[optimizer]`.
---@class perigee.JobOptimizer
---@field name string The optimizer: torch.optim's formulas, and for lion and muon those of their papers. muon updates the matrices of hidden layers only; adamw then updates embeddings, heads and all other parameters. One of sgd, adam, adamw, lion, rmsprop, adagrad, adamax, nadam, radam, adafactor, muon.
---@field lr number Peak learning rate. At least 0.
---@field weight_decay number Weight decay; decoupled from the gradient by adamw, lion, adafactor, muon. At least 0.
---@field momentum? number sgd, muon: momentum (muon's paper: 0.95). rmsprop: momentum of the normalised gradients. At least 0 and less than 1. Default: `0.9`; rmsprop: `0.0`.
---@field dampening number sgd: dampening of the momentum. At least 0 and at most 1.
---@field nesterov boolean sgd, muon: Nesterov's momentum (muon's paper: true).
---@field betas number[] adam, adamw, adamax, nadam, radam: decay of the two averages. lion: weight of the average in the step, and its decay. At least 0 and less than 1.
---@field eps? number adam, adamw, rmsprop, adagrad, adamax, nadam, radam: added to the denominator. More than 0. Default: `1e-08`; adagrad: `1e-10`.
---@field alpha number rmsprop: decay of the average of squared gradients. At least 0 and less than 1.
---@field centered boolean rmsprop: whether gradients are normalised by an estimate of their variance.
---@field lr_decay number adagrad: the learning rate is divided by 1 + (step - 1) lr_decay. At least 0.
---@field initial_accumulator_value number adagrad: first value of the sum of squared gradients. At least 0.
---@field momentum_decay number nadam: the momentum of step t is beta1 (1 - 0.96^(t momentum_decay) / 2). At least 0.
---@field decoupled_weight_decay boolean nadam, radam: whether weight decay is decoupled from the gradient, as adamw's.
---@field beta2_decay number adafactor: new squares have the weight step ^ beta2_decay in the second moments. At least -10 and at most 0.
---@field clip_threshold number adafactor: largest root mean square of an update. More than 0.
---@field ns_steps integer muon: steps of the Newton-Schulz iteration. At least 1.
---@field clip_norm number Limit of the global gradient norm; larger gradients are scaled down to it. 0: no clipping. At least 0.
---@field apart boolean Whether a parameter that several groups match is an error; otherwise the first group applies.
---@field group? perigee.JobOptimizerGroup[] `[[optimizer.group]]`

---An entry of the job's `[[optimizer.group]]`.
---@class perigee.JobOptimizerGroup
---@field match? string[] Patterns of parameter names; a parameter is in the first group that matches. Default: none: required.
---@field lr? number Peak learning rate of these parameters. At least 0. Default: the optimizer's.
---@field weight_decay? number Weight decay of these parameters. At least 0. Default: the optimizer's.
---@field name? string muon: which of the two updates these parameters. One of , muon, adamw. Default: adamw for embeddings, heads and parameters that are not matrices, else muon.

---The job's `[lr_schedule]`.
---@class perigee.JobLrSchedule
---@field kind string Shape of the learning rate after the warm-up. One of constant, linear, cosine, inverse_sqrt, wsd.
---@field warmup? integer Steps in which the learning rate rises from `init_lr` to its peak. At least 0. Default: 20, or a tenth of `train.steps` where that is less.
---@field min_lr? number Final learning rate. At least 0. Default: a tenth of `optimizer.lr`.
---@field decay? integer wsd: number of steps of the last phase, in which the learning rate falls. At least 1. Default: a tenth of `train.steps`.
---@field init_lr number Learning rate at the start of the warm-up. At least 0.
---@field steps? integer The step at which the learning rate reaches `min_lr` and becomes constant. At least 1. Default: `train.steps`.
---@field shape string wsd: shape of the learning rate in the last phase. One of linear, cosine, exponential, minus_sqrt.

---The job's `[weight_decay_schedule]`.
---@class perigee.JobWeightDecaySchedule
---@field start? number Weight decay of the first step, annealed to `optimizer.weight_decay`. The weight decay of a group is scaled in the same proportion. At least 0. Default: `optimizer.weight_decay` (no schedule).
---@field steps? integer The step at which the weight decay reaches `optimizer.weight_decay` and becomes constant. At least 1. Default: `train.steps`.
---@field shape string Shape of the weight decay between the two values; cosine is half a period. One of linear, cosine.

---The job's `[train]`.
---@class perigee.JobTrain
---@field steps integer Number of optimizer steps. At least 1.
---@field log_every integer Steps between two lines of the log. At least 1.
---@field validate_every integer Steps between two validations; 0: none. At least 0.
---@field validate_batches integer Largest number of global batches in one validation. At least 1.
---@field checkpoint_every integer Steps between two checkpoints; 0: only one at the end. At least 0.
---@field keep_checkpoints integer Number of checkpoints that are kept, the newest ones. At least 1.
---@field checkpoint_target? string `s3://BUCKET/PREFIX`: checkpoints are written to this S3 service instead (runtime/runs.md). Default: `train.output`.
---@field checkpoint_when_stopped boolean Whether Ctrl-C or SIGTERM writes a checkpoint before the job ends.
---@field stop_if_not_finite boolean Whether a loss or gradients that are not finite end the job. Otherwise, and with `skip_bad_steps` above 0, any number of such steps is skipped.
---@field skip_bad_steps integer Bad steps in a row that are skipped: a step whose loss or gradients are not finite, or a spike by `on_spike`, changes nothing. One more ends the job. At least 0.
---@field skip_steps? string Steps that change nothing, whatever their loss: `"12, 40-45"`. Default: none.
---@field spike_loss number A step whose loss is above so many times the median of the last 32 good steps is a spike; 0: none is. At least 0.
---@field spike_norm number The same for the norm of the gradients. At least 0.
---@field on_spike string A spike is named in the log, and is skipped as a bad step, or ends the job. One of warn, skip, stop.
---@field rerun boolean Whether a bad step or a spike is run a second time from the same state: exit status 16 where the second run is good (a transient fault), 17 where a step that is not skipped is bad both times.
---@field check_replicas integer Steps between two comparisons of the weights and states that several ranks hold; a difference ends the job. 0: none. At least 0.
---@field forward_only boolean Whether a step is a forward pass only: no gradients, no optimizer, no checkpoints.
---@field check_gradients boolean Whether the first step's gradients are compared with those of one device before training begins (on the CPU, to rounding); with activation checkpointing also with those of the same plan without it, bit for bit. A difference ends the job.
---@field check_rtol? number With `check_gradients`: each element of a gradient, and the loss, may differ from one device's by `check_atol` + `check_rtol` times its absolute value, and so may each element of a parameter after the first step. At least 0. Default: 1e-4 where `check_atol` is given, else the rounding of the dtype decides.
---@field check_atol? number The absolute part of that tolerance. At least 0. Default: 1e-4 where `check_rtol` is given, else the rounding of the dtype decides.
---@field early_stop_patience integer Training ends after so many validations in a row whose loss is not below the best one less `early_stop_min_delta`; 0: it does not end early. At least 0.
---@field early_stop_min_delta number Least decrease of the validation loss that counts. At least 0.
---@field keep_best boolean Whether the step with the lowest validation loss writes a checkpoint, which is kept beside the newest ones.
---@field weights? string Initial values of parameters and buffers: a safetensors file, an index of several (`.json`), or a folder of them. Names are the model's own, as `perigee export` writes them, or for the kinds gpt, llama and hf those of Hugging Face. Default: the model's own initial values.
---@field adapter? string Initial values of the adapters that the method `lora` adds: a folder with PEFT's adapter_config.json and adapter_model.safetensors, as `perigee export --adapter` writes it. Default: none.
---@field initialise boolean Whether the model initialises parameters and buffers that `weights` lacks, and tensors there that are not of the model are ignored. Otherwise both are errors. In a job with `weights`, or of the kind hf, the default is false.
---@field progress boolean Whether a progress line is shown on a terminal, in addition to the log.
---@field samples string[] Prompts of a language model. After each checkpoint the model continues them: in the log and in samples.jsonl (runtime/runs.md).
---@field sample_tokens integer Largest number of tokens of each continuation. At least 1.
---@field tensorboard boolean Whether the metrics are also written to `train.output` as an event file of TensorBoard (runtime/runs.md).
---@field output? string Folder of metrics, checkpoints, plan and log, relative to the working directory. Default: `runs/NAME`.

---The job's `[cluster]`.
---@class perigee.JobCluster
---@field device? string Device that the ranks compute on. One of cpu, cuda. Default: cuda when present.
---@field ranks? integer Number of ranks, where neither a launcher nor `--nproc` sets it. At least 1 and at most 1048576. Default: all local devices, 1 for cpu.
---@field threads? integer Threads of one rank's CPU work. At least 1 and at most 1024. Default: on a CPU `OMP_NUM_THREADS`, or the host's cores divided by its ranks; else 1.
---@field deterministic boolean On a GPU: only kernels whose results are bit-equal from run to run, slower ones where needed; an op without one is an error. On the CPU results always are.
---@field tf32 boolean On a GPU: whether float32 products and convolutions may round their factors to TF32 (10 bits of mantissa), which takes a fraction of the time.
---@field graphs string On a GPU: whether a step is recorded as a CUDA graph, which later steps launch as one piece of work: wherever the program and the GPU allow it (`"auto"`; the log says what prevents it), always (`true`: otherwise an error), or never (`false`). It has been tested on simulated GPUs only. One of auto, true, false.
---@field timeout number Seconds after which a rank that does not answer ends the job. More than 0 and at most 1000000000.
---@field devices? string GPUs of a host that its ranks use, in this order ("0,2"). Where no launcher, option or key sets the number of ranks, a host has one rank for each GPU listed, also on the CPU. Default: all that the process may see.
---@field in_process boolean Whether the ranks are threads of one process, which exchange tensors through its memory: for trying a strategy on one device.
---@field messages string What carries the messages between pipeline stages: what carries the device's collectives (NCCL on GPUs), or Gloo, through the host's memory, while collectives stay with NCCL. One of device, gloo.
---@field communicator string What carries tensors in the hosts' memory between ranks that are processes: shared memory between the ranks of one host and Gloo between hosts (`auto`), shared memory only (`shared`: an error where a group of ranks has none), or Gloo only. One of auto, shared, gloo.
---@field file? string Cluster description, for planning only. Default: this machine.
---@field profile? string Profile database: times of ops, measured by `perigee profile`. Default: the one in the user's cache folder.

---The job's `[profile]`.
---@class perigee.JobProfile
---@field parallel boolean Whether `perigee profile` measures ops on all ranks at once, as they run in training; otherwise on rank 0 while the others wait.
---@field again boolean Whether `perigee profile` also measures ops whose times are known.

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
---@param text string operands -> results, one list of dims each: "b* k+, n k -> b* n". `k` may be sharded and results have it too; `k+` is summed over; `k^` is not sharded; `b*` stands for any number of dims; `1` for one that is not sharded. After `;`: attributes that do not matter (eps), must have a value (sparse=false) or name whole dims (dim^), and linear(0), the operands that may be partial sums
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

---Finds stages for the job's model: clusters its ops into layers, has the exact solver shard each range of layers on each submesh, and simulates the best sequences of stages. Returns submesh_choices, layers, submeshes (hosts, devices, data, tensor), rows (first and last layer from 0, submesh from 0, cost in seconds of a microbatch, and bytes: peak, in, out, temporary, available; max_successors), text (the rows as a table), stages (the rows of the best sequence), with (methods in place of the solver's decisions, where they are faster), strategy, seconds (simulated), lower_bound (by the table) and judged (the simulated plans); or nil and why none fits.
---@param options table layers (their number, or the first scopes of the layers after the first; without it at most 16, as many as blocks), tolerance (no layer has more than 1 + tolerance times its share of the work; default 0.5), stage_layers (how many layers each stage has: the stages are given, each with the same number of devices, and only their axes and shardings are chosen), microbatches, submeshes (`all`, `power_of_two`, `small_power_of_two`: the numbers of whole hosts, beside parts of one; or a list of {hosts, devices}), views (`same_as_physical`, `data_parallel_only`, `model_parallel_only`, `single_node_model_parallel` or `all`), choose (auto_sharding's; default storage and recompute, unless `methods` make these choices), schedule, methods (a list that every plan has), profile (`composition`, or `individual`: stages cost the sum of their layers), imbalance (no stage has more than 1 + imbalance times the work that its share of the devices has), forbid (parallel_mode's), estimated (true: measured times are ignored), file (the table is read from it, or written to it if it does not exist; it is never replaced; formats/stages.md) and most (sequences that are simulated; default 6; of the fastest three also plans with zero2, fsdp or tensor_parallel in place of the solver's choices)
---@return table?, string?
function solver.stage_table(options) end

---Searches the job's best plan, as the strategy `auto` does. Returns the strategy, a list of methods to add to or to return, and a table of seconds (of a step, by the search's model), lower_bound (of the seconds of all plans) and stopped (by time_limit); or nil and the reason why no plan fits.
---@param pins? table the fixed choices; the others are searched: tensor, expert, context, data, pipe (sizes of axes), submeshes (false: all stages are homogeneous; `all`, `power_of_two` or `small_power_of_two`: the numbers of ranks that a stage may have; or a list with the axes of each stage, as in parallel_mode), starts (the blocks at which the parts of a pipeline after the first begin; where stages have several, also the first block and the module after the last), balance (the least arithmetic of a stage's forward pass as a share of the largest stage's, 0 to 1), attention (of context ranks: `all_gather`, `ring` or `all_to_all`), micro (samples of a microbatch), schedule, chunks, sequence, offload (booleans; offload: the optimizer's state is in host memory), checkpoint (a boolean, or `full`: all ops of a block are recomputed, or `selective`: all but its products with weights and attention), every (one of this number of blocks is recomputed, the others not, or in part with `selective`), zero (0 to 3), memory (bytes of a rank, where its device has more), reserve (the factor of its two largest buffers that stays free), optimizer_resident and optimizer_transient (bytes that the optimizer keeps, and allocates during a step, for each byte of weights; they replace its own numbers), smallest (weights of fewer bytes are not split over tensor), solver (`labels` or `ilp`: it chooses which blocks of a stage are recomputed, and where stages begin), time_limit (seconds of the whole search, which then returns the best plan so far), estimated (true: measured times are ignored), threads (that search; default one for each core), host_devices (how many of each host of a described cluster a plan uses: with 2 of hosts of 8, ranks 0 and 1 are on the first host; default all), forbid (parallel_mode's), precision (a list of candidates of `none`, `amp_native` and `half`, in bf16; default none), methods (a list that every plan has; the fields of tensor_parallel, expert_parallel, context_parallel and pipeline_parallel apply where their axis has several ranks: `column` and `row` pin weights, `starts` pins cuts, which the simulation of a plan times)
---@return table?, table|string
function solver.plan(pins) end

---Returns the best combinations by the model, best first, each with strategy, seconds, bytes, text and its numbers; or nil and the reason why no plan fits.
---@param pins? table the fixed choices; the others are searched: tensor, expert, context, data, pipe (sizes of axes), submeshes (false: all stages are homogeneous; `all`, `power_of_two` or `small_power_of_two`: the numbers of ranks that a stage may have; or a list with the axes of each stage, as in parallel_mode), starts (the blocks at which the parts of a pipeline after the first begin; where stages have several, also the first block and the module after the last), balance (the least arithmetic of a stage's forward pass as a share of the largest stage's, 0 to 1), attention (of context ranks: `all_gather`, `ring` or `all_to_all`), micro (samples of a microbatch), schedule, chunks, sequence, offload (booleans; offload: the optimizer's state is in host memory), checkpoint (a boolean, or `full`: all ops of a block are recomputed, or `selective`: all but its products with weights and attention), every (one of this number of blocks is recomputed, the others not, or in part with `selective`), zero (0 to 3), memory (bytes of a rank, where its device has more), reserve (the factor of its two largest buffers that stays free), optimizer_resident and optimizer_transient (bytes that the optimizer keeps, and allocates during a step, for each byte of weights; they replace its own numbers), smallest (weights of fewer bytes are not split over tensor), solver (`labels` or `ilp`: it chooses which blocks of a stage are recomputed, and where stages begin), time_limit (seconds of the whole search, which then returns the best plan so far), estimated (true: measured times are ignored), threads (that search; default one for each core), host_devices (how many of each host of a described cluster a plan uses: with 2 of hosts of 8, ranks 0 and 1 are on the first host; default all), forbid (parallel_mode's), precision (a list of candidates of `none`, `amp_native` and `half`, in bf16; default none), methods (a list that every plan has; the fields of tensor_parallel, expert_parallel, context_parallel and pipeline_parallel apply where their axis has several ranks: `column` and `row` pin weights, `starts` pins cuts, which the simulation of a plan times)
---@param most? integer how many; default 10
---@return table?, string?
function solver.candidates(pins, most) end

---Searches by trials: for each combination the best plan under its pins is made and judged. Returns strategy, seconds, bytes, ended (`all`, `trials`, `patience`, `time`), combinations and trials; or nil and the reason why no plan fits. Options count from 1.
---@param pins? table the fixed choices; the others are searched: tensor, expert, context, data, pipe (sizes of axes), submeshes (false: all stages are homogeneous; `all`, `power_of_two` or `small_power_of_two`: the numbers of ranks that a stage may have; or a list with the axes of each stage, as in parallel_mode), starts (the blocks at which the parts of a pipeline after the first begin; where stages have several, also the first block and the module after the last), balance (the least arithmetic of a stage's forward pass as a share of the largest stage's, 0 to 1), attention (of context ranks: `all_gather`, `ring` or `all_to_all`), micro (samples of a microbatch), schedule, chunks, sequence, offload (booleans; offload: the optimizer's state is in host memory), checkpoint (a boolean, or `full`: all ops of a block are recomputed, or `selective`: all but its products with weights and attention), every (one of this number of blocks is recomputed, the others not, or in part with `selective`), zero (0 to 3), memory (bytes of a rank, where its device has more), reserve (the factor of its two largest buffers that stays free), optimizer_resident and optimizer_transient (bytes that the optimizer keeps, and allocates during a step, for each byte of weights; they replace its own numbers), smallest (weights of fewer bytes are not split over tensor), solver (`labels` or `ilp`: it chooses which blocks of a stage are recomputed, and where stages begin), time_limit (seconds of the whole search, which then returns the best plan so far), estimated (true: measured times are ignored), threads (that search; default one for each core), host_devices (how many of each host of a described cluster a plan uses: with 2 of hosts of 8, ranks 0 and 1 are on the first host; default all), forbid (parallel_mode's), precision (a list of candidates of `none`, `amp_native` and `half`, in bf16; default none), methods (a list that every plan has; the fields of tensor_parallel, expert_parallel, context_parallel and pipeline_parallel apply where their axis has several ranks: `column` and `row` pin weights, `starts` pins cuts, which the simulation of a plan times)
---@param options table variables (a list; each a list of options, tables of pins, of which a combination has one), algorithm (`bo`: Bayesian optimisation, `combination`: all of them, `random`), trials (at most; default 30), patience (`bo` ends after this number of trials without an improvement; default 8), time_limit and measure in seconds (how long each plan's ops may be measured; default 0: no measurement), seed
---@return table?, string?
function solver.search(pins, options) end

---Time and memory of a plan: measured for this machine, estimated for others; each result has its source.
---@class perigee.profiler
local profiler = {}

---Returns seconds (of a step), bubble_ratio, measured_share (0: all is an estimate) and peak_bytes (of the rank with the highest peak), by the simulator. Measures nothing.
---@param strategy table a list of methods
---@param pins? table as for perigee.solver.plan; only reserve, optimizer_resident and optimizer_transient have an effect, on peak_bytes
---@return table
function profiler.estimate(strategy, pins) end

---Returns the strategy's plan, in the form of plan.json.
---@param strategy table a list of methods
---@return table
function profiler.plan(strategy) end

---Returns the costs of the strategy's methods, a list of {method, seconds, bytes}: the differences in step time and in the largest peak memory between the plans with and without the method (below 0: it saves), by the simulator and the compiled programs. Where there is no plan without the method, `refused` is the reason. `own` is true where a defined method states its cost itself.
---@param strategy table a list of methods
---@param method? string the cost of this one alone; default all
---@return table
function profiler.costs(strategy, method) end

---Returns the times of the plan's ops in a step, by scope, pass and op, each of the rank on which it takes the longest. Measures nothing.
---@param strategy table a list of methods
---@return perigee.OpTime[]
function profiler.op_times(strategy) end

---Measures the ops of the strategy's plan on this machine, keeps their times in the profile, and returns the fields of estimate, with ops (their number) and measured (the number of measured ones).
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
---@param search? table facts of its search to save beside it: costs (a table), plans (a list of {strategy, costs})
function strategy.save(file, strategy, search) end

---Returns a saved strategy and the facts of its search that are saved beside it, or a plan as a table, or nil and the reason why there is none.
---@param file string a .json file below the script's folder
---@return table?, table|string
function strategy.load(file) end

---Returns the list of a file of constraints, for the method partition_constraints, or nil and the reason why there is none.
---@param file string a .yaml or .json file below the script's folder
---@return table?, string?
function strategy.constraints(file) end

---Returns true where both are the same, else false and their differences.
---@param a table a strategy
---@param b table a strategy
---@return boolean, string?
function strategy.compare(a, b) end

---Functions of the host for the dialects of other systems.
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

---Returns the names of the built-in orders of samples (data.sampler).
---@return table
function host.samplers() end

---Returns the error of a job's key with this value, nil where it has none. Keys of `model` are checked when the job is read.
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

---For scripts of models: every op of LibTorch by its schema's name, torch.softmax(x, -1), torch.gelu(x, { approximate = "tanh" }). Arguments by position, a table of named ones last; lists are tables, dtypes strings, and nil is an omitted argument.
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
---@param message string the error's text, "RULE, but got VALUE"
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
