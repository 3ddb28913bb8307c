-- Megatron-Core: tensor, pipeline and data parallelism with the distributed optimizer.
-- When to use it: as the translation of a ModelParallelConfig.
local megatron = require "perigee.megatron"

local config = megatron.ModelParallelConfig {
  tensor_model_parallel_size = 2,
  pipeline_model_parallel_size = 2,
  pipeline_dtype = "float32",
  deallocate_pipeline_outputs = true,
}
local strategy = megatron.strategy { config, megatron.DistributedOptimizer { overlap_grad_reduce = true } }
return strategy
