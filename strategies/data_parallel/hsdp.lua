-- Hybrid sharding (HSDP): parameters, gradients and optimizer state are sharded over the ranks of
-- `zero`, which are close to each other, and replicated over `data`; gradients are reduce-scattered
-- within a group, and their parts all-reduced between the groups.
-- When to use it: fully sharded training on several hosts, each with enough memory for the model.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "zero", 2 }, { "data", 1 } },  -- `data` grows with the ranks of the run
  m.fsdp { sharding_strategy = "HYBRID_SHARD" },
}
