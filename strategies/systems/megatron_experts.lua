-- Megatron-Core: whole experts over ranks of their own, beside tensor-parallel attention (model.kind = "moe").
-- When to use it: as the translation of a ModelParallelConfig of a mixture of experts.
local megatron = require "perigee.megatron"

local config = megatron.ModelParallelConfig {
  tensor_model_parallel_size = 2,
  sequence_parallel = true,
  expert_model_parallel_size = 4,
  expert_tensor_parallel_size = 1,
}
return config
