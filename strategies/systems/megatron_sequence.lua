-- Megatron-Core: sequence-sharded activations between tensor-parallel layers, and context parallelism.
-- When to use it: as the translation of a ModelParallelConfig for long sequences.
local megatron = require "perigee.megatron"

local config = megatron.ModelParallelConfig {
  tensor_model_parallel_size = 2,
  sequence_parallel = true,
  context_parallel_size = 2,
}
return config
