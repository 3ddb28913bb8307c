-- Megatron-Core: communication overlapped with matrix products, and fused gradient accumulation.
-- When to use it: as the translation of a ModelParallelConfig with overlap flags.
local megatron = require "perigee.megatron"

local config = megatron.ModelParallelConfig {
  tensor_model_parallel_size = 2,
  tp_comm_overlap = true,
  pipeline_model_parallel_size = 2,
  pipeline_dtype = "float32",
  overlap_p2p_comm = true,
  batch_p2p_comm = false,
  gradient_accumulation_fusion = true,
}
return config
