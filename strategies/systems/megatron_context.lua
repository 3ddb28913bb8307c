-- Megatron-Core: the sequence over two levels of context ranks: an all-to-all of heads, and a ring.
-- When to use it: as the translation of a ModelParallelConfig for very long sequences.
local megatron = require "perigee.megatron"

local config = megatron.ModelParallelConfig {
  context_parallel_size = 4,
  hierarchical_context_parallel_sizes = { 2, 2 },
}
return config
