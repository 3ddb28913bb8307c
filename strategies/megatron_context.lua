-- Megatron-Core: the sequence over two levels of context ranks: an exchange of heads, and a ring.
-- When to use it: as the start of what a ModelParallelConfig for very long sequences becomes.
local megatron = require "perigee.megatron"

local config = megatron.ModelParallelConfig {
  context_parallel_size = 4,
  hierarchical_context_parallel_sizes = { 2, 2 },
}
return config
