-- A pipeline whose stages keep the results of one microbatch in flight; the blocks of the others are
-- recomputed in the backward pass. The last stage, with one in flight, recomputes nothing.
-- When to use it: full activation checkpointing leaves memory unused on the later stages.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "pipe", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.pipeline_parallel { schedule = "1f1b" },
  m.checkpoint { "blocks.*", kept_microbatches = 1 },
}
