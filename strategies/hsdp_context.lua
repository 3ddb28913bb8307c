-- Sequences over neighbours, and parameters in parts within a group that repeats over data.
-- When to use it: long sequences of a model that one device cannot hold, on many hosts.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "context", 2 }, { "zero", 2 }, { "data", 1 } },  -- data takes the others
  m.context_parallel {},
  m.fsdp { sharding_strategy = "HYBRID_SHARD" },
}
