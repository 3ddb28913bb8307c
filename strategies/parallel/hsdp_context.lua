-- Sequences sharded over neighbours, and parameters within a group that is replicated over data.
-- When to use it: long sequences of a model that one device cannot hold, on many hosts.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "context", 2 }, { "zero", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.context_parallel {},
  m.fsdp { sharding_strategy = "HYBRID_SHARD" },
}
