-- A pipeline whose stages keep the results of one microbatch in flight; the others run their blocks
-- again in the backward pass. The last stage, which has one in flight, runs nothing again.
-- When to use it: with all blocks run again memory is left over on the later stages.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "pipe", 2 }, { "data", 1 } },  -- data takes the ranks that are left
  m.pipeline_parallel { schedule = "1f1b" },
  m.checkpoint { "blocks.*", kept_microbatches = 1 },
}
