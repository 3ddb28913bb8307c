-- Megatron-Core: what a step can do beside its matrix products.
-- When to use it: as the start of what a ModelParallelConfig with overlap flags becomes.
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
