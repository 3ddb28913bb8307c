-- A zero-bubble pipeline with the optimizer's state sharded over the data ranks.
-- When to use it: many microbatches, and links too slow for tensor parallelism.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "pipe", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.pipeline_parallel { schedule = "zb1p" },
  m.zero1 {},
}
