-- Pipeline parallelism: the layers are spread over stages, and microbatches run through them one
-- behind the other. Stages exchange activations and gradients alone, so slow links will do.
-- When to use it: the model does not fit on the ranks of one host. Many microbatches keep the
-- stages busy: at least as many as stages, better four times.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "pipe", 2 }, { "data", 1 } },  -- data takes the ranks that are left
  m.pipeline_parallel { schedule = "1f1b" },  -- or zb1p, zbv, ...: `perigee schedule` draws them
}
