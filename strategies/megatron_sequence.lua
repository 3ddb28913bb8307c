-- Megatron-Core: activations cut on their sequence between tensor-parallel layers, and the sequence over context ranks.
-- When to use it: as the start of what a ModelParallelConfig for long sequences becomes.
local megatron = require "perigee.megatron"

local config = megatron.ModelParallelConfig {
  tensor_model_parallel_size = 2,
  sequence_parallel = true,
  context_parallel_size = 2,
}
return config
