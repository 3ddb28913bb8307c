-- Megatron-Core: experts over ranks of their own, each whole, beside tensor-parallel attention (model.kind = "moe").
-- When to use it: as the start of what a ModelParallelConfig of a mixture of experts becomes.
local megatron = require "perigee.megatron"

local config = megatron.ModelParallelConfig {
  tensor_model_parallel_size = 2,
  sequence_parallel = true,
  expert_model_parallel_size = 4,
  expert_tensor_parallel_size = 1,
}
return config
